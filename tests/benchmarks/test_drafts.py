"""The drafts of a pair are timed in turns with plain decoding, and write its text."""

import json

from benchmarks import drafts
from checks.figures import HEADS, SPEED, heads_table, read_lines, speed_table, table
from decoding.heads import assistant_head, attach
from examples.tiny_pair import with_heads
from jobs.work.tuning import engine_turns

RECORDED = json.loads(SPEED.read_text())


def test_every_draft_writes_the_plain_text_in_its_turns(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(engine_turns, "TURN_SECONDS", 1e-4)  # a step at a time: else each ends in its first turn
    few = ["--one-in", "100", "--batches", "2", "--new-tokens", "12", "--repeats", "1", "--num-draft-tokens", "3"]
    drafts.main([*few, "--json", str(tmp_path / "found.json")])
    found = json.loads((tmp_path / "found.json").read_text())
    assert [line["draft"] for line in found["lines"]] == [line["draft"] for line in RECORDED["lines"][:5]]
    assert all(line["tokens_per_second"] > 0 for line in found["lines"])
    assert "\n| 2 rows at once | " in speed_table(found)
    assert "head (eagle3)" in capsys.readouterr().out


def test_heads_that_were_trained_here_are_measured_beside_their_own_targets(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(engine_turns, "TURN_SECONDS", 1e-4)
    for module in (attach, assistant_head):
        monkeypatch.setattr(module, "LEAST_AGREEMENT", 0.0)  # so few steps teach next to nothing
    with_heads.main(["--out", str(tmp_path), "--steps", "4"])
    assert not {each.name for each in tmp_path.iterdir()} ^ {"mtp", "assistant", "dflash2", "qwen3_5", "gemma4"}
    few = ["--one-in", "60", "--batches", "2", "--new-tokens", "12", "--heads", str(tmp_path)]
    drafts.main([*few, "--repeats", "1", "--json", str(tmp_path / "found.json")])
    found, recorded = json.loads((tmp_path / "found.json").read_text()), json.loads(HEADS.read_text())
    names = list(dict.fromkeys(line["draft"] for line in recorded["lengths"]))
    assert list(dict.fromkeys(line["draft"] for line in found["lengths"])) == names
    assert [line["draft"] for line in found["lines"]] == [each for name in names for each in ("none", name)]
    assert all(line["tokens_a_round"] >= 1 for line in found["lengths"])
    assert heads_table(found).count("\n| ") == 2 + len(names)
    assert "| kind | rows | tokens | EAGLE-3 head | DFlash 2 head |" in table({"EAGLE-3 head": read_lines()}, recorded)
    drafts.main([*few, "--repeats", "0", "--json", str(tmp_path / "lengths.json")])
    assert not json.loads((tmp_path / "lengths.json").read_text())["lines"]
    assert "Acceptance lengths, 4 draft tokens always" in capsys.readouterr().out
