"""Weights on a node's own disk: what was copied is what was fetched, or the pod does not begin."""

import subprocess
from pathlib import Path

import pytest

from k8s.weights import SUMS, copy, main, write_sums

MODEL = "org/model"


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder as the hub's client fills it: files under their digests, and links that have their names."""
    folder = tmp_path / "shared"
    for name in ("model", "other"):
        home = folder / "hub" / f"models--org--{name}"
        (home / "blobs").mkdir(parents=True)
        (home / "blobs" / "abc").write_bytes(name.encode() * 1000)
        (home / "snapshots" / "1").mkdir(parents=True)
        (home / "snapshots" / "1" / "model.safetensors").symlink_to("../../blobs/abc")
        (home / "refs").mkdir()
        (home / "refs" / "main").write_text("1")
    (folder / ".locks").mkdir()
    (folder / ".locks" / "lock").write_text("")
    assert write_sums(folder) == 4
    return folder


def test_a_model_is_copied_with_its_links_and_no_other_one(shared, tmp_path):
    assert copy(shared, tmp_path / "node", [MODEL]) == 2
    link = tmp_path / "node" / "hub" / "models--org--model" / "snapshots" / "1" / "model.safetensors"
    assert link.is_symlink()
    assert link.read_bytes() == b"model" * 1000
    assert {path.name for path in (tmp_path / "node" / "hub").iterdir()} == {"models--org--model"}


def test_the_checksums_are_those_of_sha256sum(shared):
    done = subprocess.run(["sha256sum", "--check", "--strict", SUMS], cwd=shared, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_file_that_differs_from_its_checksum_is_no_copy(shared, tmp_path, capsys):
    blob = shared / "hub" / "models--org--model" / "blobs" / "abc"
    blob.write_bytes(b"x" + blob.read_bytes()[1:])
    assert main(["copy", str(shared), str(tmp_path / "node"), MODEL]) == 1
    assert f"{blob} has sha256" in capsys.readouterr().err
    assert not list((tmp_path / "node").rglob("abc*"))


def test_a_copy_that_was_cut_off_is_completed_and_a_complete_one_is_not_written_again(shared, tmp_path):
    copy(shared, tmp_path / "node")
    copied = tmp_path / "node" / "hub" / "models--org--model" / "blobs" / "abc"
    other = tmp_path / "node" / "hub" / "models--org--other" / "blobs" / "abc"
    copied.write_bytes(b"half")
    before = other.stat()
    assert copy(shared, tmp_path / "node") == 4
    assert copied.read_bytes() == b"model" * 1000
    assert (other.stat().st_ino, other.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize(
    ("models", "said"), [(["org/missing"], "has no model 'org/missing'"), ([MODEL], "SHARED_BLOBS")]
)
def test_a_model_that_is_not_there_as_a_whole_is_refused(models, said, shared, tmp_path, capsys):
    blobs = shared / "hub" / "models--org--model" / "blobs"
    (shared / "hub" / "shared").mkdir()
    (blobs / "abc").rename(shared / "hub" / "shared" / "abc")
    (blobs / "abc").symlink_to("../../shared/abc")
    write_sums(shared)
    assert main(["copy", str(shared), str(tmp_path / "node"), *models]) == 1
    assert said in capsys.readouterr().err


def test_a_folder_without_checksums_is_refused_with_the_command_that_writes_them(tmp_path, capsys):
    assert main(["copy", str(tmp_path), str(tmp_path / "node")]) == 1
    assert "python k8s/weights.py sums" in capsys.readouterr().err
    assert main(["cp", "a", "b"]) == 2
