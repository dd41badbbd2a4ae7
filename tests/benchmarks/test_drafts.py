"""The drafts of a pair are timed in turns with plain decoding, and write its text."""

import json

from benchmarks import drafts
from checks.figures import SPEED, speed_table
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
