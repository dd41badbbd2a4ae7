"""`jobs.publish`: a run in a folder, in a store and on a hub of these tests, without secrets, and only once."""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from datasets import load_dataset
from huggingface_hub import constants

from jobs import publish
from pipeline.run.directory import RunDirectory
from tests.pipeline.made_up import RUN, commit_rows, error, generation, sound_rows, unit

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


def test_a_published_run_reads_back_as_a_dataset_with_a_card_and_the_report(tmp_path: Path) -> None:
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
    assert sorted(path.name for path in place.iterdir()) == ["README.md", "data", "report.html", "report.json"]


def test_a_second_call_uploads_only_what_is_missing_or_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, place = _run(tmp_path), tmp_path / "published"
    command = [run.location.name, str(place), "--bytes-per-file=1"]
    assert publish.main(command) == 0
    first = {path.name: path.stat().st_mtime_ns for path in place.rglob("*.*")}
    (place / "data/part-00001.parquet").unlink()
    (place / "report.json").write_text("{}")
    capsys.readouterr()
    assert publish.main(command) == 0
    uploaded = [line for line in capsys.readouterr().out.splitlines() if line.endswith(": uploaded")]
    assert uploaded == ["data/part-00001.parquet: uploaded", "report.json: uploaded"]
    assert (place / "README.md").stat().st_mtime_ns == first["README.md"]
    assert publish.main([run.location.name, str(place)]) == 0  # one large file in place of the small ones
    assert [path.name for path in (place / "data").iterdir()] == ["part-00000.parquet"]
    assert pq.read_table(place / "data").num_rows == 10


@pytest.mark.parametrize(
    ("row", "run", "said"),
    [
        ({"prompt": f"my token is {TOKEN}."}, {}, "prompt (a token of the Hugging Face hub, data/part-00000.parquet"),
        ({"text": f"{KEY} is it"}, {}, "text (an AWS access key, data/part-00000.parquet"),
        ({"text": "-----BEGIN RSA PRIVATE KEY-----\nMII"}, {}, "text (a private key"),
        (
            {},
            {"settings": {"vllm_env": {"HF_TOKEN": "x"}}},
            "settings.vllm_env.HF_TOKEN (by its name",
        ),
        ({}, {"settings": {"chat": {"system_prompt": f"use {KEY}"}}}, "settings.chat.system_prompt (an AWS access key"),
    ],
)
def test_what_looks_like_a_secret_is_refused_by_its_field_until_it_is_meant(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], row: dict[str, Any], run: dict[str, Any], said: str
) -> None:
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


def test_words_that_only_resemble_secrets_are_published(tmp_path: Path) -> None:
    run = RunDirectory.create(str(tmp_path / "run"), {**RUN, "models": MODELS}, [unit(0, num_rows=1)])
    text = "the hf_hub has AKIA in it, a task-oriented sk-learn, and BEGIN PRIVATE KEY of nothing"
    commit_rows(run, unit(0, num_rows=1), [generation(0, text=text)], [])
    assert publish.main([run.location.name, str(tmp_path / "published")]) == 0


def test_an_incomplete_run_is_published_only_if_that_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, place = _run(tmp_path), tmp_path / "published"
    Path(run.part_path(1).path).unlink()
    assert publish.main([run.location.name, str(place)]) == 1
    assert "is not complete: unit 1" in capsys.readouterr().err
    assert not place.exists()
    assert publish.main([run.location.name, str(place), "--partial"]) == 0
    assert _card((place / "README.md").read_text())["dray"]["complete"] is False


def test_a_damaged_run_is_not_published_even_in_part(tmp_path: Path) -> None:
    run, place = _run(tmp_path), tmp_path / "published"
    Path(run.part_path(1).path).write_bytes(b"damaged")
    assert publish.main([run.location.name, str(place), "--partial"]) == 1
    assert not place.exists()


def test_a_destination_with_other_data_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    run, other, place = _run(tmp_path / "one"), _run(tmp_path / "two"), tmp_path / "published"
    assert publish.main([run.location.name, str(place)]) == 0
    assert publish.main([other.location.name, str(place)]) == 1
    assert "holds another run" in capsys.readouterr().err
    for name in ("README.md", "data/part-00000.parquet"):
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
        ("{run}/published", "is inside the run"),
    ],
)
def test_a_destination_that_is_none_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str, said: str
) -> None:
    run = _run(tmp_path)
    assert publish.main([run.location.name, place.format(run=run.location.name)]) == 2
    assert said in capsys.readouterr().err


def test_a_dry_run_says_what_would_be_uploaded_and_uploads_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, place = _run(tmp_path), tmp_path / "published"
    assert publish.main([run.location.name, str(place), "--dry-run"]) == 0
    assert "README.md:" in capsys.readouterr().out
    assert not place.exists()
    assert publish.main([run.location.name, "hf://datasets/owner/name", "--dry-run"]) == 0
    assert "3 files for hf://datasets/owner/name" in capsys.readouterr().out


class Hub(ThreadingHTTPServer):
    """A hub with one dataset, of which every file is small: it has what commits bring, and counts them."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _HubHandler)
        self.files: dict[str, bytes] = {}
        self.commits: list[list[str]] = []
        self.is_private: bool | None = None


class _HubHandler(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        if "/tree/" in self.path:
            if self.server.is_private is None:
                self._answer({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})
                return
            listed = [
                {"type": "file", "path": name, "size": len(content), "oid": _git_digest(content)}
                for name, content in self.server.files.items()
            ]
            self._answer(listed)
        elif "/resolve/main/" in self.path:
            self._file(self.path.partition("/resolve/main/")[2])
        else:
            self._answer({"id": "owner/name", "sha": "0" * 40, "private": True, "siblings": []})

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == "/api/repos/create":
            self.server.is_private = json.loads(body).get("visibility") == "private"
            self._answer({"url": f"http://{self.headers['Host']}/datasets/owner/name"})
        elif self.path == "/api/validate-yaml":
            self._answer({"errors": [], "warnings": []})
        elif "/preupload/" in self.path:
            names = [file["path"] for file in json.loads(body)["files"]]
            self._answer({"files": [{"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in names]})
        elif "/commit/" in self.path:
            self._commit([json.loads(line) for line in body.splitlines() if line.strip()])
        else:
            self._answer({"error": self.path}, 404)

    def _commit(self, lines: list[dict[str, Any]]) -> None:
        names = []
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                self.server.files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "deletedFile":
                del self.server.files[value["path"]]
            if line["key"] != "header":
                names.append(value["path"])
        self.server.commits.append(names)
        url = f"http://{self.headers['Host']}/datasets/owner/name/commit/{len(self.server.commits):040x}"
        self._answer({"commitUrl": url, "commitOid": f"{len(self.server.commits):040x}", "success": True})

    def _file(self, name: str) -> None:
        content = self.server.files[name]
        self.send_response(200)
        for header, value in (("ETag", f'"{_git_digest(content)}"'), ("X-Repo-Commit", "0" * 40)):
            self.send_header(header, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def _answer(self, value: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        for header, said in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(header, said)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


def _git_digest(content: bytes) -> str:
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """Run a hub that huggingface_hub takes for the real one."""
    server = Hub()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_TOKEN", "a-token-of-the-tests")
    yield server
    server.shutdown()
    server.server_close()


def test_a_run_on_the_hub_is_private_and_a_second_call_uploads_only_what_is_missing(tmp_path: Path, hub: Hub) -> None:
    run = _run(tmp_path)
    command = [run.location.name, "hf://datasets/owner/name", "--bytes-per-file=1"]
    assert publish.main(command) == 0
    assert hub.is_private is True
    names = sorted(hub.files)
    assert names == [
        "README.md",
        *(f"data/part-{number:05d}.parquet" for number in range(len(names) - 2)),
        "report.json",
    ]
    assert [commit[-1] for commit in hub.commits] == ["README.md"]
    del hub.files["data/part-00001.parquet"]
    hub.files["report.json"] = b"{}"
    assert publish.main(command) == 0
    assert hub.commits[1:] == [["data/part-00001.parquet", "report.json"]]
    assert publish.main(command) == 0
    assert len(hub.commits) == 2
    assert publish.main(command[:2]) == 0  # one large file in place of the small ones, which are removed
    assert hub.commits[-1] == names[2:-1]
    assert sorted(hub.files) == ["README.md", "data/part-00000.parquet", "report.json"]


def test_a_hub_that_cannot_be_reached_is_one_line(
    tmp_path: Path, hub: Hub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = _run(tmp_path)
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)  # between its retries
    hub.shutdown()
    hub.server_close()
    assert publish.main([run.location.name, "hf://datasets/owner/name"]) == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert "listing hf://datasets/owner/name failed" in line
    assert "check the network and the token" in line
