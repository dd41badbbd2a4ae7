"""Requests that are meant to do harm are refused by the field that is wrong, and other requests go on meanwhile."""

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx2
import pytest
import torch

from decoding.checkpoint.supported import model_folder
from decoding.grammar.definition import Compiled
from endpoint.edge.install import EdgeSettings
from endpoint.service.service import ServiceSettings
from tests.adapted import keep_merged_models_in, save_adapter
from tests.endpoint.asking import Asked, all_over
from tests.endpoint.in_process import BUNDLED, Server, running_server, settings_of
from tests.endpoint.requests.bad_requests import CHAT
from tests.endpoint.requests.hostile import HOSTILE_FORMS, HOSTILE_NAMES, HOSTILE_TOOLS, Hostile, of_form
from tests.endpoint.scripted import TEMPLATE
from tests.endpoint.web import ask

ALL = {"forms": HOSTILE_FORMS, "tools": HOSTILE_TOOLS, "names": HOSTILE_NAMES}
CASES = [pytest.param(each, id=f"{kind}: {each.name}") for kind, table in ALL.items() for each in table]
SLOW = [each for table in ALL.values() for each in table if each.is_slow]
STREAMED = {"prompt": "hello", "max_tokens": 450, "ignore_eos": True, "seed": 7, "stream": True}
_CALLS = TEMPLATE.replace("<think>", "<thought>")  # so that a forced call is the beginning of the answer


@pytest.fixture(scope="module")
def hostile_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The whole endpoint over the bundled pair, with tools in its template and an adapter."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    settings = settings_of((str(BUNDLED / "target"), str(BUNDLED / "draft")), max_model_len=None)
    settings = replace(settings, chat=replace(settings.chat, chat_template=_CALLS))
    with pytest.MonkeyPatch.context() as patch:
        keep_merged_models_in(tmp_path_factory.mktemp("merged"), patch)
        folder = save_adapter(BUNDLED / "target", tmp_path_factory.mktemp("adapter") / "own", 1)
        own = replace(settings, models=replace(settings.models, target=model_folder(folder)))
        edge = EdgeSettings(keys=None)
        with running_server(settings, ServiceSettings(model="base"), edge, adapters={"pirate": own}) as server:
            yield server
    torch.set_num_threads(num_threads)


def check(hostile: Hostile, status: int, error: dict[str, Any] | None) -> None:
    """Check the answer to a hostile request, by its status and error."""
    if hostile.param is None:
        assert status == 200, error
        return
    assert error is not None, "it was answered"
    assert (status, error["type"], error["param"]) == (hostile.status, "invalid_request_error", hostile.param), error
    assert hostile.said in error["message"]
    if hostile.status == 400 and error["code"] != "context_length_exceeded":
        assert error["message"].startswith(f"{hostile.param}: ")
    assert "\n" not in error["message"]
    assert len(error["message"]) < 700


@pytest.mark.parametrize("hostile", CASES)
def test_a_hostile_request_is_refused_by_its_wrong_field_or_answered(hostile_server, hostile):
    answer = ask(hostile_server.port, hostile.path, hostile.body)
    check(hostile, answer.status, json.loads(answer.body).get("error"))


def test_a_stream_is_whole_and_unchanged_while_every_slow_request_is_refused(hostile_server):
    async def beside() -> tuple[str, int]:
        num_meanwhile = 0
        async with httpx2.AsyncClient(base_url=hostile_server.url, timeout=120) as client:
            async with all_over([Asked(client, STREAMED)]) as (stream,):
                await stream.reached(1)
                for hostile in SLOW:
                    before = stream.num_events
                    answer = await client.post(hostile.path, json=_never_seen(hostile.body))
                    num_meanwhile += stream.num_events - before
                    check(hostile, answer.status_code, answer.json().get("error"))
            assert stream.has_succeeded, stream.error
            return stream.text, num_meanwhile

    text, num_meanwhile = asyncio.run(beside())
    (expected,) = hostile_server.texts_of([{**STREAMED}])[0]
    assert text == expected
    assert num_meanwhile > 0, "the stream stood still while requests were refused"


def _never_seen(body: dict[str, Any]) -> dict[str, Any]:
    """Return an equal request whose form is written otherwise, so that no earlier answer is remembered for it."""
    text = re.sub(r'"p(\d)', r'"q\1', json.dumps(body)).replace("a{1000}", "b{1000}").replace("value ", "worth ")
    changed: dict[str, Any] = json.loads(text)
    return changed


def test_a_stream_goes_on_as_long_as_a_form_takes_to_compile(hostile_server, monkeypatch):
    """The form is held in its compilation until the stream has gone on: if one blocked the other, neither would end."""
    compile_form, begun, may_end = Compiled.of, threading.Event(), threading.Event()

    def held(*arguments: Any) -> Any:
        begun.set()
        assert may_end.wait(60), "the stream stood still while a form was compiled"
        return compile_form(*arguments)

    monkeypatch.setattr(Compiled, "of", held)

    async def beside() -> None:
        async with httpx2.AsyncClient(base_url=hostile_server.url, timeout=120) as client:
            body = {"messages": [{"role": "user", "content": "a"}], **of_form(grammar="start: /(d{1000}){1000}/")}
            asked = asyncio.create_task(client.post(CHAT, json=body))
            await asyncio.to_thread(begun.wait, 60)
            async with all_over([Asked(client, STREAMED)]) as (stream,):
                await stream.reached(10)
                assert not asked.done()
                may_end.set()
            assert (await asked).status_code == 400
            assert stream.has_succeeded, stream.error

    try:
        asyncio.run(beside())
    finally:
        may_end.set()
