"""The comparison of endpoints that score asks both for the same rows, and sees where their numbers differ."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import echo
from endpoint.edge.install import EdgeSettings
from endpoint.service.service import ServiceSettings
from tests.endpoint.in_process import BUNDLED, running_server, settings_of


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """An open endpoint over the bundled pair."""
    pair = str(BUNDLED / "target"), str(BUNDLED / "draft")
    settings = ServiceSettings(model="dray/tiny-pair")
    with running_server(settings_of(pair, max_model_len=512), settings, EdgeSettings(keys=None)) as server:
        yield server.url


def test_each_server_scores_each_kind_of_rows(address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shapes = ["--shapes", "1x2,4x1", "--rows", "2", "--repeats", "1", "--json", str(tmp_path / "found.json")]
    echo.main(["--servers", f"old={address},new={address}", *shapes])
    lines = json.loads((tmp_path / "found.json").read_text())["lines"]
    assert [line["by"] for line in lines[:4]] in (["old", "new"] * 2, ["new", "old"] * 2)
    assert {line["texts"] for line in lines} == {"prompts", "choices", "choices behind examples"}
    assert all(line["rows_per_second"] > 0 and line["times"] > 0 for line in lines)
    assert "1x2" in capsys.readouterr().out
