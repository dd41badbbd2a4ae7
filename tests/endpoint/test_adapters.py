"""An endpoint with adapters in this process: each name is a model of its own, on every route."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from actors.engine.requests import EngineFacts
from decoding.checkpoint.supported import model_folder
from endpoint.edge.install import EdgeSettings
from endpoint.http.errors import ApiError
from endpoint.service.service import Models, ServiceSettings
from tests.adapted import keep_merged_models_in, save_adapter
from tests.endpoint.adapter_checks import BASE, CHECKS, PIRATE, POET, Adapted
from tests.endpoint.in_process import Running, running_server, settings_of


@pytest.fixture(scope="module")
def endpoint(text_pair: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Adapted]:
    """The server over a base and two adapters of it, with the same draft."""
    folder = tmp_path_factory.mktemp("adapters")
    with pytest.MonkeyPatch.context() as patch:
        keep_merged_models_in(folder / "merged", patch)
        settings = {BASE: settings_of(text_pair)}
        for seed, name in enumerate((PIRATE, POET)):
            merged = model_folder(save_adapter(text_pair[0], folder / f"adapter-{seed}", seed))
            settings[name] = settings_of((merged, text_pair[1]))
    adapters = {name: own for name, own in settings.items() if name != BASE}
    served = ServiceSettings(model=BASE)
    with running_server(settings[BASE], served, EdgeSettings(keys=None), adapters=adapters) as server:
        yield Adapted(server.port, {name: Running(server.port, own) for name, own in settings.items()})


@pytest.mark.parametrize("check", CHECKS)
def test_each_name_is_a_model_of_its_own(endpoint, check):
    check(endpoint)


@pytest.mark.anyio
async def test_a_model_whose_engines_do_not_answer_is_listed_without_what_they_know(monkeypatch):
    monkeypatch.setattr("endpoint.service.service._FACTS_S", 0.01)

    class Silent:
        settings = ServiceSettings(model=PIRATE)

        @property
        def backend(self) -> Any:
            return self

        async def facts(self) -> EngineFacts:
            await asyncio.Event().wait()
            raise AssertionError

    class Quick(Silent):
        settings = ServiceSettings(model=BASE)

        async def facts(self) -> EngineFacts:
            return EngineFacts(max_model_len=64, vocab_size=8, num_speculative_tokens=0)

    found = await Models(Quick(), Silent()).facts()  # type: ignore[arg-type]
    assert [(name, facts and facts.max_model_len) for name, _, facts in found] == [(BASE, 64), (PIRATE, None)]


@pytest.mark.anyio
async def test_models_that_all_fail_are_an_error_and_no_empty_list():
    class Failing:
        settings = ServiceSettings(model=BASE)

        @property
        def backend(self) -> Any:
            return self

        async def facts(self) -> EngineFacts:
            raise ApiError(503, "There is no engine.")

    with pytest.raises(ApiError, match="There is no engine"):
        await Models(Failing()).facts()  # type: ignore[arg-type]
