"""One server for all tests of the endpoint that need no Ray."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from tests.endpoint.server import Server, running_server, settings_of


@pytest.fixture(scope="session")
def server(text_pair: tuple[str, str]) -> Iterator[Server]:
    """Over an engine that drafts."""
    with running_server(settings_of(text_pair)) as running:
        yield running


@pytest.fixture(scope="session")
def client(server: Server) -> Iterator[openai.OpenAI]:
    """The official client."""
    with server.client() as client:
        yield client
