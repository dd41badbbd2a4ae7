"""A generator that cannot be loaded keeps no draft actor, and a benchmark without one measures nothing."""

from __future__ import annotations

from typing import Any

import pytest

from actors.engines import dray, loading
from actors.settings import GeneratorSettings, ModelSettings
from benchmarks import placements

SETTINGS = GeneratorSettings(models=ModelSettings(target="t", draft="d"), placement="split")


class Links:
    """Leads nowhere."""

    are_up = False

    def __init__(self, *_: Any) -> None:
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def links(monkeypatch: pytest.MonkeyPatch) -> Links:
    made = Links()
    for module in ("actors.drafts.remote_drafter", "benchmarks.placements"):
        monkeypatch.setattr(f"{module}.DraftLinks", lambda *_: made)
    return made


def refuse(*_: Any) -> Any:
    raise ValueError("no such model")


def test_a_worker_without_an_engine_gives_up_its_draft_actors(links: Links, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "load_codec", lambda settings: None)
    monkeypatch.setattr(dray, "load_engine", refuse)
    with pytest.raises(ValueError, match="no such model"):
        loading.LoadedEngine(SETTINGS, "a roster", 900.0)
    assert links.is_closed


def test_a_benchmark_without_its_draft_actor_fails(links: Links, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placements, "start_roster", lambda *_: None)
    monkeypatch.setattr(placements, "load_engine", lambda *_: None)
    with pytest.raises(RuntimeError, match="split 4: its draft actor is out of reach"):
        placements.Side("split 4", SETTINGS, 1)
    assert links.is_closed
