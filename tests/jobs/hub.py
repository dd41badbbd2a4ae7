"""A hub of the tests, which huggingface_hub takes for the real one: datasets with branches, commits and large files."""

import base64
import hashlib
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote


class Hub(ThreadingHTTPServer):
    """A hub with one dataset. Parquet files are large for it: they are uploaded before the commit that names them."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _HubHandler)
        self.branches: dict[str, dict[str, bytes]] = {"main": {}}
        self.tags: list[str] = []
        self.large: dict[str, bytes] = {}  # by sha256, whether or not a commit names them
        self.uploads = 0
        self.refuses_commits = False
        self.commits: list[list[str]] = []
        self.is_private: bool | None = None

    @property
    def files(self) -> dict[str, bytes]:
        """The files of the main branch."""
        return self.branches["main"]


class _HubHandler(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        if "/tree/" in self.path:
            if self.server.is_private is None:
                self._answer({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})
                return
            branch = self.path.partition("?")[0].partition("/tree/")[2].strip("/")
            if branch not in self.server.branches:
                self._answer({"error": "Invalid rev id"}, 404, {"X-Error-Code": "RevisionNotFound"})
                return
            self._answer([_entry(name, content) for name, content in self.server.branches[branch].items()])
        elif "/resolve/" in self.path:
            branch, _, name = self.path.partition("/resolve/")[2].partition("/")
            self._file(self.server.branches[branch][unquote(name)])
        elif self.path.partition("?")[0].endswith("/refs"):
            names = self.server.branches
            refs = [{"name": name, "ref": f"refs/heads/{name}", "targetCommit": "0" * 40} for name in names]
            tags = [{"name": name, "ref": f"refs/tags/{name}", "targetCommit": "0" * 40} for name in self.server.tags]
            self._answer({"branches": refs, "converts": [], "tags": tags})
        elif "/commits/" in self.path:
            first = {
                "id": "f" * 40,
                "authors": [],
                "date": "2026-01-01T00:00:00.000Z",
                "title": "initial",
                "message": "",
            }
            self._answer([first])
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
            modes = [(name, "lfs" if name.endswith(".parquet") else "regular") for name in names]
            self._answer({"files": [{"path": name, "uploadMode": mode, "shouldIgnore": False} for name, mode in modes]})
        elif self.path.endswith("/info/lfs/objects/batch"):
            self._answer({"transfer": "basic", "objects": [self._upload(each) for each in json.loads(body)["objects"]]})
        elif "/branch/" in self.path:
            assert json.loads(body)["startingPoint"] == "f" * 40
            self.server.branches[self.path.partition("/branch/")[2]] = {}
            self._answer({})
        elif "/commit/" in self.path and self.server.refuses_commits:
            self._answer({"error": "not now"}, 403)
        elif "/commit/" in self.path:
            self._commit(
                self.path.partition("/commit/")[2].partition("?")[0],
                [json.loads(line) for line in body.splitlines() if line.strip()],
            )
        else:
            self._answer({"error": self.path}, 404)

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        digest = hashlib.sha256(content).hexdigest()
        assert self.path == f"/large/{digest}"
        self.server.large[digest] = content
        self.server.uploads += 1
        self._answer({})

    def _upload(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """Return where a large file is to be sent; nowhere if it is here."""
        if wanted["oid"] in self.server.large:
            return wanted
        return {**wanted, "actions": {"upload": {"href": f"http://{self.headers['Host']}/large/{wanted['oid']}"}}}

    def _commit(self, branch: str, lines: list[dict[str, Any]]) -> None:
        names = []
        for line in lines:
            value, files = line["value"], self.server.branches[branch]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.server.large[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[value["path"]]
            if line["key"] != "header":
                names.append(value["path"])
        self.server.commits.append(names)
        url = f"http://{self.headers['Host']}/datasets/owner/name/commit/{len(self.server.commits):040x}"
        self._answer({"commitUrl": url, "commitOid": f"{len(self.server.commits):040x}", "success": True})

    def _file(self, content: bytes) -> None:
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


def _entry(name: str, content: bytes) -> dict[str, Any]:
    entry = {"type": "file", "path": name, "size": len(content), "oid": _git_digest(content)}
    if not name.endswith(".parquet"):
        return entry
    large = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
    return {**entry, "oid": "0" * 40, "lfs": large}
