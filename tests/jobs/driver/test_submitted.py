"""A submitted job runs in a copy of its folder that the cluster deletes."""

from pathlib import Path

import pytest

from jobs import generate, serve, train_draft
from jobs.driver.cluster import check_submitted, submitted_copy
from tests.jobs.runs import arguments, prompts, write_jsonl


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The copy in which Ray runs a submitted job, which is the working directory."""
    folder = tmp_path / "session_1" / "runtime_resources" / "working_dir_files" / "_ray_pkg_0123abcd"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "in.jsonl").write_text("{}\n")
    monkeypatch.chdir(folder)
    return folder


def test_a_folder_of_ones_own_is_no_copy(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert submitted_copy() is None
    check_submitted({"output.path": "out"}, {"input.path": "nowhere.jsonl"})


def test_a_job_that_starts_in_a_folder_of_its_copy_runs_in_the_copy(copy, monkeypatch):
    assert submitted_copy() == copy
    monkeypatch.chdir(copy / "data")
    assert submitted_copy() == copy


@pytest.mark.parametrize("path", ["out", "./out", "data/../out"])
def test_an_output_in_the_copy_is_refused_by_the_name_of_its_option(copy, path):
    with pytest.raises(ValueError, match=f"^learn.path '{path}' lies in the copy .* shared?.* s3://"):
        check_submitted({"output.path": None, "learn.path": path}, {})
    with pytest.raises(ValueError, match=r"output\.path"):
        check_submitted({"output.path": str(copy / "out")}, {})


@pytest.mark.usefixtures("copy")
def test_an_output_elsewhere_is_taken(tmp_path):
    check_submitted({"output.path": "s3://bucket/run", "learn.path": str(tmp_path), "run.storage": "~/checkpoints"}, {})


@pytest.mark.usefixtures("copy")
def test_what_is_read_from_the_copy_is_noted_and_what_was_not_copied_is_refused(capsys):
    check_submitted({}, {"input.path": ["data/in.jsonl", "s3://bucket/in.jsonl"], "models.target": "Qwen/Qwen3-8B"})
    (note,) = capsys.readouterr().err.splitlines()
    assert note.startswith("note: input.path 'data/in.jsonl' is read from the copy")
    for option, path in [("input.path", "data/other.jsonl"), ("models.draft", "./draft"), ("models.target", "a/b/c")]:
        with pytest.raises(ValueError, match=f"^{option} '{path}' is not in the copy .*gitignore"):
            check_submitted({}, {option: path})


@pytest.mark.usefixtures("copy")
@pytest.mark.parametrize(
    ("command", "flags", "option"),
    [
        (train_draft.main, ["--models.target=/m", "--models.draft=/d", "--corpus.path=data/corpus"], "corpus.path"),
        (train_draft.main, ["--models.target=/model", "--corpus.path=/c", "--models.draft=a/b/c"], "models.draft"),
        (serve.main, ["--models.target=a/b/c", "--serve.open"], "models.target"),
    ],
)
def test_commands_that_read_what_was_not_copied_are_refused_by_the_name_of_the_option(command, flags, option, capsys):
    outputs = ["--output.path=/out", "--run.storage=/checkpoints"] if command is train_draft.main else []
    assert command([*flags, *outputs]) == 2
    assert f"error: {option} " in (said := capsys.readouterr().err)
    assert "is not in the copy of your folder" in said


def test_a_run_whose_output_lies_in_the_copy_is_refused_before_anything_is_loaded(copy, text_pair, tmp_path, capsys):
    source = write_jsonl(tmp_path / "in.jsonl", prompts(2))
    assert generate.main(arguments(source, Path("out"), text_pair)) == 2
    assert "output.path 'out' lies in the copy of your folder" in capsys.readouterr().err
    assert not (copy / "out").exists()
