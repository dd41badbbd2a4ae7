"""The package: what it brings with it, and a run as a table."""

import shutil
import subprocess
import sys
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

import dray
from pipeline.run.directory import RunDirectory
from tests.jobs.runs import generations


def _python(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=120)


def test_importing_brings_neither_torch_nor_ray_nor_pyarrow(tmp_path):
    code = "import sys, dray; print(*{'torch', 'ray', 'pyarrow', 'transformers', 'pydantic'} & {*sys.modules})"
    ended = _python(tmp_path, f"import sys; sys.path.append({str(Path.cwd())!r}); {code}")
    assert (ended.stdout.strip(), ended.stderr) == ("", "")


@pytest.mark.parametrize("name", ["pipeline", "jobs"])
def test_a_folder_beside_a_script_that_hides_our_packages_is_named(name, tmp_path):
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").touch()
    ended = _python(tmp_path, f"import sys; sys.path.append({str(Path.cwd())!r}); import dray; dray.load")
    assert f"ImportError: {tmp_path}/{name} has the name of Dray's package '{name}'" in ended.stderr


def test_a_file_beside_a_script_that_hides_our_packages_is_named(tmp_path):
    (tmp_path / "jobs.py").touch()
    ended = _python(tmp_path, f"import sys; sys.path.append({str(Path.cwd())!r}); import dray; dray.load")
    assert f"ImportError: {tmp_path}/jobs.py has the name of Dray's package 'jobs'" in ended.stderr


def test_every_public_name_is_there():
    assert [name for name in dray.__all__ if getattr(dray, name) is None] == []
    assert dir(dray) == sorted(dray.__all__)
    with pytest.raises(AttributeError, match="module 'dray' has no attribute 'generat'"):
        dray.generat  # noqa: B018


def test_a_run_is_a_lazy_table_of_its_committed_parts_in_order(plain_run):
    run = dray.load(plain_run / "out")
    assert run.to_table().to_pylist() == generations(plain_run / "out")
    assert run.schema == RunDirectory.open(str(plain_run / "out")).generations_schema
    assert duckdb.sql("select kind, count(*) from run group by kind order by kind").fetchall() == [
        ("b", 10),
        ("c", 10),
        ("chat", 10),
    ]


@pytest.fixture
def finished_run(plain_run, tmp_path):
    """A run that the test may change."""
    return Path(shutil.copytree(plain_run / "out", tmp_path / "run"))


def test_files_that_are_not_the_runs_are_not_read(finished_run):
    whole = dray.load(finished_run).to_table()
    first = finished_run / "data/part-000000000.parquet"
    for name in ("part-000000099.parquet", "part-000000001.parquet.tmp", "mine.parquet"):
        (finished_run / "data" / name).write_bytes(first.read_bytes()[:100])
    assert dray.load(finished_run).to_table() == whole
    first.unlink()
    assert dray.load(finished_run).count_rows() < whole.num_rows
    for part in (finished_run / "data").glob("part-0000000*.parquet"):
        part.unlink()
    assert dray.load(finished_run).to_table() == whole.slice(0, 0)
    with pytest.raises(ValueError, match="no run here"):
        dray.load(finished_run / "data")


def test_a_flipped_bit_in_a_part_is_an_error(finished_run):
    part = finished_run / "data/part-000000001.parquet"
    content = bytearray(part.read_bytes())
    content[200] ^= 1
    part.write_bytes(content)
    with pytest.raises((OSError, pa.ArrowException)):
        dray.load(finished_run).to_table()
