"""Scoring is timed one text at a time and in batches, in turns."""

import json
from pathlib import Path

from benchmarks.rounds import scoring


def test_both_ways_are_timed_on_the_same_rows(tmp_path, capsys):
    lines = Path("examples/prompts.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "few.jsonl").write_text("".join(lines[::100]))
    scoring.main(["--prompts", str(tmp_path / "few.jsonl"), "--repeats", "1", "--json", str(tmp_path / "found.json")])
    found = json.loads((tmp_path / "found.json").read_text())
    assert [line["texts"] for line in found["lines"]] == ["prompts", "choices", "choices behind examples"]
    assert all(line["batched_rows_per_second"] > 0 and line["times"] > 0 for line in found["lines"])
    assert "one at a time" in capsys.readouterr().out
