"""One body has one answer: the same text, or the same refusal, from a job's reader, from a batch, and over HTTP."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
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
from tests.endpoint.requests.bad_requests import CHAT, COMPLETE
from tests.endpoint.requests.bodies import CASES, Case
from tests.endpoint.web import ask
from tests.jobs.runs import arguments, errors, generations
from tests.pipeline.made_up import read_all

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
def test_a_body_has_one_answer(
    case: Case, by_endpoint: dict[str, Outcome], by_batch: dict[str, Outcome], by_job: dict[str, Outcome]
) -> None:
    here = by_endpoint[case.name]
    check(here, case.refused, here.texts)
    if case.refused is not None:
        assert here.param == case.refused[0]
    check(by_job[case.name], case.in_batches, here.texts)
    if "model" not in case.body:
        check(by_batch[case.name], case.in_batches, here.texts)
        if case.in_batches is not None and case.in_batches[1]:
            assert by_batch[case.name].param == case.in_batches[0]


def test_the_table_has_enough_of_each() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 250
    assert sum(case.refused is None for case in CASES) >= 100


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("ray_address")
def test_a_job_on_ray_writes_what_its_reader_promised(by_job: dict[str, Outcome], tmp_path: Path) -> None:
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
