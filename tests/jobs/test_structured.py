"""A corpus whose outputs have a form: by the run's grammar, by one of a row's own, and by a batch file's request."""

import json
import re

import jsonschema
import pytest
import yaml

from decoding.grammar.structured import Structured
from jobs.config.loading import load
from jobs.config.run import RunConfig
from jobs.driver.plan import create_run, make_plan
from tests.jobs.conftest import Job
from tests.jobs.runs import content, errors, generations, problems

SCHEMA = {
    "type": "object",
    "properties": {"b": {"enum": ["yes", "no"]}, "a": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["b", "a"],
    "additionalProperties": False,
}


def _sampling(job: Job, structured: object) -> str:
    path = job.folder / "structured.yaml"
    path.write_text(yaml.safe_dump({"sampling": {"structured": structured}}, sort_keys=False))
    return f"--config={path}"


def test_a_configuration_says_the_form_and_the_run_records_it(job):
    job.read(3)
    flags = job.command(_sampling(job, {"json_schema": SCHEMA}))
    plan = make_plan(load(RunConfig, flags, prog="test"))
    assert plan.settings.sampling.structured == Structured(json_schema=SCHEMA)
    run = create_run(plan).run
    assert Structured.of(run["identity"]["sampling"]["structured"]).key == Structured(json_schema=SCHEMA).key
    assert run["settings"]["sampling"]["structured"] == run["identity"]["sampling"]["structured"]
    make_plan(load(RunConfig, flags, prog="test"))  # goes on with it
    reordered = {**SCHEMA, "properties": dict(reversed(SCHEMA["properties"].items()))}
    with pytest.raises(ValueError, match=r"sampling\.structured\.json_schema: was"):
        make_plan(load(RunConfig, job.command(_sampling(job, {"json_schema": reordered})), prog="test"))


def test_a_run_without_a_form_records_nothing_of_it(job):
    job.read(3)
    plan = make_plan(load(RunConfig, job.command(), prog="test"))
    assert "structured" not in plan.identity["sampling"]


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("drafter", ["model", "suffix"])
def test_rows_have_the_form_of_the_run_or_their_own_and_one_that_cannot_end_is_an_error_row(job, drafter):
    own = {"regex": "[ab]{2,4}"}
    job.read(
        [
            {"id": "run's", "kind": "a", "prompt": "hello"},
            {"id": "own", "kind": "a", "prompt": "hello", "sampling": {"structured": own, "temperature": 0.7}},
            {"id": "text", "kind": "a", "prompt": "a", "sampling": {"structured": {"json_schema": json.dumps(SCHEMA)}}},
            {"id": "free", "kind": "a", "prompt": "hello", "sampling": {"structured": False, "max_tokens": 3}},
            {"id": "end", "kind": "a", "prompt": "hello", "sampling": {"ignore_eos": True}},
        ]
    )
    flags = [_sampling(job, {"json_schema": SCHEMA, "disable_any_whitespace": True}), "--sampling.max_tokens=60"]
    assert job.generate(*flags, f"--engine.drafter={drafter}") == 0
    texts = {row["id"]: row for row in generations(job.output)}
    assert texts.keys() == {"run's", "own", "text", "free"}
    assert not texts["free"]["text"].startswith("{")
    assert re.fullmatch(own["regex"], texts["own"]["text"])
    for name in ("run's", "text"):
        if texts[name]["finish_reason"] == "stop":
            jsonschema.validate(json.loads(texts[name]["text"]), SCHEMA)
    assert texts["run's"]["finish_reason"] == "stop"
    assert [(row["id"], row["stage"]) for row in errors(job.output)] == [("end", "params")]


def _forms(job: Job) -> str:
    """Read rows of which every third has another form than the run, and return the flag of the run's form."""
    job.read(
        [
            {"id": f"row-{i}", "kind": "a", "prompt": f"hello {i}"}
            | ({"sampling": {"structured": {"regex": "[ab]{2,6}"}}} if i % 3 == 0 else {})
            for i in range(24)
        ]
    )
    return _sampling(job, {"json_schema": SCHEMA})


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.ray
@pytest.mark.usefixtures("ray_address")
@pytest.mark.parametrize(
    "where",
    [
        "--placement=split --drafts.num_cpus=0.5 --drafts.timeout_s=30",
        "--stages.count=2 --stages.num_cpus=0.5",
    ],
    ids=["split", "stages"],
)
def test_forms_are_kept_to_in_other_processes_with_the_same_corpus(job, where):
    forms = _forms(job)
    flags = (forms, "--engine.draft_length=fixed", "--sampling.max_tokens=24", "--sampling.temperature=0.8")
    alone = job.undisturbed(*flags, "--engine.drafter=none")
    assert job.generate(*flags, *where.split()) == 0, job.printed()
    assert content(job.output) == content(alone)
    assert problems(job.output) == []
    assert sum(row["num_accepted_tokens"] for row in generations(job.output)) > 0
    ended = [row for row in generations(job.output) if row["finish_reason"] == "stop"]
    assert len(ended) > 8
    for row in ended:
        if int(row["id"].removeprefix("row-")) % 3:
            jsonschema.validate(json.loads(row["text"]), SCHEMA)
        else:
            assert re.fullmatch("[ab]{2,6}", row["text"])
