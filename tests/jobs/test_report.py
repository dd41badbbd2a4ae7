"""`jobs.report`: its table, and what it says where there is nothing to add up. No Ray is needed for that."""

import pytest

from jobs import report
from pipeline.run.directory import RunDirectory
from tests.pipeline.made_up import RUN, committed_run, unit


def test_the_table_has_a_line_for_each_value_and_one_for_all(tmp_path, capsys):
    path = committed_run(tmp_path / "run").location.name
    assert report.main([path, "--by", "sample,finish_reason"]) == 0
    title, *lines = capsys.readouterr().out.splitlines()
    assert title.strip() == f"Acceptance in {path}"
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if line.startswith("│")]
    assert cells == [
        ["0", "length", "5", "25", "0.600", "2.50", "1.00 0.50"],
        ["1", "length", "5", "25", "0.600", "2.50", "1.00 0.50"],
        ["all", "", "10", "50", "0.600", "2.50", "1.00 0.50"],
    ]
    assert report.main([path]) == 0
    assert "│ run │          10 │     50 │ 0.600 │   2.50 │ 1.00 0.50" in capsys.readouterr().out


@pytest.mark.parametrize("task", ["generate", "score"])
def test_a_run_without_parts_says_so_and_knows_its_columns(tmp_path, capsys, task):
    run = RunDirectory.create(str(tmp_path / "run"), {**RUN, "task": task}, [unit()])
    for flags in ([], ["--by", "sample"]):
        assert report.main([run.location.name, *flags]) == 0
        assert capsys.readouterr().out == f"{run.location.name} has no parts yet: no unit of it is committed\n"
    assert report.main([run.location.name, "--by", "colour"]) == 2
    said = capsys.readouterr().err
    assert "error: the output has no column 'colour'; it has row_id" in said
    assert said.endswith("A new run takes others over from the input with input.carry_columns\n")
