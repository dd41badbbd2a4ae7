"""A server with the Batch API, closed with two keys and with narrow limits."""

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from endpoint.batches.batch import BatchSettings
from endpoint.edge.headers import Keys
from endpoint.edge.install import EdgeSettings
from endpoint.service.service import ServiceSettings
from tests.endpoint.in_process import MODEL, Server, running_server, settings_of
from tests.endpoint.toy_app import KEY, OTHER_KEY

LIMITS = {"max_file_bytes": 200_000, "max_rows": 40, "max_in_progress": 3, "max_files": 500, "rows_per_unit": 4}


@pytest.fixture(scope="package")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the files and batches."""
    return tmp_path_factory.mktemp("batches")


@pytest.fixture(scope="package")
def batch_server(text_pair: tuple[str, str], root: Path) -> Iterator[Server]:
    """The application with the Batch API."""
    keys, service = Keys([KEY, OTHER_KEY]), ServiceSettings(model=MODEL, aliases=("tiny",))
    settings = BatchSettings(path=str(root), **LIMITS)
    with running_server(settings_of(text_pair), service, EdgeSettings(keys=keys), settings) as running:
        yield running


@pytest.fixture(scope="package")
def api(batch_server: Server) -> Iterator[openai.OpenAI]:
    """The official client with the first key."""
    with batch_server.client() as client:
        yield client


@pytest.fixture(scope="package")
def other_api(batch_server: Server) -> Iterator[openai.OpenAI]:
    """The official client with the other key."""
    with batch_server.client() as client:
        yield client.with_options(api_key=OTHER_KEY)
