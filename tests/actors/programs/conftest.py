"""What the tests of programs share: engines, and a run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actors.engines.loading import LoadedEngine
from pipeline.run.directory import RunDirectory
from tests.endpoint.in_process import settings_of
from tests.pipeline.made_up import committed_run


@pytest.fixture
def run_directory(tmp_path: Path) -> RunDirectory:
    """A run whose folder takes what tools have answered."""
    return committed_run(tmp_path / "run")


@pytest.fixture(scope="module")
def engines(text_pair: tuple[str, str]) -> Callable[..., LoadedEngine]:
    """Engines by their options, each loaded once."""
    loaded: dict[str, LoadedEngine] = {}

    def load(**options: Any) -> LoadedEngine:
        key = repr(sorted(options.items()))
        if key not in loaded:
            loaded[key] = LoadedEngine(settings_of(text_pair, **options), None, 60.0)
        return loaded[key]

    return load
