"""A run with a list of drafts takes one by a trial on its own rows: no text depends on it, and it is kept."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import ray
import yaml

from jobs import generate, prove, retry, serve, tune
from jobs.config.as_yaml import as_yaml
from jobs.config.loading import load
from jobs.config.run import GenerateConfig, RunConfig
from jobs.driver.plan import Plan, make_plan
from jobs.work.tuning import decision
from jobs.work.tuning.trials import Trials
from pipeline.run.commit import engine_of
from pipeline.run.directory import RunDirectory
from pipeline.run.progress.draft_choice import DraftChoice
from tests.jobs.conftest import Job
from tests.jobs.runs import content, problems

PAIR = Path(__file__).parents[3] / "examples" / "tiny_pair"
HEAD = str(PAIR / "head")
LIST = (HEAD, str(PAIR / "draft"), "suffix", "none")
FIXED = ("--engine.draft_length=fixed",)  # with which drafters cannot take turns, so that a trial decides
FEW = ("--sampling.max_tokens=24", "--engine.num_slots=4", *FIXED)


class Run(Job):
    """A run of the bundled pair in this process, with a list of drafts, or one."""

    def flags(self, *drafts: str, more: tuple[str, ...] = ()) -> list[str]:
        """Return its command line; one draft 'none' is a run without."""
        models = [f"--models.target={PAIR / 'target'}", *(f"--models.draft={each}" for each in drafts)]
        where = f"--input.path={self.source}", "--input.id_column=id", f"--output.path={self.output}"
        return [*where, *models, "--models.device=cpu", "--run.progress=none", "--run.rows_per_unit=4", *FEW, *more]

    def write(self, *drafts: str, more: tuple[str, ...] = ("--run.local",)) -> str:
        """Generate, and return what was printed."""
        code = generate.main(self.flags(*drafts, more=more))
        printed = self.printed()
        assert code == 0, printed
        assert problems(self.output) == []
        return " ".join(printed.split())

    def plan(self, *drafts: str, more: tuple[str, ...] = ("--run.local",)) -> Plan:
        """Return the plan of a configuration."""
        return make_plan(load(RunConfig, self.flags(*drafts, more=more), prog="test"))

    @property
    def choice(self) -> DraftChoice:
        """What was taken."""
        choice = DraftChoice.of(RunDirectory.open(str(self.output)).location)
        assert choice is not None
        return choice

    @property
    def drafters(self) -> list[str]:
        """The drafters that the footers of its parts name, in order."""
        parts = sorted((self.output / "data").glob("*.parquet"))
        return [str(engine_of(pq.read_schema(part))["drafter"]) for part in parts]


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a run over ten rows, which nothing has begun."""
    made = Run(tmp_path, (str(PAIR / "target"), HEAD), capsys)
    made.read(10)
    return made


def taking(drafter: str, draft: str | None = None) -> Callable[..., DraftChoice]:
    """Return what stands in the place of a trial, and takes this."""

    def tried(plan: Plan, *_: object) -> DraftChoice:
        assert plan.candidates is not None
        assert (drafter, draft) in plan.candidates.found
        return DraftChoice(named=plan.candidates.named, drafter=drafter, draft=draft, why="so it is")

    return tried


def never(*_: object) -> DraftChoice:
    raise AssertionError("a trial was made")


def test_a_run_with_a_list_writes_the_texts_of_one_draft_and_says_what_was_taken_and_why(run):
    printed = run.write(*LIST)
    found, taken, identity = content(run.output), run.choice, RunDirectory.open(str(run.output)).identity_digest
    assert {each["drafts"] for each in taken.measured} == {
        *("head (eagle3)", "head (hybrid)", "draft (model)", "draft (hybrid)", "suffix", "none")
    }
    assert f"draft: {taken}" in printed
    assert {*run.drafters} == {taken.drafter}
    report = json.loads((run.output / "report.json").read_text())
    assert report["draft_choice"]["drafter"] == taken.drafter
    settings = RunDirectory.open(str(run.output)).run["settings"]
    assert settings["models"]["draft"] == list(LIST)
    run.output = run.folder / "fixed"
    run.write(HEAD)
    assert content(run.output) == found
    assert RunDirectory.open(str(run.output)).identity_digest == identity
    assert "draft_choice" not in json.loads((run.output / "report.json").read_text())


@pytest.mark.parametrize(
    ("drafter", "draft"), [("eagle3", HEAD), ("suffix", None), ("none", None)], ids=["a head", "a lookup", "nothing"]
)
def test_what_the_trial_takes_is_what_the_parts_were_written_with(run, monkeypatch, drafter, draft):
    monkeypatch.setattr(decision, "tried", taking(drafter, draft))
    run.write(*LIST)
    assert run.drafters == [drafter] * 3


def test_who_goes_on_keeps_the_draft_until_the_list_changes_and_the_identity_stays(run, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(decision, "tried", taking("eagle3", HEAD))
        run.write(*LIST)
    found, (lost, *_) = content(run.output), sorted((run.output / "data").iterdir())
    identity = RunDirectory.open(str(run.output)).identity_digest
    lost.unlink()
    with monkeypatch.context() as patch:
        patch.setattr(decision, "tried", never)
        assert "so it is (by an earlier trial)" in run.write(*LIST)
    assert run.drafters == ["eagle3"] * 3
    lost.unlink()
    with monkeypatch.context() as patch:
        patch.setattr(decision, "tried", taking("suffix"))
        assert "draft: suffix: so it is" in run.write(*LIST[1:])
    assert run.drafters == ["suffix", "eagle3", "eagle3"]
    assert run.choice.named == LIST[1:]
    lost.unlink()
    run.write(HEAD)  # one draft is no list
    assert run.drafters == ["eagle3"] * 3
    assert content(run.output) == found
    assert RunDirectory.open(str(run.output)).identity_digest == identity


def test_a_draft_that_cannot_be_used_is_left_out_and_if_none_can_all_are_named(run, text_pair):
    other = text_pair[1]  # of another vocabulary
    plan = run.plan("nowhere/head", other, "suffix", "ngram")
    assert plan.candidates is not None
    assert plan.candidates.found == (("suffix", None), ("ngram", None))
    assert [line.partition(":")[0] for line in plan.candidates.left_out] == ["nowhere/head", other]
    with pytest.raises(ValueError, match=f"no draft in models.draft can be used: nowhere/head: .*; {other}: "):
        run.plan("nowhere/head", other)
    printed = run.write("nowhere/head", "suffix")
    assert "left out: nowhere/head: " in printed
    assert "draft: suffix: nothing else in models.draft can be used" in printed


def test_a_draft_whose_weights_tell_that_it_does_not_fit_is_left_out_by_the_trial(run, monkeypatch):
    real = Trials.parts_of

    def parts_of(trials: Trials, setting: Any) -> Any:
        if setting.draft is not None:
            raise ValueError("it agrees with its target in 3 % of all places")
        return real(trials, setting)

    monkeypatch.setattr(Trials, "parts_of", parts_of)
    printed = run.write(HEAD, "suffix")
    assert f"left out: {HEAD}: it agrees with its target in 3 %" in printed
    assert run.drafters == ["suffix"] * 3
    run.output = run.folder / "other"
    assert generate.main(run.flags(HEAD, str(PAIR / "draft"), more=("--run.local",))) == 1
    printed = run.printed()
    assert printed.count("it agrees with its target in 3 %") == 2, printed


@pytest.mark.usefixtures("lenient_verifier")
def test_a_text_that_depends_on_the_draft_ends_the_run_before_it_begins(run):
    assert generate.main(run.flags(*LIST, more=("--run.local", "--sampling.temperature=0"))) == 1
    assert "NOT IDENTICAL" in run.printed()
    assert not any((run.output / "data").iterdir())


def test_the_fastest_is_taken(run, monkeypatch):
    monkeypatch.setattr(Trials, "times_plain", lambda _, each: {"hybrid": 2.0, "eagle3": 1.5}.get(each.drafter, 1.0))
    run.write(*LIST)
    assert (run.choice.drafter, run.choice.draft) in {("hybrid", HEAD), ("hybrid", str(PAIR / "draft"))}
    assert run.choice.why == "2.00 times as fast as no draft"


def test_auto_is_a_list_where_a_trial_can_be_made_and_the_targets_own_head_elsewhere(run):
    plan = run.plan("auto")
    assert plan.candidates is not None
    assert plan.candidates.found == (("suffix", None), ("ngram", None), ("none", None))
    assert plan.candidates.left_out[0].startswith("mtp: an MTP head of")
    assert run.plan("auto", more=("--run.local", "--engine.verification=rejection")).candidates is None
    assert run.write("auto").count("left out: mtp:") == 1
    assert run.choice.named == ("auto",)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--engine.verification=rejection",), "engine.verification is 'rejection', under which the text depends"),
        (("--engine.verification=unadjusted",), "engine.verification is 'unadjusted', under which the text depends"),
        (("--engine.backend=vllm",), "but engine.backend 'vllm' is set"),
        (("--engine.drafter=hybrid",), "engine.drafter is 'hybrid'"),
        (("--placement=split",), "but placement 'split' is set"),
        (("--stages.count=2",), "but stages.count and stages.tensor_parallel is set"),
        (("--learn.every_rows=5",), "learn.every_rows is set"),
        (("--program.function=a:b",), "but program.function is set"),
        (("--task=score",), "but task 'score' is set"),
        (("--models.draft_vocabulary=map",), "draft_vocabulary is 'map', but models.draft is a list"),
    ],
)
def test_a_list_is_refused_by_name_where_no_trial_can_decide(run, flags, message):
    for command in (generate, retry):
        assert command.main(run.flags(*LIST, more=flags)) == 2
        assert message in " ".join(run.printed().split())


def test_the_endpoint_and_a_proof_refuse_a_list_and_tune_tries_it(run, tmp_path):
    models = [each for each in run.flags(*LIST) if each.startswith("--models")]
    assert serve.main([*models, "--serve.open", "--dry-run"]) == 2
    assert "models.draft is a list" in run.printed()
    assert prove.main(run.flags(*LIST)) == 2
    assert "models.draft is a list" in run.printed()
    assert tune.main(run.flags(*LIST, more=("--run.local", "--dry-run"))) == 0
    printed = " ".join(run.printed().split())
    assert "drafters: none, ngram, suffix, head (eagle3), head (hybrid), draft (model), draft (hybrid)" in printed


def test_a_list_reads_the_same_from_a_file_from_flags_and_back(run, tmp_path):
    config = load(GenerateConfig, run.flags(*LIST), "test")
    file = tmp_path / "run.yaml"
    file.write_text(as_yaml(config))
    assert yaml.safe_load(file.read_text())["models"]["draft"] == list(LIST)
    assert load(GenerateConfig, ["--config", str(file)], "test") == config
    one = load(GenerateConfig, run.flags(HEAD), "test").generator.models
    assert (one.draft, one.candidates) == (HEAD, ())


def test_the_plan_says_what_would_be_tried_and_later_what_was_taken(run, monkeypatch):
    monkeypatch.setattr(decision, "tried", taking("suffix"))
    dry = ("--run.local", "--dry-run")
    assert generate.main(run.flags(*LIST, more=dry)) == 0
    printed = " ".join(run.printed().split())
    why = "they take turns where draft lengths adapt, and engine.draft_length is fixed"
    assert f"draft: the fastest, by a trial of at most 60 s before the run ({why}): {HEAD} (eagle3)," in printed
    run.write(*LIST)
    assert generate.main(run.flags(*LIST, more=dry)) == 0
    assert "taken: by a trial before: suffix: so it is" in " ".join(run.printed().split())


@pytest.mark.ray
def test_on_a_cluster_the_trial_holds_what_an_engine_holds(run, monkeypatch):
    asked = list[dict[str, Any]]()
    real = ray.remote_function.RemoteFunction.options

    def options(function: Any, **given: Any) -> Any:
        asked.append(given)
        return real(function, **given)

    monkeypatch.setattr(ray.remote_function.RemoteFunction, "options", options)
    monkeypatch.setattr(decision, "in_own_thread", never)
    run.write(*LIST, more=("--actors.num_cpus=2", "--run.ray_address=local"))
    assert {"num_cpus": 2, "num_gpus": 0.0} in asked
    assert len(run.choice.measured) == 6
    assert {*run.drafters} == {run.choice.drafter}
