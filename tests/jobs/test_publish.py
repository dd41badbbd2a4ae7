"""`jobs.publish`: a run in a folder, in a store and on a hub of these tests, without secrets, and only once."""

import hashlib
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from datasets import load_dataset
from huggingface_hub import constants

from jobs import publish
from pipeline.run.directory import RunDirectory
from pipeline.storage.location import Location
from tests.jobs.hub import Hub
from tests.pipeline.made_up import RUN, commit_rows, error, exit_code_of, generation, sound_rows, unit

IDENTITY = {"target": "5ha", "seed": 7, "dtype": "float32", "verification": "coupled", "sampling": {"temperature": 0.5}}
MODELS = {"target": "/home/someone/models/big", "draft": "/c/models--org--small/snapshots/0123456789abcdef"}
TOKEN = "hf_" + "a" * 34
KEY = "AKIA" + "B" * 16


def _run(folder: Path, **changes: Any) -> RunDirectory:
    """Return a complete run of two units, in which a row failed."""
    said = {**RUN, "identity": IDENTITY, "models": MODELS, "exact": "proved", **changes}
    run = RunDirectory.create(str(folder / "run"), said, [unit(0), unit(1)])
    commit_rows(run, unit(0), sound_rows(unit(0), [0, 1, 2]), [])
    commit_rows(run, unit(1), sound_rows(unit(1), [0, 2]), [error(unit(1), 1)])
    run.write_report({"complete": True})
    return run


def _card(text: str) -> dict[str, Any]:
    metadata = yaml.safe_load(text.split("---\n")[1])
    assert isinstance(metadata, dict)
    return metadata


def _named(place: Path, number: int) -> str:
    """Return the name of a file of the data that the card names."""
    pattern = _card((place / "README.md").read_text())["configs"][0]["data_files"][0]["path"]
    return str(pattern).replace("*", f"part-{number:05d}")


def test_a_published_run_reads_back_as_a_dataset_with_a_card_and_the_report(tmp_path):
    run, place = _run(tmp_path), tmp_path / "published"
    (Path(run.location.path) / "report.html").write_text("<p>the report</p>")
    assert publish.main([run.location.name, str(place), "--title=Ravens", "--license=apache-2.0"]) == 0
    dataset = load_dataset(str(place), split="train")
    assert len(dataset) == 10
    assert set(dataset["text"][:]) == {"abcde"}
    card = (place / "README.md").read_text()
    metadata = _card(card)
    assert (metadata["pretty_name"], metadata["license"], metadata["size_categories"]) == (
        "Ravens",
        "apache-2.0",
        ["n<1K"],
    )
    facts = metadata["dray"]
    assert (facts["target"], facts["draft"]) == ("big", "org/small@0123456789ab")
    assert (facts["seed"], facts["rows"], facts["failed_rows"], facts["exact"]) == (7, 6, 1, "proved")
    assert facts["acceptance_rate"] == pytest.approx(0.6)
    assert (facts["target_sha256"], facts["identity_sha256"]) == ("5ha", run.identity_digest)
    assert "someone" not in card
    assert sorted(path.name for path in place.iterdir()) == ["README.md", "data", "dray", "report.html", "report.json"]
    (folder,) = (place / "data").iterdir()
    assert metadata["configs"][0]["data_files"] == [{"split": "train", "path": f"data/{folder.name}/*.parquet"}]


def test_a_second_call_uploads_only_what_is_missing_or_changed(tmp_path, capsys):
    run, place = _run(tmp_path), tmp_path / "published"
    command = [run.location.name, str(place), "--bytes-per-file=1"]
    assert publish.main(command) == 0
    first = {path.name: path.stat().st_mtime_ns for path in place.rglob("*.*")}
    (place / _named(place, 1)).unlink()
    (place / "report.json").write_text("{}")
    capsys.readouterr()
    assert publish.main(command) == 0
    uploaded = [line for line in capsys.readouterr().out.splitlines() if line.endswith(": uploaded")]
    assert uploaded == [f"{_named(place, 1)}: uploaded", "report.json: uploaded"]
    assert (place / "README.md").stat().st_mtime_ns == first["README.md"]
    assert publish.main([run.location.name, str(place)]) == 0  # one large file in place of the small ones
    assert [path.name for path in place.glob("data/**/*.parquet")] == ["part-00000.parquet"]
    assert pq.read_table(place / "data").num_rows == 10
    assert sorted(path.name for path in (place / "dray").iterdir()) == [
        "errors.parquet",
        "manifest.parquet",
        "run.json",
    ]


def test_the_folder_of_the_data_has_the_name_that_older_versions_gave_it(tmp_path):
    run, place = _run(tmp_path), tmp_path / "published"
    assert publish.main([run.location.name, str(place), "--bytes-per-file=1"]) == 0
    (folder,) = (place / "data").iterdir()
    contents = [hashlib.sha256(file.read_bytes()).digest() for file in sorted(folder.iterdir())]
    assert len(contents) > 1
    assert folder.name == hashlib.sha256(b"".join(contents)).hexdigest()[:16]


@pytest.mark.parametrize(
    ("row", "run", "said"),
    [
        ({"prompt": f"my token is {TOKEN}."}, {}, "prompt (a token of the Hugging Face hub, data/"),
        ({"text": f"{KEY} is it"}, {}, "text (an AWS access key, data/"),
        ({"text": "-----BEGIN RSA PRIVATE KEY-----\nMII"}, {}, "text (a private key"),
        (
            {},
            {"settings": {"vllm_env": {"HF_TOKEN": "x"}}},
            "settings.vllm_env.HF_TOKEN (by its name",
        ),
        ({}, {"settings": {"chat": {"system_prompt": f"use {KEY}"}}}, "settings.chat.system_prompt (an AWS access key"),
    ],
)
def test_what_looks_like_a_secret_is_refused_by_its_field_until_it_is_meant(tmp_path, capsys, row, run, said):
    directory = RunDirectory.create(
        str(tmp_path / "run"), {**RUN, "identity": IDENTITY, "models": MODELS, **run}, [unit(0, num_rows=1)]
    )
    commit_rows(directory, unit(0, num_rows=1), [generation(0, **row)], [])
    place = tmp_path / "published"
    assert publish.main([directory.location.name, str(place)]) == 1
    printed = capsys.readouterr().err
    assert said in printed
    assert not {TOKEN, KEY} & set(printed.replace(".", " ").split())
    assert not place.exists()
    field = printed.rpartition("--allow-secrets-in ")[2].strip()
    assert publish.main([directory.location.name, str(place), f"--allow-secrets-in={field}"]) == 0


def test_words_that_only_resemble_secrets_are_published(tmp_path):
    run = RunDirectory.create(str(tmp_path / "run"), {**RUN, "models": MODELS}, [unit(0, num_rows=1)])
    text = "the hf_hub has AKIA in it, a task-oriented sk-learn, and BEGIN PRIVATE KEY of nothing"
    commit_rows(run, unit(0, num_rows=1), [generation(0, text=text)], [])
    assert publish.main([run.location.name, str(tmp_path / "published")]) == 0


def test_an_incomplete_run_is_published_only_if_that_is_asked_for(tmp_path, capsys):
    run, place = _run(tmp_path), tmp_path / "published"
    Path(run.part_path(1).path).unlink()
    assert publish.main([run.location.name, str(place)]) == 1
    assert "is not complete: unit 1" in capsys.readouterr().err
    assert not place.exists()
    assert publish.main([run.location.name, str(place), "--partial"]) == 0
    assert _card((place / "README.md").read_text())["dray"]["complete"] is False


def test_a_damaged_run_is_not_published_even_in_part(tmp_path):
    run, place = _run(tmp_path), tmp_path / "published"
    Path(run.part_path(1).path).write_bytes(b"damaged")
    assert publish.main([run.location.name, str(place), "--partial"]) == 1
    assert not place.exists()


def test_a_destination_with_other_data_is_left_alone(tmp_path, capsys):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    run, other, place = _run(tmp_path / "one"), _run(tmp_path / "two"), tmp_path / "published"
    assert publish.main([run.location.name, str(place)]) == 0
    assert publish.main([other.location.name, str(place)]) == 1
    assert "holds another run" in capsys.readouterr().err
    for name in ("README.md", "report.json"):
        mine = tmp_path / "mine" / name.replace("/", "-") / name
        mine.parent.mkdir(parents=True)
        mine.write_text("mine")
        assert publish.main([run.location.name, str(tmp_path / "mine" / name.replace("/", "-"))]) == 1
        assert f"has {name}, which this command has not put there" in capsys.readouterr().err
        assert mine.read_text() == "mine"
    foreign = tmp_path / "foreign/data/part-00007.parquet"
    foreign.parent.mkdir(parents=True)
    foreign.write_bytes(b"of somebody")
    assert publish.main([run.location.name, str(tmp_path / "foreign")]) == 1
    assert "has data/part-00007.parquet, which this command has not put there" in capsys.readouterr().err
    assert foreign.read_bytes() == b"of somebody"


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("hf://datasets/owner", "is no dataset of the hub"),
        ("hf://models/owner/name", "is no dataset of the hub"),
        ("hf://datasets/owner/name@" + "0a" * 20, "is a commit by its form, and commits never change; name a branch"),
        ("hf://datasets/owner/name@0A1B2C3", "is a commit by its form"),
        ("{run}/published", "is inside the run"),
    ],
)
def test_a_destination_that_is_none_is_refused(tmp_path, capsys, place, said):
    run = _run(tmp_path)
    assert publish.main([run.location.name, place.format(run=run.location.name)]) == 2
    assert said in capsys.readouterr().err


def test_a_dry_run_says_what_would_be_uploaded_and_uploads_nothing(tmp_path, capsys):
    run, place = _run(tmp_path), tmp_path / "published"
    assert publish.main([run.location.name, str(place), "--dry-run"]) == 0
    assert "README.md:" in capsys.readouterr().out
    assert not place.exists()
    assert publish.main([run.location.name, "hf://datasets/owner/name", "--dry-run"]) == 0
    assert "6 files for hf://datasets/owner/name" in capsys.readouterr().out


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """Run a hub that huggingface_hub takes for the real one."""
    server = Hub()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # a hub without Xet's own storage takes Git LFS
    monkeypatch.setenv("HF_TOKEN", "a-token-of-the-tests")
    yield server
    server.shutdown()
    server.server_close()


def test_a_run_on_the_hub_is_private_and_a_second_call_uploads_only_what_is_missing(tmp_path, hub):
    run = _run(tmp_path)
    command = [run.location.name, "hf://datasets/owner/name", "--bytes-per-file=1"]
    assert publish.main(command) == 0
    assert hub.is_private is True
    names = sorted(name for name in hub.files if not name.startswith("dray/"))
    assert len(hub.files) == len(names) + 3
    folder = names[1].rpartition("/")[0]
    assert names == [
        "README.md",
        *(f"{folder}/part-{number:05d}.parquet" for number in range(len(names) - 2)),
        "report.json",
    ]
    assert [commit[-1] for commit in hub.commits] == ["README.md"]
    assert hub.uploads == len(names) - 2 + 2, "all Parquet files, which are large for this hub"
    del hub.files[names[2]]
    hub.files["report.json"] = b"{}"
    assert publish.main(command) == 0
    assert hub.commits[1:] == [[names[2], "report.json"]]
    assert publish.main(command) == 0
    assert len(hub.commits) == 2
    assert publish.main(command[:2]) == 0  # one large file in place of the small ones, which are removed
    new = sorted(name for name in hub.files if not name.startswith("dray/"))
    assert [new[0], new[2]] == ["README.md", "report.json"]
    assert len(new) == 3
    assert new[1].endswith("/part-00000.parquet")
    assert len(hub.commits) == 3, "one commit adds, removes and replaces the card"
    assert sorted(hub.commits[-1]) == sorted(["README.md", new[1], *names[1:-1]])


def test_a_second_publication_that_ends_before_its_commit_changes_nothing_on_the_hub(tmp_path, hub, capsys):
    run = _run(tmp_path)
    command = [run.location.name, "hf://datasets/owner/name", "--bytes-per-file=1"]
    assert publish.main(command) == 0
    before = dict(hub.files)
    hub.refuses_commits = True
    capsys.readouterr()
    assert publish.main(command[:2]) == 1
    assert ": uploaded" not in capsys.readouterr().out, "no reader sees what no commit names"
    assert hub.files == before
    num_uploads, hub.refuses_commits = hub.uploads, False
    assert publish.main(command[:2]) == 0
    assert hub.uploads == num_uploads, "what was uploaded is not uploaded again"


def test_a_branch_that_does_not_exist_is_made_without_the_files_of_another(tmp_path, hub):
    run = _run(tmp_path)
    assert publish.main([run.location.name, "hf://datasets/owner/name"]) == 0
    main = dict(hub.files)
    (tmp_path / "two").mkdir()
    other = _run(tmp_path / "two")
    command = [other.location.name, "hf://datasets/owner/name@second"]
    assert publish.main(command) == 0
    assert hub.branches["second"] != main
    assert hub.branches["second"].keys() >= {"README.md", "report.json"}
    assert hub.files == main
    assert publish.main(command) == 0, "it is there now"
    assert len(hub.commits) == 2


def test_a_tag_is_refused_by_name_and_gets_no_branch_beside_it(tmp_path, hub, capsys):
    run = _run(tmp_path)
    hub.tags.append("v1.0")
    assert publish.main([run.location.name, "hf://datasets/owner/name@v1.0"]) == 1
    assert "v1.0 is a tag, which never changes; name a branch" in capsys.readouterr().err
    assert list(hub.branches) == ["main"]


def test_a_hub_that_cannot_be_reached_is_one_line(tmp_path, hub, capsys, monkeypatch):
    run = _run(tmp_path)
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)  # between its retries
    hub.shutdown()
    hub.server_close()
    assert publish.main([run.location.name, "hf://datasets/owner/name"]) == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert "listing hf://datasets/owner/name failed" in line
    assert "check the network and the token" in line


def _publish_and_die(steps: int, command: list[str]) -> None:
    """Publish, in a process of its own, which is killed before the change of a file that follows on `steps` others."""
    left, remove = [steps], Location.remove

    def removed(location: Location) -> None:  # Arrow deletes files, which Python does not tell of
        dies("os.remove", (location.path, ""))
        remove(location)

    def dies(event: str, arguments: tuple[Any, ...]) -> None:
        changes = event in ("os.rename", "os.remove") or (event == "open" and "x" in str(arguments[1]))
        if changes and any(command[1] in str(each) for each in arguments[:2]):
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    Location.remove = removed  # type: ignore[method-assign]
    sys.addaudithook(dies)
    sys.exit(publish.main(command))


def _read_as_a_user(place: Path) -> list[tuple[int, int]] | None:
    """Return the rows that the card names, in order; None while it names no data."""
    if not (place / "README.md").exists():
        assert not list(place.glob("data/**/*")), "without a card, readers take what is there for the whole"
        return None
    files = list(place.glob(_card((place / "README.md").read_text())["configs"][0]["data_files"][0]["path"]))
    if not files:
        return None
    rows = pq.read_table(sorted(map(str, files)), columns=["row_id", "sample"]).to_pylist()
    return sorted((row["row_id"], row["sample"]) for row in rows)


@pytest.mark.parametrize("is_second", [False, True], ids=["the first publication", "another one"])
def test_a_publisher_that_is_killed_at_any_step_never_leaves_a_row_twice_or_loses_one(tmp_path, is_second):
    run, place = _run(tmp_path), tmp_path / "published"
    wanted = sorted((row["row_id"], row["sample"]) for row in pq.read_table(f"{run.location.path}/data").to_pylist())
    again = tmp_path / "before"
    if is_second:
        assert publish.main([run.location.name, str(again), "--bytes-per-file=1"]) == 0
    killed, step = 0, 0
    while True:
        if is_second:
            shutil.rmtree(place, ignore_errors=True)
            shutil.copytree(again, place)
        code = exit_code_of(_publish_and_die, step, [run.location.name, str(place)])
        assert code in (0, -signal.SIGKILL)
        found = _read_as_a_user(place)
        assert found == wanted or (found is None and not is_second and code)
        if code == 0:
            break
        killed, step = killed + 1, step + 1
        if not is_second:
            shutil.rmtree(place, ignore_errors=True)
    assert killed >= 8
    assert len(load_dataset(str(place), split="train")) == len(wanted)
    assert len({path.parent for path in place.glob("data/*/*.parquet")}) == 1


def test_a_first_publication_that_was_killed_goes_on(tmp_path):
    run, place = _run(tmp_path), tmp_path / "published"
    command = [run.location.name, str(place)]
    assert exit_code_of(_publish_and_die, 4, command) == -signal.SIGKILL
    assert "being published" in (place / "README.md").read_text()
    assert publish.main(command) == 0
    assert len(load_dataset(str(place), split="train")) == 10
