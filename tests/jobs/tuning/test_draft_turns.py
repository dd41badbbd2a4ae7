"""A run with a list of drafts lets them take turns in its engines: no text depends on it, and the report has it."""

import json
import shutil
from pathlib import Path

import pytest

from actors.engine.loop import EngineLoop
from actors.run_notes import RunNotes
from actors.units.ledger import Ledger
from actors.units.ledgers import LocalLedger
from actors.workers.turns import exchange
from decoding import Engine, EngineOptions
from decoding.pace.learned import Learned
from jobs import generate, swap_draft
from jobs.work.tuning import decision
from pipeline.run.directory import RunDirectory
from pipeline.run.progress.draft_choice import DraftChoice, DraftTurns
from tests.jobs.runs import content
from tests.jobs.tuning.test_decision import HEAD, LIST, PAIR, Run, never

ADAPTIVE = ("--run.local", "--engine.draft_length=adaptive")
NAMES = ["head (eagle3)", "head (hybrid)", "draft (model)", "draft (hybrid)", "suffix", "none"]


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a run over ten rows, of which no trial may be made before."""
    made = Run(tmp_path, (str(PAIR / "target"), HEAD), capsys)
    made.read(10)
    monkeypatch.setattr(decision, "tried", never)
    return made


def turns_of(run: Run) -> dict:
    """Return what its report says of turns."""
    found: dict = json.loads((run.output / "report.json").read_text())["draft_turns"]
    return found


def test_a_run_whose_drafts_take_turns_writes_the_texts_of_one_draft_and_goes_on_with_the_leader(run, monkeypatch):
    printed = run.write(*LIST, more=ADAPTIVE)
    found, said = content(run.output), turns_of(run)
    assert {each["drafts"] for each in said["drafts"]} == {*NAMES}
    assert said["leader"] in NAMES
    assert sum(each["rounds"] for each in said["drafts"]) > 20
    assert f"drafts in turn: {said['leader']} led at the end" in printed
    assert run.drafters == [", ".join(NAMES)] * 3
    lost, *_ = sorted((run.output / "data").iterdir())
    lost.unlink()
    begun = RunDirectory.open(str(run.output))
    begun.unmark_success()
    assert swap_draft.main([str(run.output), HEAD]) == 2
    assert "several take turns" in " ".join(run.printed().split())
    DraftTurns(leader="suffix", ratios={}, drafts=()).write(begun.location)
    turns = run.output / "drafts" / "turns.json"
    kept = turns.read_bytes()
    DraftChoice(named=("suffix", "none"), drafter="suffix", draft=None, why="an older list").write(begun.location)
    assert not turns.exists()
    turns.write_bytes(kept)
    heard, real = list[Learned](), Engine.hear
    monkeypatch.setattr(Engine, "hear", lambda engine, learned: heard.append(learned) or real(engine, learned))
    run.write(*LIST, more=ADAPTIVE)
    assert [each.leader for each in heard][:1] == ["suffix"]
    assert content(run.output) == found
    assert not (turns.parent / "choice.json").exists()
    run.output = run.folder / "fixed"
    run.write(HEAD)
    assert content(run.output) == found
    assert "draft_turns" not in json.loads((run.output / "report.json").read_text())


@pytest.mark.parametrize(
    ("drafts", "flags", "why"),
    [
        (LIST, ("--engine.draft_length=fixed",), "they take turns where draft lengths adapt"),
        (("suffix", "none"), ADAPTIVE, "there is one drafter"),
        (LIST, (*ADAPTIVE, "--actors.memory=16MiB"), "the drafts take"),
    ],
)
def test_the_plan_says_why_drafts_cannot_take_turns(run, drafts, flags, why):
    assert generate.main(run.flags(*drafts, more=("--dry-run", *flags))) == 0
    assert f"by a trial of at most 60 s before the run ({why}" in " ".join(run.printed().split())


def test_the_likeliest_drafter_begins_and_the_plan_names_all_each_by_a_name_of_its_own(run, tmp_path):
    plan = run.plan("suffix", str(PAIR / "draft"), HEAD, more=ADAPTIVE)
    assert plan.candidates is not None
    assert [name for _, _, name in plan.candidates.turns] == [*NAMES[:5]]
    draft, head = str(PAIR / "draft"), str(PAIR / "head")
    other = str(shutil.copytree(draft, tmp_path / "draft"))
    turns = run.plan(draft, other, head, more=ADAPTIVE).candidates.turns
    assert [name for drafter, _, name in turns if drafter == "model"] == [f"{draft} (model)", f"{other} (model)"]
    assert turns[0] == ("eagle3", head, "head (eagle3)")
    assert generate.main(run.flags(*LIST, more=("--dry-run", *ADAPTIVE))) == 0
    printed = " ".join(run.printed().split())
    assert f"the fastest, while they take turns in each engine: {HEAD} (eagle3)," in printed
    assert [printed.count(f"memory: {each} ") for each in ("target", HEAD, draft)] == [1, 1, 1]


def engine_loop() -> EngineLoop:
    turns = [("model", str(PAIR / "draft"), "draft (model)"), ("suffix", None, "suffix"), ("ngram", None, "ngram")]
    options = EngineOptions(num_slots=2, max_model_len=64)
    return EngineLoop(Engine.load(str(PAIR / "target"), options=options, device="cpu", turns=turns))


def settle(loop: EngineLoop, way: int) -> None:
    loop.engine.lanes[0].schedule.trials._settle(way)


def test_a_second_engine_begins_with_the_leader_of_the_first_one():
    first, second, ledger = engine_loop(), engine_loop(), LocalLedger(Ledger())
    settle(first, 1)
    exchange(first, ledger, "first")
    exchange(second, ledger, "second")
    second._thread.submit(lambda: None).result()  # it has heard by then
    assert second.engine.learned.leader == "suffix"
    settle(second, 0)
    for _ in range(2):
        exchange(second, ledger, "second")
        second._thread.submit(lambda: None).result()
    assert second.engine.learned.leader == "draft (model)", "the same word is heard once"


def test_a_ledger_adds_up_what_engines_have_done():
    notes, learned = RunNotes(), engine_loop().engine.learned
    assert notes.learned() is None
    assert notes.note_learned("a", learned) is None
    learned.tallies["suffix"].num_rounds = 5
    assert notes.note_learned("b", learned) == learned
    assert notes.learned().tallies["suffix"].num_rounds == 10


@pytest.mark.ray
def test_engines_on_a_cluster_tell_what_led(run):
    more = (
        "--engine.draft_length=adaptive",
        "--run.ray_address=local",
        "--actors.max_actors=2",
        "--actors.min_actors=2",
    )
    run.write(*LIST, more=more)
    said = turns_of(run)
    assert {each["drafts"] for each in said["drafts"]} == {*NAMES}
    assert sum(each["rounds"] for each in said["drafts"]) > 20
