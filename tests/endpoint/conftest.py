"""The toy application on a real web server, once for all that only ask it things."""

from collections.abc import Iterator

import pytest

from endpoint.auth import Keys
from tests.endpoint.toy_app import KEY, OTHER_KEY, toy_app
from tests.endpoint.web import served


@pytest.fixture(scope="session")
def toy() -> Iterator[int]:
    """The port of the toy application, closed with two keys."""
    with served(toy_app(keys=Keys([KEY, OTHER_KEY]))) as port:
        yield port
