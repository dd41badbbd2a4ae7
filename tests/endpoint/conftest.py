"""Servers for all tests of the endpoint, each started once."""

from collections.abc import Iterator

import openai
import pytest

from endpoint.deployment import deploy, is_deployed
from endpoint.edge.headers import Keys
from endpoint.edge.install import EdgeSettings
from endpoint.http.bodies import Limits
from endpoint.service.service import ServiceSettings
from tests.endpoint.in_process import MODEL, Server, bundled_server, running_server, settings_of
from tests.endpoint.on_serve.application import Served, running_serve, served_at, take_away
from tests.endpoint.scripted import ScriptedServer, scripted_server
from tests.endpoint.toy_app import KEY, OTHER_KEY, toy_app
from tests.endpoint.web import served

SERVE_LIMITS = Limits(max_body_bytes=100_000, body_timeout_s=2.0)


@pytest.fixture
def anyio_backend() -> str:
    """Run the tests that are coroutines in asyncio's loop."""
    return "asyncio"


@pytest.fixture
def lingers_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the lingering for clients that only read, and would wait for the end of the connection."""
    monkeypatch.setattr("endpoint.http.bodies._LINGER_SECONDS", 0.1)


@pytest.fixture(scope="session")
def server(text_pair: tuple[str, str]) -> Iterator[Server]:
    """The application over an engine that drafts, open and small."""
    settings = ServiceSettings(model=MODEL, aliases=("tiny",), fingerprint="fp_1", max_choices=16)
    with running_server(settings_of(text_pair), settings, EdgeSettings(keys=None, has_docs=True)) as running:
        yield running


@pytest.fixture(scope="session")
def client(server: Server) -> Iterator[openai.OpenAI]:
    """The official client of that server."""
    with server.client() as client:
        yield client


@pytest.fixture(scope="session")
def toy() -> Iterator[int]:
    """The port of the toy application, closed with two keys."""
    with served(toy_app(keys=Keys([KEY, OTHER_KEY]))) as port:
        yield port


@pytest.fixture(scope="session")
def whole() -> Iterator[int]:
    """The port of the whole endpoint with its page over the bundled pair, closed with `KEY`."""
    with bundled_server() as server:
        yield server.port


@pytest.fixture(scope="session")
def bundled(whole: int) -> Iterator[openai.OpenAI]:
    """The official client of that endpoint."""
    with openai.OpenAI(base_url=f"http://127.0.0.1:{whole}/v1", api_key=KEY, max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def scripted() -> Iterator[ScriptedServer]:
    """An endpoint over a backend that writes a text of the test's own."""
    with scripted_server() as server:
        yield server


@pytest.fixture(scope="session")
def serve_port(ray_address: str) -> Iterator[int]:
    """The port of the one Ray Serve of all tests, which has the gate before its proxy and no application yet."""
    with running_serve(SERVE_LIMITS) as port:
        yield port


@pytest.fixture(scope="package")
def two_replicas(serve_port: int, text_pair: tuple[str, str]) -> Iterator[Served]:
    """The application with two replicas; it is deployed when a test asks for it, and taken away at the end."""
    yield served_at(serve_port, text_pair)
    take_away()


@pytest.fixture
def deployed(two_replicas: Served) -> Served:
    """The application on that Serve, with two replicas, deployed again if another test has taken it away."""
    if not is_deployed():
        deploy(two_replicas.application())
    return two_replicas
