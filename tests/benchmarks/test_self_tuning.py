"""A run that tunes itself is timed beside fixed drafters, and writes their text."""

import json

import pytest

from benchmarks.self_tuning.__main__ import main
from checks.tables import self_tuning_table


@pytest.mark.slow
def test_a_workload_is_written_in_turns_and_its_line_is_printed_and_kept(tmp_path, capsys):
    main(["--seconds", "0.1", "--repeats", "1", "--only", "8", "--json", str(tmp_path / "found.json")])
    (line,) = json.loads((tmp_path / "found.json").read_text())["lines"]
    assert {*line["speeds_at_first"]} == {"bad draft (model)", "bad draft (hybrid)", "suffix", "ngram", "none"}
    assert line["times"] > 0
    assert line["turns"][0]["bad draft (model)"]["num_rounds"] > 0
    assert "16 rows, a bad draft" in capsys.readouterr().out
    assert "| 16 rows, a bad draft | 0.8 | " in self_tuning_table(json.loads((tmp_path / "found.json").read_text()))
