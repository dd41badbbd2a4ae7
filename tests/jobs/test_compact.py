"""`jobs.compact` as a command: what it prints, refuses and says in its help. No Ray is needed for that."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs import compact
from pipeline.run.directory import RunDirectory
from pipeline.run.fingerprint import content_hash
from tests.pipeline.made_up import ROUNDS, RUN, commit_rows, committed_run, sound_rows, unit


@pytest.fixture
def output(tmp_path: Path) -> Path:
    committed_run(tmp_path / "run")
    return tmp_path / "run"


def test_a_run_is_compacted_and_the_command_prints_what_it_holds(output, tmp_path, capsys):
    folder = tmp_path / "new" / "compact"
    assert compact.main([str(output), str(folder), "--rows-per-file", "4", "--include-errors"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.partition(",")[0] for line in printed[:4]] == [
        "data/part-00000.parquet: 4 rows",
        "data/part-00001.parquet: 4 rows",
        "data/part-00002.parquet: 2 rows",
        "errors/part-00000.parquet: 1 rows",
    ]
    assert printed[4].startswith(f"OK: 4 files in {folder}, 10 generations of 5 rows (1 failed rows are in errors/)")
    assert printed[5] == f"content {content_hash(RunDirectory.open(str(output)))}"
    assert sum(pq.read_table(path).num_rows for path in (folder / "data").iterdir()) == 10
    assert compact.main([str(output), str(folder)]) == 2
    assert "holds a complete compaction of this run already, but with other options" in capsys.readouterr().err


def test_the_error_for_an_incomplete_run_names_missing_units_and_the_option(output, tmp_path, capsys):
    (output / "data/part-000000000.parquet").unlink()
    assert compact.main([str(output), str(tmp_path / "out")]) == 1
    assert "1 of 2 units are missing, the first is unit 0 " in (error := capsys.readouterr().err)
    assert "--partial compacts what there is" in error
    assert not (tmp_path / "out").exists()
    assert compact.main([str(output), str(tmp_path / "out"), "--partial"]) == 0


def test_a_damaged_part_prints_one_line_and_leaves_no_file(output, tmp_path, capsys):
    part = output / "data/part-000000001.parquet"
    part.write_bytes(part.read_bytes()[:-5])
    assert compact.main([str(output), str(tmp_path / "out")]) == 1
    assert "data/part-000000001.parquet: damaged" in capsys.readouterr().err
    assert list((tmp_path / "out/data").iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{missing}", "{out}"], "no run here"),
        (["{run}", "what://ever"], "cannot open 'what://ever'"),
        (["{run}", "s3://me:secret@bucket/x"], "a URI with a password"),
        (["{run}", "{run}/data"], "is inside the run"),
        (["{run}", "{run}/run.json"], "is inside the run"),
        (["{run}", "{foreign}"], "is not empty and is no compaction"),
    ],
)
def test_bad_places_are_refused_in_one_line(output, tmp_path, capsys, arguments, message):
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign/notes.txt").write_text("x")
    places = {name: str(tmp_path / name) for name in ("missing", "out", "run", "foreign")}
    assert compact.main([argument.format(**places) for argument in arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert message in line


@pytest.mark.parametrize(
    "option",
    [
        ["--rows-per-file=0"],
        ["--rows-per-file=many"],
        ["--bytes-per-file=0"],
        ["--bytes-per-file=5 parsecs"],
        ["--rows-per-file=5", "--bytes-per-file=1MB"],
    ],
)
def test_impossible_file_sizes_are_refused(output, tmp_path, option, capsys):
    with pytest.raises(SystemExit) as ended:
        compact.main([str(output), str(tmp_path / "out"), *option])
    assert ended.value.code == 2
    assert "argument --" in capsys.readouterr().err


def test_a_compaction_keeps_the_rounds_of_the_rows_that_have_some(tmp_path):
    run = RunDirectory.create(str(tmp_path / "run"), RUN | {"has_rounds": True}, [unit(0), unit(1)])
    without = [{**row, "draft_rounds": None} for row in sound_rows(unit(1), [0, 1, 2])]
    commit_rows(run, unit(0), sound_rows(unit(0), [0, 1, 2]), [])
    commit_rows(run, unit(1), without, [])
    assert compact.main([run.location.path, str(tmp_path / "out"), "--rows-per-file", "5"]) == 0
    names = sorted((tmp_path / "out/data").iterdir())
    compacted = pa.concat_tables(pq.read_table(path) for path in names)
    parts = pa.concat_tables(pq.read_table(run.part_path(number).path) for number in (0, 1))
    assert compacted.schema.remove_metadata() == run.generations_schema.remove_metadata()
    assert compacted.to_pylist() == parts.to_pylist()
    assert compacted["draft_rounds"].to_pylist() == [ROUNDS] * 6 + [None] * 6
