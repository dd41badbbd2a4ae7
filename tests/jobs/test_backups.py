"""A slow actor does not delay the run: idle actors do its units, and each unit is there once."""

from pathlib import Path

import pytest

from jobs import generate
from tests.jobs.faulty import never_finishes
from tests.jobs.runs import arguments, commits, content, problems

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("ray_address")]
Pair = tuple[str, str]


def test_a_run_ends_without_its_slow_actor(
    tmp_path: Path,
    text_pair: Pair,
    plain_run: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source, output = plain_run / "in.jsonl", tmp_path / "out"
    monkeypatch.setattr(generate, "Generator", never_finishes(tmp_path))
    two = ("--actors.min_actors=2", "--actors.max_actors=2", "--run.no_progress_timeout_s=100")
    assert generate.main(arguments(source, output, text_pair, *two)) == 0
    said = capsys.readouterr().err
    assert "worker processes died" not in said
    assert "attempts were repeated" not in said
    assert "units were also begun by idle actors" in said
    assert (tmp_path / "slow").exists()
    assert content(output) == content(plain_run / "out")
    assert problems(output) == []
    before = commits(output)
    assert len(before) == 4
    assert generate.main(arguments(source, output, text_pair, *two)) == 0
    assert "Nothing left to do" in capsys.readouterr().out
    assert commits(output) == before
