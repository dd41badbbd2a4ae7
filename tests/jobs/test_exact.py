"""run.exact, and what a run says of texts that are not the target's: the warning, run.json, footers, table, report."""

import json
from typing import Any

import pyarrow.parquet as pq
import pytest

from actors.engines import backend_of
from actors.engines.backend import exactness_found, why_inexact
from actors.engines.loading import LoadedEngine
from actors.settings import EngineSettings, GeneratorSettings, ModelSettings
from jobs import report, verify
from tests.jobs.runs import commits

LOSSY = "at temperatures above 0 the texts do not have the target's distribution (verification: unadjusted)"
SWITCH = {"VLLM_BATCH_INVARIANT": "1"}


def settings(device: str = "cpu", dtype: str = "float32", **engine: Any) -> GeneratorSettings:
    models = ModelSettings(target="unused", device=device, dtype=dtype)  # type: ignore[arg-type]
    return GeneratorSettings(models=models, engine=EngineSettings(**engine))


def flat(text: str) -> str:
    """Return a text without the line breaks of a terminal."""
    return " ".join(text.split())


def test_unadjusted_is_never_exact_and_a_reader_can_tell_it_from_rejection():
    rules = ("unadjusted", "rejection", "coupled")
    unadjusted, rejection, coupled = (backend_of(settings(verification=rule)) for rule in rules)
    assert unadjusted.exactness == rejection.exactness == "no"
    assert exactness_found("no", "unadjusted", [{"is_batch_invariant": True}]) == "no"
    assert (unadjusted.lossy, rejection.lossy, coupled.lossy) == (LOSSY, "", "")
    assert why_inexact("unadjusted") == LOSSY
    assert "also of the target's distribution" in why_inexact("rejection")
    assert "vLLM" in why_inexact("vllm")
    assert "rounding" in why_inexact("coupled")


@pytest.mark.parametrize(
    ("given", "why", "remedy"),
    [
        (settings(verification="unadjusted"), LOSSY, "set engine.verification to 'coupled'"),
        (settings(verification="rejection"), "(verification: rejection)", "set engine.verification to 'coupled'"),
        (settings("auto", backend="vllm"), "vLLM may write another text", "VLLM_BATCH_INVARIANT to '1'"),
        (settings("cpu", backend="vllm", vllm_env=SWITCH), "vLLM may write another text", "run on a GPU"),
    ],
)
def test_what_is_inexact_whatever_an_engine_measures_is_refused(given, why, remedy):
    with pytest.raises(ValueError, match=r"run\.exact is 'required', but .*, or set run\.exact to 'any'") as raised:
        backend_of(given).refuse_if_inexact()
    assert why in str(raised.value)
    assert remedy in str(raised.value)


@pytest.mark.parametrize(
    "given", [settings(), settings(dtype="bfloat16"), settings("auto", backend="vllm", vllm_env=SWITCH)]
)
def test_what_is_exact_or_measured_at_load_is_not_refused_before(given):
    backend_of(given).refuse_if_inexact()


def test_a_plan_that_requires_exactness_is_refused_in_one_line_before_ray_is_asked(job, monkeypatch):
    def ask(*_: Any) -> Any:
        raise AssertionError("the cluster was asked")

    monkeypatch.setattr("jobs.driver.plan.settled", ask)
    job.read(1)
    assert job.generate("--run.exact=required", "--engine.verification=unadjusted") == 2
    said = job.capsys.readouterr().err.strip()
    assert said.startswith(f"error: run.exact is 'required', but {LOSSY}; set engine.verification to 'coupled'")
    assert "\n" not in said
    assert not job.output.exists()


@pytest.mark.parametrize("verification", ["coupled", "rejection"])
def test_nothing_warns_of_a_lossless_verification(job, verification):
    job.read(1)
    assert job.generate("--dry-run", "--models.device=cpu", f"--engine.verification={verification}") == 0
    said = job.capsys.readouterr()
    assert "warning" not in said.err
    assert "do not have" not in said.out


def test_a_dry_run_warns_of_unadjusted(job):
    job.read(1)
    assert job.generate("--dry-run", "--models.device=cpu", "--engine.verification=unadjusted") == 0
    said = job.capsys.readouterr()
    assert said.err.strip() == f"warning: {LOSSY}"
    assert f"unadjusted verification; {LOSSY}" in flat(said.out)


def test_an_engine_whose_texts_depend_on_the_batch_is_refused_when_it_is_loaded(text_pair):
    models = ModelSettings(target=text_pair[0], device="cpu", dtype="float16")
    options = EngineSettings(num_slots=2, max_model_len=64, draft_length="fixed")
    given = GeneratorSettings(models=models, engine=options, is_exact_required=True)
    with pytest.raises(ValueError, match=r"run\.exact is 'required', but on cpu in float16 the texts of this engine"):
        LoadedEngine(given, None, 60.0)


@pytest.mark.usefixtures("local")
def test_a_run_of_unadjusted_says_everywhere_that_its_texts_are_not_the_targets(job):
    job.read(6)
    assert job.generate("--engine.verification=unadjusted", "--engine.draft_length=fixed") == 0
    said = job.capsys.readouterr()
    assert f"warning: {LOSSY}" in said.err
    assert f"exact: no; {LOSSY}" in flat(said.out)
    run, found = (json.loads((job.output / name).read_text()) for name in ("run.json", "report.json"))
    assert (run["exact"], run["identity"]["verification"]) == ("no", "unadjusted")
    assert (found["exact"], found["why_inexact"]) == ("no", LOSSY)
    for part in job.output.glob("data/*.parquet"):
        engine = json.loads(pq.read_metadata(part).metadata[b"dray"])["engine"]
        assert (engine["verification"], engine["exact_text"]) == ("unadjusted", "no")
    for command in (verify, report):
        assert command.main([str(job.output)]) == 0
        assert f"exact: no; {LOSSY}" in flat(job.capsys.readouterr().out)


@pytest.mark.usefixtures("local")
def test_a_run_that_requires_exactness_fails_before_its_first_unit_where_an_engine_is_not(job):
    job.read(6)
    assert job.generate("--run.exact=required", "--models.dtype=float16") == 1
    (error,) = [line for line in job.capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert "run.exact is 'required', but on cpu in float16 the texts of this engine depend on the batch" in error
    assert not commits(job.output)
    assert job.generate("--run.exact=any", "--models.dtype=float16") == 0


@pytest.mark.usefixtures("local")
def test_a_whole_run_whose_parts_are_inexact_is_no_success_where_exactness_is_required(job):
    job.read(6)
    flags = ("--models.dtype=float16", "--engine.draft_length=fixed")
    assert job.generate(*flags) == 0
    assert json.loads((job.output / "report.json").read_text())["exact"] == "no"
    job.capsys.readouterr()
    assert job.generate(*flags, "--run.exact=required") == 1
    assert "error: run.exact is 'required', but its parts were written by engines" in job.capsys.readouterr().err


@pytest.mark.usefixtures("local")
def test_an_exact_run_may_require_it(job, plain_run):
    job.source, job.output = plain_run / "in.jsonl", plain_run / "out"
    assert job.generate("--run.exact=required") == 0
    assert json.loads((job.output / "report.json").read_text())["why_inexact"] == ""


@pytest.mark.usefixtures("local")
def test_a_run_that_turns_out_inexact_at_its_end_is_no_success(job, monkeypatch):
    """A run whose engines ran on processors of two kinds is one."""
    monkeypatch.setattr("jobs.driver.outcome.exactness_of", lambda *_: "no")
    job.read(2)
    assert job.generate("--run.exact=required", "--engine.draft_length=fixed") == 1
    assert "error: run.exact is 'required', but its parts were written by engines" in job.capsys.readouterr().err
    assert commits(job.output)
    assert not (job.output / "_SUCCESS").exists()
