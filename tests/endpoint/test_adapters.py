"""An endpoint with adapters in this process: each name is a model of its own, on every route."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from decoding.checkpoint.supported import model_folder
from endpoint.edge.install import EdgeSettings
from endpoint.service.service import ServiceSettings
from tests.adapted import keep_merged_models_in, save_adapter
from tests.endpoint.adapter_checks import (
    BASE,
    PIRATE,
    POET,
    Adapted,
    check_metrics,
    check_names,
    check_other_routes,
    check_texts,
)
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


def test_each_name_writes_the_text_of_its_own_target_alone(endpoint: Adapted) -> None:
    check_texts(endpoint)


def test_chats_responses_forced_texts_and_scores_are_those_of_the_model_that_is_named(endpoint: Adapted) -> None:
    check_other_routes(endpoint)


def test_the_models_are_listed_and_an_unknown_one_is_a_404_that_lists_their_names(endpoint: Adapted) -> None:
    check_names(endpoint)


def test_metrics_carry_the_name_of_the_model_that_was_asked(endpoint: Adapted) -> None:
    check_metrics(endpoint)
