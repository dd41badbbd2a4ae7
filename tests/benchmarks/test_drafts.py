"""The drafts of a pair are timed in turns with plain decoding, and write its text."""

import json
from itertools import product

from benchmarks import drafts
from checks import figures
from checks.figures import HEADS, SPEED
from checks.tables import demo_table, heads_table, speed_table
from decoding.heads import attach
from examples.tiny_pair import with_heads
from jobs.work.tuning import engine_turns

RECORDED = json.loads(SPEED.read_text())


def test_every_draft_writes_the_plain_text_in_its_turns(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(engine_turns, "TURN_SECONDS", 1e-4)  # a step at a time: else each ends in its first turn
    few = ["--one-in", "100", "--batches", "2", "--new-tokens", "12", "--repeats", "1", "--num-draft-tokens", "3"]
    drafts.main([*few, "--json", str(tmp_path / "found.json")])
    found = json.loads((tmp_path / "found.json").read_text())
    names = dict.fromkeys(["none", drafts.TWIN, *(line["draft"] for line in RECORDED["lines"])])
    assert [line["draft"] for line in found["lines"]] == list(names)
    assert all(line["tokens_per_second"] > 0 for line in found["lines"])
    assert "\n| 2 rows at once | " in speed_table(found)
    assert "head (eagle3)" in capsys.readouterr().out


def test_heads_that_were_trained_here_are_measured_beside_their_own_targets(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(engine_turns, "TURN_SECONDS", 1e-4)
    monkeypatch.setattr(attach, "LEAST_AGREEMENT", 0.0)  # so few steps teach next to nothing
    with_heads.main(["--out", str(tmp_path), "--steps", "2"])
    assert {each.name for each in tmp_path.iterdir()} == {"mtp", "assistant", "dflash2", "qwen3_5", "gemma4"}
    few = ["--one-in", "60", "--batches", "2", "--new-tokens", "8", "--heads", str(tmp_path)]
    drafts.main([*few, "--repeats", "1", "--json", str(tmp_path / "found.json")])
    found, recorded = json.loads((tmp_path / "found.json").read_text()), json.loads(HEADS.read_text())
    names = list(dict.fromkeys(line["draft"] for line in recorded["lengths"]))
    kinds = dict.fromkeys(line["kind"] for line in found["lengths"])
    assert [(line["draft"], line["kind"]) for line in found["lengths"]] == [*product(names, kinds)]
    measured = [each for name in names for each in ("none", drafts.TWIN, name)]
    assert [line["draft"] for line in found["lines"]] == measured
    assert all(line["tokens_a_round"] >= 1 for line in found["lengths"])
    assert capsys.readouterr().out.count("times plain") == 1
    drafts.main([*few, "--repeats", "0", "--json", str(tmp_path / "lengths.json")])
    shown = capsys.readouterr().out
    assert "Acceptance lengths, 4 draft tokens always" in shown
    assert "times plain" not in shown
    assert json.loads((tmp_path / "lengths.json").read_text())["lengths"] == found["lengths"]


def test_a_table_of_heads_has_their_speeds_once_they_are_measured():
    recorded = json.loads(HEADS.read_text())
    names = list(dict.fromkeys(line["draft"] for line in recorded["lengths"]))
    lines = [
        {"draft": name, "rows_at_once": at_once, "times_plain": 1.0 + at_once / 100}
        for at_once in (1, 16)
        for name in ("none", *names)
    ]
    with_speeds = heads_table(recorded | {"lines": lines, "settings": recorded["settings"] | {"repeats": 7}})
    without = heads_table(recorded | {"lines": []})
    for name in names:
        (line,) = (line for line in without.splitlines() if line.startswith(f"| {name} |"))
        assert f"\n{line} 1.01 | 1.16 |\n" in with_speeds
    assert "medians of 7" in with_speeds
    assert "medians" not in without


def test_heads_that_were_to_be_timed_and_have_no_speeds_are_noticed(monkeypatch, tmp_path, capsys):
    recorded = json.loads(HEADS.read_text())
    emptied = recorded | {"lines": [], "settings": recorded["settings"] | {"repeats": 7}}
    (tmp_path / "heads.json").write_text(json.dumps(emptied))
    monkeypatch.setattr(figures, "HEADS", tmp_path / "heads.json")
    assert figures.main([]) == 1
    assert "no head is left untimed: ['DFlash 2 head', 'EAGLE-3 head'" in capsys.readouterr().err


def test_readme_has_the_lengths_of_other_heads_beside_those_of_the_demo():
    recorded = json.loads(HEADS.read_text())
    shown = demo_table({"EAGLE-3 head": []}, recorded)
    assert shown.startswith("| kind | rows | tokens | EAGLE-3 head | DFlash 2 head | MTP head | assistant |\n")
    assert recorded["machine"]["processor"] in shown
