"""The plan of `--dry-run`: it finds in the input what the run would find, without a model."""

import json
import re
from dataclasses import asdict
from typing import Any

from actors.engines.loading import load_codec
from jobs import generate
from jobs.config.loading import load
from jobs.config.run import RunConfig
from jobs.driver.plan import make_plan
from jobs.work import input_check
from jobs.work.input_check import InputCheck, check_input
from pipeline.inputs.options import InputOptions
from pipeline.inputs.records import line_numbers
from pipeline.inputs.units import BYTES_PER_TOKEN
from pipeline.storage.location import Location
from tests.endpoint.in_process import BUNDLED
from tests.jobs.conftest import Job
from tests.jobs.runs import errors

CPU, AUTO = "--models.device=cpu", "--input.prompts_are=auto"
HELLO = [{"role": "user", "content": "hello"}]
# Each line of the input, and what its error row says; None: it is written.
LINES: list[tuple[Any, str | None]] = [
    ({"id": "a", "kind": "a", "prompt": "Tell me a story."}, None),
    ('{"id": "torn", "prompt": "half', "not a JSON line: Unterminated string starting at: column 26 "),
    ("", None),  # a blank line is no row
    ({"prompt": 5}, "column 'prompt': expected a string, got int"),
    ({"messages": [{"role": "wizard", "content": "hi"}]}, "got wizard"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content: expected a string"),
    ({"messages": []}, "messages: "),
    ({"prompt": "hello " * 600}, "tokens and the context is 512, which must also hold the output"),
    ({"id": "a", "prompt": "Tell me a story."}, None),  # an id that stands twice is no error
    ({"prompt": "hi", "sampling": {"temperature": -1}}, "temperature"),
    ({"prompt": "hi", "sampling": {"temprature": 1}}, "unknown sampling parameters ['temprature']"),
    ({"prompt": "hi", "sampling": {"stop_token_ids": [99999]}}, "99999"),
    ({"prompt": "hi", "sampling": {"structured": {"regex": "("}}}, "regex"),
    ({"messages": HELLO, "tools": [{"type": "function"}]}, "tools[0]"),
    ({"prompt": None}, "the columns 'prompt' and 'messages' are null or absent"),
    ({"prompt": "hi", "messages": HELLO}, "the row has a prompt and messages"),
    ({"messages": HELLO, "chat_template_kwargs": 5}, "chat_template_kwargs"),
    (b'{"prompt": "\xff"}', "this record is not UTF-8: byte 12 is 0xff"),
    ({"prompt": ""}, "the prompt is empty"),
    ("[1]", "expected a JSON object on the line, got list"),
]


def _read(job: Job) -> list[tuple[int, str]]:
    """Write the lines; return which of them are faults, counted from 1, and what is said of each."""
    job.source.write_bytes(b"".join(_bytes(line) + b"\n" for line, _ in LINES))
    return [(number, said) for number, (_, said) in enumerate(LINES, start=1) if said is not None]


def _bytes(line: Any) -> bytes:
    if isinstance(line, bytes):
        return line
    return (line if isinstance(line, str) else json.dumps(line)).encode()


def _check(job: Job, *flags: str) -> InputCheck:
    plan = make_plan(load(RunConfig, job.command(CPU, *flags), prog="test"))
    units = list(plan.new_units())
    num_rows, num_tokens = (sum(getattr(unit, name) for unit in units) for name in ("num_rows", "estimated_tokens"))
    return check_input(plan, units, num_rows, num_tokens * BYTES_PER_TOKEN)


def test_the_plan_tells_the_very_rows_that_become_error_rows(job):
    job.pair, faults = (str(BUNDLED / "target"), str(BUNDLED / "draft")), _read(job)
    flags = (AUTO, "--run.local", "--run.max_error_rate=1", "--sampling.max_tokens=3")
    assert job.generate(*flags, "--dry-run") == 0
    said = " ".join(job.printed().split())
    assert f"errors: {len(faults)} of these rows would be error rows:" in said
    told = re.findall(
        r"in\.jsonl:(\d+): (?:read|template|encode|params|generate): (.*?)(?= in\.jsonl:\d+: | first: )", said
    )
    assert [int(line) for line, _ in told] == [line for line, _ in faults]
    for (line, message), (_, part) in zip(told, faults, strict=True):
        assert part in message, line
    assert "ids that several rows have: 1, such as 'a' (in.jsonl:1, in.jsonl:9)" in said
    found = _check(job, *flags).errors
    assert job.generate(*flags) == 0, job.printed()
    names = ("row_id", "row_number", "stage", "error_type", "message", "id")
    written = [{name: row[name] for name in names} for row in errors(job.output)]
    assert [{name: asdict(row)[name] for name in names} for row in found] == written


def test_a_drafter_that_lacks_its_model_is_refused_before_a_plan_is_printed(job):
    job.read(2)
    flags = job.command(CPU, "--engine.drafter=model", "--dry-run")
    assert generate.main([flag for flag in flags if not flag.startswith("--models.draft")]) == 2
    printed = job.printed()
    assert "but no draft model is named" in printed
    assert "New run" not in printed


def test_of_a_large_input_an_even_sample_is_read(job, monkeypatch):
    job.read([{"id": i, "kind": "a", "prompt": "hello" if i % 10 else ""} for i in range(400)])
    monkeypatch.setattr(input_check, "MOST_ROWS", 100)
    check = _check(job)
    assert not check.is_whole
    assert 90 <= check.num_rows <= 110
    assert 5 <= len(check.errors) <= 15
    rows = [error.row_number for error in check.errors]
    assert rows[0] < 100
    assert rows[-1] >= 300


def test_the_plan_says_how_long_prompts_are_and_which_leave_no_room(job):
    texts = ["hello " * number for number in (1, 30, 90, 40)]
    job.read([{"id": number, "kind": "a", "prompt": text} for number, text in enumerate(texts)])
    codec = load_codec(make_plan(load(RunConfig, job.command(CPU), prog="test")).settings)
    lengths = [len(codec.encode(text, is_chat=False)) for text in texts]
    assert job.generate(CPU, "--dry-run", f"--sampling.max_tokens={256 - lengths[2] + 1}") == 0
    said = " ".join(job.printed().split())
    assert f"tokens: {sum(lengths)} in the prompts" in said
    longest = f"{lengths[2]} (in.jsonl:3), {lengths[3]} (in.jsonl:4), {lengths[1]} (in.jsonl:2)"
    assert f"longest: {longest}; the context has 256" in said
    assert "warning: after 1 of these prompts the context ends before sampling.max_tokens" in said


def test_a_record_is_found_on_the_line_on_which_it_begins(tmp_path):
    (tmp_path / "in.csv").write_text('\ufeffprompt,b\n\n"two\nlines",1\n\n  \nthree,2\nfour,3\n')
    location, options = Location.parse(str(tmp_path / "in.csv")), InputOptions(format="csv")
    assert line_numbers(location, options, {0, 1, 2}) == {0: 3, 1: 7, 2: 8}
    assert line_numbers(location, options, set()) == {}
