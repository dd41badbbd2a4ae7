"""The output of a training is there whole or not at all, and nothing else is touched."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.storage.location import Location
from tests.pipeline.stores import CREDENTIALS, running_s3_server, s3_uri
from training.trainer.output import finished_provenance, publish
from training.trainer.train import checkpoints_beside

PROVENANCE = {"identity": "this", "steps": 3}


@pytest.fixture(scope="module")
def store() -> Iterator[Location]:
    """A folder in an object store."""
    with pytest.MonkeyPatch.context() as environment, running_s3_server() as address:
        for name, value in CREDENTIALS.items():
            environment.setenv(name, value)
        yield Location.parse(s3_uri(address, "bucket/drafts"))


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    (tmp_path / "draft" / "chat_templates").mkdir(parents=True)
    (tmp_path / "draft" / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "draft" / "chat_templates" / "a.jinja").write_text("template")
    return tmp_path / "draft"


def test_the_output_is_the_draft_and_its_provenance(draft: Path, tmp_path: Path) -> None:
    output = Location.parse(str(tmp_path / "new" / "out"))
    assert finished_provenance(output, "this") is None
    publish(draft, PROVENANCE, output)
    assert sorted(output.files()) == ["chat_templates/a.jinja", "model.safetensors", "provenance.json"]
    assert finished_provenance(output, "this") == PROVENANCE


@pytest.mark.parametrize("found", ["other.txt", "provenance.json"])
def test_a_folder_of_something_else_is_refused_and_not_touched(found: str, draft: Path, tmp_path: Path) -> None:
    output = Location.parse(str(tmp_path / "out"))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / found).write_text(json.dumps({"identity": "another"}))
    with pytest.raises(ValueError, match="is not empty and is not what this training writes"):
        finished_provenance(output, "this")
    with pytest.raises(OSError, match="not empty"):
        publish(draft, PROVENANCE, output)
    assert list(output.files()) == [found]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".out")]


def test_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("text")
    with pytest.raises(ValueError, match="is a file"):
        finished_provenance(Location.parse(str(tmp_path / "out")), "this")


def test_an_upload_that_fails_leaves_no_draft_and_is_done_again(
    draft: Path, store: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = store.child("out")

    def stopped(location: Location, content: bytes, temporary: Location) -> None:
        real(location, content, temporary)
        if location.short_name == "provenance.json":
            raise OSError("the machine is gone")

    from training.trainer import output as module

    real = module.replace_file
    monkeypatch.setattr(module, "replace_file", stopped)
    with pytest.raises(OSError, match="the machine is gone"):
        publish(draft, PROVENANCE, output)
    monkeypatch.undo()
    assert "_SUCCESS" not in output.files()
    assert finished_provenance(output, "this") is None  # to be written again
    with pytest.raises(ValueError, match="is not empty"):
        finished_provenance(output, "another")
    publish(draft, PROVENANCE, output)
    assert finished_provenance(output, "this") == PROVENANCE
    assert sorted(output.files()) == ["_SUCCESS", "chat_templates/a.jinja", "model.safetensors", "provenance.json"]


@pytest.mark.parametrize(
    ("output", "checkpoints"),
    [
        ("drafts/new", "drafts/.new.training"),
        ("new/", ".new.training"),
        ("/drafts/a?b", "/drafts/.a?b.training"),
        ("s3://bucket/new?scheme=http", "s3://bucket/.new.training?scheme=http"),
    ],
)
def test_checkpoints_lie_beside_the_output(output: str, checkpoints: str) -> None:
    assert checkpoints_beside(output) == checkpoints
