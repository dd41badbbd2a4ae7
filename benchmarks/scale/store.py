"""A folder as a bucket of an S3 server that answers late: what a run's commands need of the protocol, and no more.

A real server of it in Python (moto) takes milliseconds for a request and seconds for a listing; this one takes a tenth
of one, so that it is the delay that is measured.
"""

import asyncio
import os
import subprocess
import sys
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import formatdate
from http.client import HTTPMessage, parse_headers
from io import BytesIO
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "benchmark",
    "AWS_SECRET_ACCESS_KEY": "nothing",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
_KEYS_PER_PAGE = 1000  # as S3 has it


@contextmanager
def late_store(folder: Path, delay_ms: float) -> Iterator[str]:
    """Serve the folder as `s3://bucket/` from a process of its own; yield the query of its URIs."""
    command = [sys.executable, "-m", "benchmarks.scale.store", str(folder), str(delay_ms)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        try:
            yield f"endpoint_override=127.0.0.1:{port}&scheme=http"
        finally:
            server.terminate()


class _Store:
    def __init__(self, folder: Path, delay_s: float) -> None:
        self._folder, self._delay_s = folder, delay_s
        self._listings: dict[str, list[os.DirEntry[str]]] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of a connection until it ends."""
        try:
            while True:
                head = BytesIO(await reader.readuntil(b"\r\n\r\n"))
                method, target, _ = head.readline().decode().split(" ")
                headers = parse_headers(head)
                if headers.get("Expect"):
                    writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                body = await _body(reader, headers)
                await asyncio.sleep(self._delay_s)
                status, more, content = self._answer(method, target, headers, body)
                more = {"Content-Length": str(len(content)), **more}
                lines = [f"HTTP/1.1 {status} .", *(f"{name}: {value}" for name, value in more.items()), "", ""]
                writer.write("\r\n".join(lines).encode() + (b"" if method == "HEAD" else content))
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            writer.close()

    def _answer(self, method: str, target: str, headers: HTTPMessage, body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Return the status, some headers and the content."""
        url = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        key = unquote(url.path).removeprefix("/bucket").strip("/")
        if "list-type" in query:
            return 200, {"Content-Type": "application/xml"}, self._page(query)
        path = self._folder / key
        if method == "PUT":
            if not url.path.endswith("/"):  # a folder, which is there
                path.write_bytes(body)
            return 200, {"ETag": '"0"'}, b""
        if method == "DELETE":
            path.unlink(missing_ok=True)
            return 204, {}, b""
        if not path.is_file():
            return (200 if not key else 404), {}, b""
        found = path.stat()
        shared = {"Last-Modified": formatdate(found.st_mtime, usegmt=True), "ETag": f'"{found.st_mtime_ns}"'}
        if method == "HEAD":
            return 200, {**shared, "Content-Length": str(found.st_size)}, b""
        content, wanted = path.read_bytes() if method == "GET" else b"", headers.get("Range")
        if not wanted:
            return 200, shared, content
        first, last = (int(number) for number in wanted.removeprefix("bytes=").split("-"))
        content = content[first : last + 1]
        return 206, {**shared, "Content-Range": f"bytes {first}-{first + len(content) - 1}/{found.st_size}"}, content

    def _page(self, query: dict[str, str]) -> bytes:
        """Return a page of the listing of a folder, which is read when its first page is asked for."""
        prefix, after = query.get("prefix", ""), query.get("start-after", "")
        folder, begin = self._folder / prefix, int(query.get("continuation-token", 0))
        if begin == 0:
            found = os.scandir(folder) if folder.is_dir() else ()
            self._listings[prefix] = sorted(found, key=lambda entry: entry.name)
        if begin == 0 and after:
            begin = bisect_right(self._listings[prefix], after.removeprefix(prefix), key=lambda entry: entry.name)
        end = begin + min(_KEYS_PER_PAGE, int(query.get("max-keys", _KEYS_PER_PAGE)))
        entries = self._listings[prefix]
        lines = ["<?xml version='1.0'?><ListBucketResult>"]
        lines.append(f"<IsTruncated>{str(end < len(entries)).lower()}</IsTruncated>")
        lines.append(f"<NextContinuationToken>{end}</NextContinuationToken>" * (end < len(entries)))
        for entry in entries[begin:end]:
            if entry.is_dir():
                lines.append(f"<CommonPrefixes><Prefix>{prefix}{entry.name}/</Prefix></CommonPrefixes>")
                continue
            status = entry.stat()
            lines.append(
                f"<Contents><Key>{prefix}{entry.name}</Key><Size>{status.st_size}</Size>"
                f"<LastModified>{datetime.fromtimestamp(status.st_mtime, UTC).isoformat()}</LastModified></Contents>"
            )
        return "".join([*lines, "</ListBucketResult>"]).encode()


async def _body(reader: asyncio.StreamReader, headers: HTTPMessage) -> bytes:
    """Return the body of a request, without the chunks of HTTP and those of S3's clients."""
    body = b""
    if headers.get("Transfer-Encoding") == "chunked":
        while size := int((await reader.readline()).split(b";")[0], 16):
            body += await reader.readexactly(size)
            await reader.readline()
        await reader.readline()
    else:
        body = await reader.readexactly(int(headers.get("Content-Length") or 0))
    if "aws-chunked" not in headers.get("Content-Encoding", ""):
        return body
    chunks, content = BytesIO(body), b""
    while size := int(chunks.readline().split(b";")[0], 16):
        content += chunks.read(size)
        chunks.readline()
    return content


async def _main(folder: Path, delay_s: float) -> None:
    server = await asyncio.start_server(_Store(folder, delay_s).serve, "127.0.0.1", 0, limit=1 << 20, backlog=512)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main(Path(sys.argv[1]), float(sys.argv[2]) / 1000))
