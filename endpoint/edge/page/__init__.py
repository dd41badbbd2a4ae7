"""The web page at `/`: a prompt is answered with and without drafts, and both texts are compared.

Its files hold no secret and are open without a key. One of them, `page.json`, says what the page must know before it
can ask anything else: whether a key is needed, and which prompts to offer.
"""

import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import Response

_FOLDER = Path(__file__).parent
_SCRIPTS = ("page.js", "api.js", "answer.js", "comparison.js", "conversation.js", "dom.js")
_FILES = {
    "/": ("index.html", "text/html"),
    "/page/page.css": ("page.css", "text/css"),
    **{f"/page/{name}": (name, "text/javascript") for name in _SCRIPTS},
}
_FACTS = "/page/page.json"
PATHS = (*_FILES, _FACTS)  # open without a key: the page is where a key is typed
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",
}


def install_page(app: FastAPI, *, needs_key: bool, examples: Sequence[str] = ()) -> None:
    """Add the page's files to the application, each with the headers that keep other code out.

    The page offers the `examples` as messages to send, or some of its own if there are none.
    """
    facts = json.dumps({"needs_key": needs_key, "examples": list(examples)}).encode()
    bodies = {path: ((_FOLDER / name).read_bytes(), media_type) for path, (name, media_type) in _FILES.items()}
    for path, (body, media_type) in {**bodies, _FACTS: (facts, "application/json")}.items():
        app.add_api_route(path, _sender(body, media_type), methods=["GET", "HEAD"], include_in_schema=False)


def _sender(body: bytes, media_type: str) -> Callable[[], Awaitable[Response]]:
    async def send_file() -> Response:
        return Response(body, media_type=media_type, headers=HEADERS)

    return send_file
