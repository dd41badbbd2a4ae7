"""The web page at `/`, which streams an answer and shades the text of accepted draft tokens."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import Response

_FOLDER = Path(__file__).parent
_FILES = {
    "/": ("index.html", "text/html"),
    "/page/page.js": ("page.js", "text/javascript"),
    "/page/page.css": ("page.css", "text/css"),
}
PATHS = tuple(_FILES)  # open without a key: they hold no secret, and the page is where a key is typed
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",
}


def install_page(app: FastAPI) -> None:
    """Add the page's three files to the application, each with the headers that keep other code out."""
    for path, (name, media_type) in _FILES.items():
        body = (_FOLDER / name).read_bytes()
        app.add_api_route(path, _sender(body, media_type), methods=["GET", "HEAD"], include_in_schema=False)


def _sender(body: bytes, media_type: str) -> Callable[[], Awaitable[Response]]:
    async def send_file() -> Response:
        return Response(body, media_type=media_type, headers=HEADERS)

    return send_file
