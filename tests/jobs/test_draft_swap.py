"""A run whose draft is replaced while it works, or before it goes on, writes the corpus that it would have written."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from actors.workers import engine_worker
from actors.workers.engine_worker import EngineWorker
from jobs import report, swap_draft
from jobs.driver import execution
from pipeline.counts import COUNTED_COLUMNS, count_generations
from pipeline.run.directory import RunDirectory
from pipeline.run.progress.draft_versions import DraftVersions
from pipeline.run.unit_rows import tally
from tests.jobs.runs import content, generations, problems, wait_until

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_address")]
TWO = ("--actors.min_actors=2", "--actors.max_actors=2", "--actors.units_in_flight=1", "--engine.draft_length=fixed")
ONE = ("--actors.min_actors=1", "--actors.max_actors=1", "--actors.units_in_flight=1", "--engine.num_slots=1")
SAMPLING = ("--sampling.temperature=0.8", "--engine.draft_length=fixed", "--sampling.max_tokens=24")
SPLIT = ("--placement=split", "--drafts.num_cpus=0.5", "--drafts.timeout_s=30")


def swapping(run: Path, draft: str, deaths: Path | None = None, behind: int = 1) -> type[EngineWorker]:
    """Return a generator that offers a draft once `behind` units are committed, and begins all later ones with it.

    The first process that has the draft dies before it begins a unit, if there is a folder `deaths`, which records it.
    """

    class Swapping(EngineWorker):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            engine_worker.LOOK_EVERY_S = 0.1
            super().__init__(*args, **kwargs)

        def _read(self, unit: Any) -> Any:
            if len(list(run.glob("data/*.parquet"))) >= behind:
                with suppress(FileExistsError):
                    (run.parent / "offered").touch(exist_ok=False)  # one process offers it
                    DraftVersions(str(run)).offer(draft)
                wait_until(lambda: self.engine.loop.engine.draft_version == 1)
                if deaths is not None and not (deaths / "died").exists():
                    (deaths / "died").touch()
                    os._exit(9)
            return super()._read(unit)

    return Swapping


@pytest.fixture(scope="module")
def other_draft(text_pair: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the folder of a draft of the same sizes that guesses less well, with the same tokenizer."""
    folder = tmp_path_factory.mktemp("other")
    return _changed(text_pair[1], folder, lambda weight: weight + 0.03 * torch.randn(weight.shape))


def _changed(draft: str, folder: Path, change: Any) -> str:
    torch.manual_seed(3)
    for file in Path(draft).iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    tensors = load_file(folder / "model.safetensors")
    changed = {name: change(weight).contiguous() for name, weight in tensors.items()}
    save_file(changed, folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)


@pytest.mark.parametrize("flags", [(), pytest.param(SPLIT, marks=pytest.mark.slow)], ids=["colocated", "split"])
def test_a_draft_that_is_replaced_in_the_middle_of_a_run_changes_no_token(
    job, plain_run, other_draft, monkeypatch, flags
):
    job.source = plain_run / "in.jsonl"
    monkeypatch.setattr(execution, "EngineWorker", swapping(job.output, other_draft))
    assert job.generate(*TWO, *flags) == 0, job.printed()
    assert content(job.output) == content(plain_run / "out")
    assert problems(job.output) == []
    rows = generations(job.output)
    assert {row["draft_version"] for row in rows} == {0, 1}
    assert sum(row["num_accepted_tokens"] for row in rows if row["draft_version"]) > 0
    run = RunDirectory.open(str(job.output))
    groups = tally(run, ["draft_version", "kind"], COUNTED_COLUMNS, count_generations)
    assert {version for version, _ in groups} == {"0", "1"}
    assert sum(counts.num_generations for counts in groups.values()) == 30
    job.printed()
    assert report.main([str(job.output), "--by", "draft_version,kind"]) == 0
    assert "draft_version" in job.printed()


def test_a_process_that_replaces_one_that_died_begins_with_the_newest_draft(
    job, plain_run, other_draft, tmp_path, monkeypatch
):
    job.source = plain_run / "in.jsonl"
    monkeypatch.setattr(execution, "EngineWorker", swapping(job.output, other_draft, tmp_path))
    assert job.generate(*TWO) == 0, job.printed()
    assert (tmp_path / "died").exists()
    assert content(job.output) == content(plain_run / "out")
    assert {row["draft_version"] for row in generations(job.output)} == {0, 1}


def test_a_run_that_goes_on_later_begins_with_the_draft_that_was_offered_meanwhile(job, plain_run, other_draft):
    job.source = plain_run / "in.jsonl"
    job.begin()
    assert swap_draft.main([str(job.output), other_draft]) == 0
    said = job.printed()
    assert f"{other_draft} is version 1 of the draft" in said
    assert "No driver works on the run now" in said
    assert job.generate() == 0
    assert content(job.output) == content(plain_run / "out")
    assert {row["draft_version"] for row in generations(job.output)} == {1}
    assert swap_draft.main([str(job.output), other_draft]) == 2
    assert "is complete" in job.printed()


def test_a_draft_that_cannot_be_loaded_is_refused_once_and_the_run_goes_on_without_it(job, other_draft, tmp_path):
    job.read(16)
    job.begin(*SAMPLING)
    DraftVersions(str(job.output)).offer(str(tmp_path / "nowhere"))
    assert job.generate(*SAMPLING) == 0
    assert {row["draft_version"] for row in generations(job.output)} == {0}
    (version,) = DraftVersions(str(job.output)).all()
    assert (version.state, "no model at" in version.reason) == ("refused", True)
    assert job.printed().count("draft refused") == 1


def test_drafts_that_do_not_fit_a_run_are_refused_in_one_line(job, other_draft, tmp_path):
    job.read(8)
    job.begin(*SAMPLING)
    (tmp_path / "nan").mkdir()
    (tmp_path / "wide").mkdir()
    not_finite = _changed(job.pair[1], tmp_path / "nan", lambda weight: weight / 0)
    wide = AutoModelForCausalLM.from_pretrained(job.pair[1]).config
    wide.intermediate_size = 96
    AutoModelForCausalLM.from_config(wide).save_pretrained(tmp_path / "wide")
    for draft, message in (
        (not_finite, "not finite"),
        (str(tmp_path / "wide"), "intermediate_size 96"),
        (str(tmp_path / "nowhere"), "no model at"),
    ):
        assert swap_draft.main([str(job.output), draft]) == 2
        said = job.printed()
        assert message in said
        assert said.count("\n") == 1
    assert DraftVersions(str(job.output)).all() == []


@pytest.mark.parametrize(
    ("flag", "message"),
    [("--engine.verification=rejection", "verification is 'rejection'"), ("--engine.drafter=suffix", "is 'suffix'")],
)
def test_a_run_whose_draft_must_stay_says_why(job, other_draft, flag, message):
    job.read(8)
    job.begin(flag)
    assert swap_draft.main([str(job.output), other_draft]) == 2
    assert message in job.printed()


def test_a_run_begun_before_there_were_versions_goes_on_without_their_column(job, monkeypatch):
    job.is_local = True
    from jobs.driver import plan

    create = RunDirectory.create
    monkeypatch.setattr(
        plan.RunDirectory,
        "create",
        lambda path, run, units: create(path, {k: v for k, v in run.items() if k != "has_draft_version"}, units),
    )
    job.read(8)
    assert job.generate() == 0
    assert "draft_version" not in generations(job.output)[0]
    assert problems(job.output) == []


@pytest.mark.slow
def test_engines_that_took_a_draft_back_let_the_run_go_back_too(job, tmp_path, monkeypatch):
    (tmp_path / "bad").mkdir()
    bad = _changed(job.pair[1], tmp_path / "bad", lambda weight: torch.randn(weight.shape))
    job.read(80)
    undisturbed = job.undisturbed(*SAMPLING)

    output = job.output

    class Judging(swapping(output, bad, behind=3)):  # type: ignore[misc]
        """The last units wait until their engine has gone back."""

        def _read(self, unit: Any) -> Any:
            num_done = len(list(output.glob("data/*.parquet")))
            if num_done < 4:
                return super()._read(unit)
            if num_done >= 8:
                wait_until(lambda: self.engine.loop.engine.draft_version == 0)
            return EngineWorker._read(self, unit)

    monkeypatch.setattr(execution, "EngineWorker", Judging)
    assert job.generate(*SAMPLING, *ONE) == 0, job.printed()
    assert content(job.output) == content(undisturbed)
    (version,) = DraftVersions(str(job.output)).all()
    assert version.state == "rolled back"
    assert "of its tokens were accepted" in version.reason
    assert {row["draft_version"] for row in generations(job.output)} == {0, 1}
