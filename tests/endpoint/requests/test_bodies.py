"""One body has one answer: the same text, or the same refusal, from a job's reader, from a batch, and over HTTP."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from actors.engine.translation import decode_row, encode_row
from actors.engine.vocabulary import check_row
from endpoint.batches.batch import BatchSettings
from endpoint.batches.run import sampling_of
from endpoint.edge.install import EdgeSettings
from endpoint.service.service import ServiceSettings
from jobs import generate
from pipeline.errors import ErrorRow, RowError
from pipeline.inputs.files import list_files
from pipeline.inputs.options import InputOptions
from tests.endpoint.batches.asking import begin, ended, results
from tests.endpoint.in_process import BUNDLED, Server, running_server, settings_of
from tests.endpoint.requests.bad_chats import BAD_CHATS
from tests.endpoint.requests.bad_completions import BAD_COMPLETIONS
from tests.endpoint.requests.bad_requests import CHAT, COMPLETE, Bad, shared
from tests.endpoint.web import ask
from tests.jobs.runs import arguments, errors, generations
from tests.pipeline.made_up import read_all

USER = {"role": "user", "content": "Hi"}
_BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [USER], "max_tokens": 3, "temperature": 0},
    COMPLETE: {"prompt": "Once", "max_tokens": 3, "temperature": 0},
}
_SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "null"}}}
_NO_PLACE = "the results of a batch have no place for it"
_ONE_PROMPT = ("prompt", "a row of a batch has one prompt; give each prompt its own line")


@dataclass(frozen=True)
class Case:
    """A body of a url. `refused` is the path of the field and the reason; None where it is answered.

    `in_batches` is the same for rows of batches, which cannot have all that the endpoint gives.
    """

    name: str
    url: str
    body: dict[str, Any]
    refused: tuple[str, str] | None = None
    in_batches: tuple[str, str] | None = None


def _answered(urls: list[str], *changes: dict[str, Any], in_batches: tuple[str, str] | None = None) -> list[Case]:
    """Cases that the endpoint answers: a good body of each url, but for these fields. `...` leaves one out."""
    found = []
    for url in urls:
        for fields in changes:
            body = {name: value for name, value in {**_BODIES[url], **fields}.items() if value is not ...}
            shown = ", ".join(f"{name}={value!r:.40}" for name, value in fields.items())
            found.append(Case(f"{url} with {shown}", url, body, None, in_batches))
    return found


def _refused(bad: Bad) -> list[Case]:
    """The case of a bad request, unless its answer is of the endpoint or of its engine alone."""
    is_of_server = bad.status != 400 or bad.param == "n" or bad.code == "context_length_exceeded"
    is_of_grammar = "it cannot be compiled" in bad.message or "held to a grammar" in bad.message
    is_of_form = is_of_grammar or ": it must" in bad.message or ": it is not JSON" in bad.message
    if is_of_server or is_of_form or not bad.param or len(str(bad.body)) > 15_000:
        return []
    param, _, reason = bad.message.partition(": ")
    refused, prompt = (bad.param, reason if param == bad.param else ""), bad.body.get("prompt")
    is_split = isinstance(prompt, list) and len(prompt) > 1 and {type(each) for each in prompt} <= {str, list}
    in_batches = _ONE_PROMPT if is_split and reason != "the list is empty" else refused
    return [Case(bad.name, bad.path, bad.body, refused, in_batches)]


CASES = [
    *_answered(
        [CHAT, COMPLETE],
        # Values that ask for nothing, and numbers in another spelling.
        *({}, {"top_k": -1}, {"top_k": 0}, {"top_k": None}, {"skip_special_tokens": True}, {"stream": False}),
        *({"include_stop_str_in_output": False}, {"return_token_ids": False}, {"store": False}, {"n": 1}),
        *({"seed": 7.0}, {"seed": 2**63}, {"seed": -(2**63)}, {"n": 2.0, "temperature": 1, "seed": 3}),
        *({"max_tokens": 2.0}, {"min_tokens": 1.0}, {"top_k": 5.0}, {"temperature": -0.0}),
        *({"temperature": 2, "seed": 1}, {"stop": None}, {"stop": []}, {"stop": "zz"}, {"stop": ["a", "b", "c", "d"]}),
        *({"documents": []}, {"priority": 0}, {"functions": []}, {"function_call": "none"}, {"suffix": ""}),
        *({"tools": []}, {"tool_choice": "auto"}, {"parallel_tool_calls": True}, {"modalities": ["text"]}),
        *({"service_tier": "auto"}, {"metadata": {"a": "b"}}, {"user": "u"}, {"no_such_field": None}),
        *({"logit_bias": {}}, {"logit_bias": {"5": -100.0}}, {"bad_words": []}, {"stop_token_ids": [7]}),
        *({"response_format": {"type": "text"}}, {"guided_regex": "[ab]"}, {"stream_options": None}),
        *({"structured_outputs": {}}, {"structured_outputs": {"choice": ["yes"], "json_object": False}}),
        *({"truncate_prompt_tokens": 50}, {"truncate_prompt_tokens": -1}, {"truncate_prompt_tokens": 1}),
        *({"num_speculative_tokens": 0}, {"num_speculative_tokens": 2}, {"ignore_eos": True}),
        *({"skip_special_tokens": False, "max_tokens": 40}, {"stop": "a", "max_tokens": 40}),
        {"include_stop_str_in_output": True, "stop": "a", "max_tokens": 40},
        {"repetition_penalty": 1.1, "presence_penalty": -2, "frequency_penalty": 2, "min_p": 0, "top_p": 1},
    ),
    *_answered(
        [CHAT],
        *({"max_completion_tokens": 4}, {"max_tokens": ..., "max_completion_tokens": 3}),
        *({"max_tokens": 3, "max_completion_tokens": 2.0}, {"logprobs": True}, {"logprobs": False}),
        *({"logprobs": True, "top_logprobs": 2}, {"top_logprobs": 0}, {"chat_template_kwargs": {}}),
        *({"messages": [USER, {"role": "assistant", "content": "He"}]}, {"add_generation_prompt": True}),
        {"messages": [{"role": "system", "content": "a"}, {"role": "user", "content": "b", "name": "n"}]},
        {"messages": [{"role": "developer", "content": "a"}, USER]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]},
        {"response_format": _SCHEMA, "max_tokens": 9},
    ),
    *_answered(
        [COMPLETE],
        *({"prompt": ["Once"]}, {"prompt": [20, 21]}, {"prompt": [[20, 21]]}, {"max_tokens": ...}),
        *({"logprobs": 0}, {"logprobs": 5}, {"logprobs": 2.0}, {"best_of": 1}, {"echo": False}),
        *({"best_of": 4, "n": 2, "temperature": 1, "seed": 5, "max_tokens": 12}, {"best_of": 2.0, "seed": 5}),
        {"best_of": 3, "temperature": 1, "seed": 5, "max_tokens": 12, "logprobs": 2},
        {"truncate_prompt_tokens": 2, "prompt": [20, 21, 22, 23]},
    ),
    # What a row of a batch has no place for.
    *_answered([CHAT, COMPLETE], {"return_token_ids": True}, in_batches=("return_token_ids", _NO_PLACE)),
    *_answered([CHAT, COMPLETE], {"prompt_logprobs": 0}, in_batches=("prompt_logprobs", _NO_PLACE)),
    *_answered([CHAT], {"stream": True}, in_batches=("stream", "the answers of a batch are whole")),
    *_answered([COMPLETE], {"echo": True}, in_batches=("echo", "a row has its prompt beside it")),
    *_answered([COMPLETE], {"prompt": ["a", "b"]}, {"prompt": [[1], [2]]}, in_batches=_ONE_PROMPT),
    *(case for bad in (*BAD_COMPLETIONS, *BAD_CHATS, *shared(BAD_COMPLETIONS)) for case in _refused(bad)),
]


LINES = {url: [case for case in CASES if case.url == url] for url in (CHAT, COMPLETE)}


@dataclass(frozen=True)
class Outcome:
    """The texts of an answer, or the message of a refusal with the path of its field, where that is known."""

    texts: tuple[str, ...] = ()
    message: str = ""
    param: str | None = None


def line(case: Case) -> dict[str, Any]:
    return {"custom_id": case.name, "method": "POST", "url": case.url, "body": case.body}


def texts_of(answer: dict[str, Any]) -> tuple[str, ...]:
    return tuple(each["text"] if "text" in each else each["message"]["content"] for each in answer["choices"])


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The whole endpoint over the bundled pair, with the Batch API."""
    pair = str(BUNDLED / "target"), str(BUNDLED / "draft")
    settings = settings_of(pair, num_speculative_tokens=4, max_model_len=512)
    batches = BatchSettings(path=str(tmp_path_factory.mktemp("batches")))
    with running_server(settings, ServiceSettings(model="m"), EdgeSettings(keys=None), batches) as server:
        yield server


@pytest.fixture(scope="module")
def by_endpoint(running: Server) -> dict[str, Outcome]:
    found = {}
    for case in CASES:
        answer = ask(running.port, case.url, case.body)
        if answer.status == 200:
            found[case.name] = Outcome(() if case.body.get("stream") else texts_of(json.loads(answer.body)))
        else:
            assert answer.status == 400 or answer.error["param"] == "model", answer.body
            found[case.name] = Outcome((), answer.error["message"], answer.error["param"])
    return found


@pytest.fixture(scope="module")
def by_batch(running: Server) -> dict[str, Outcome]:
    client, found = running.client(), {}
    for url, cases in LINES.items():
        lines = [line(case) for case in cases if "model" not in case.body]  # a model that is none fails the whole batch
        batch = ended(client, begin(client, lines, url))
        assert batch.status == "completed", batch.errors
        for name, each in results(client, batch.output_file_id).items():
            found[name] = Outcome(texts_of(each["response"]["body"]))
        for name, each in results(client, batch.error_file_id).items():
            error = each["response"]["body"]["error"]
            found[name] = Outcome((), error["message"], error["param"])
    return found


@pytest.fixture(scope="module")
def by_job(running: Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    path = tmp_path_factory.mktemp("job") / "in.jsonl"
    path.write_text("".join(json.dumps(line(case)) + "\n" for case in CASES))
    rows = read_all(list_files(str(path)), InputOptions(format="openai_batch"), len(CASES))
    found: dict[str, Outcome] = {}
    encoded = []
    for case, row in zip(CASES, rows, strict=True):
        if isinstance(row, ErrorRow):
            found[case.name] = Outcome((), row.message)
            continue
        try:
            settings = replace(running.settings, sampling=sampling_of(case.url))
            ready = encode_row(row, 0, running.codec, settings)
            check_row(row, ready.sequences[0].params, running.plain.vocab_size)
            encoded.append((case, ready))
        except RowError as error:
            found[case.name] = Outcome((), str(error))
    for _ in running.plain.stream([sequence for _, row in encoded for sequence in row.sequences]):
        pass
    for case, row in encoded:
        found[case.name] = Outcome(tuple(sample["text"] for sample in decode_row(row, running.codec)))
    return found


def check(outcome: Outcome, refused: tuple[str, str] | None, texts: tuple[str, ...]) -> None:
    """Check an outcome: these texts, or a refusal that names the field and begins its reason so."""
    if refused is None:
        assert not outcome.message
        assert outcome.texts == texts
        return
    where, reason = refused
    said = re.sub(r"^(body|sampling)\.", "", outcome.message)
    assert said
    if reason:
        assert said.startswith(where)
        assert said.removeprefix(where).lstrip(": ").startswith(reason), outcome


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_body_has_one_answer(case, by_endpoint, by_batch, by_job):
    here = by_endpoint[case.name]
    check(here, case.refused, here.texts)
    if case.refused is not None:
        assert here.param == case.refused[0]
    check(by_job[case.name], case.in_batches, here.texts)
    if "model" not in case.body:
        check(by_batch[case.name], case.in_batches, here.texts)
        if case.in_batches is not None and case.in_batches[1]:
            assert by_batch[case.name].param == case.in_batches[0]


def test_the_table_has_enough_of_each():
    assert len({case.name for case in CASES}) == len(CASES) >= 250
    assert sum(case.refused is None for case in CASES) >= 100


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("ray_address")
def test_a_job_on_ray_writes_what_its_reader_promised(by_job, tmp_path):
    cases = [case for case in CASES if "max_tokens" in case.body]  # a job has a limit of its own for the others
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps(line(case)) + "\n" for case in cases))
    pair = str(BUNDLED / "target"), str(BUNDLED / "draft")
    flags = ("--engine.num_speculative_tokens=4", "--engine.max_model_len=512", "--run.max_error_rate=1.0")
    words = arguments(source, tmp_path / "out", pair, *flags)
    assert generate.main([word for word in words if "id_column" not in word and "carry_columns" not in word]) == 0
    found: dict[str, list[str]] = {}
    for row in generations(tmp_path / "out"):
        found.setdefault(row["id"], []).append(row["text"])
    refused = {row["id"]: row["message"] for row in errors(tmp_path / "out")}
    assert found.keys() | refused.keys() == {case.name for case in cases}
    for case in cases:
        assert Outcome(tuple(found.get(case.name, ())), refused.get(case.name, "")) == by_job[case.name]
