"""The demo's corpus does not depend on how it was made (temperature 0.8, float32), and README.md has its figures."""

import json
from collections import Counter
from pathlib import Path

import pytest

from checks import figures
from examples import same_text
from jobs import generate
from pipeline.counts import Counts
from pipeline.run.check import check_run
from pipeline.run.directory import RunDirectory
from tests.jobs.runs import generations

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_address"), pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
WAYS = {
    "model, adaptive draft lengths, 1 actor": "--engine.draft_length=adaptive --actors.max_actors=1",
    "none, 12 slots, units of 11 rows": "--engine.drafter=none --engine.num_slots=12 --run.rows_per_unit=11",
    "ngram": "--engine.drafter=ngram",
    "model, 1 draft token": "--engine.draft_length=fixed --engine.num_speculative_tokens=1",
    "model, 4 draft tokens, 2 actors": (
        "--engine.draft_length=fixed --engine.num_speculative_tokens=4 --actors.min_actors=2"
    ),
    "model, 8 draft tokens": "--engine.draft_length=fixed --engine.num_speculative_tokens=8",
    "model, 4 slots, 4 units of 11 rows at once": (
        "--engine.draft_length=adaptive --engine.num_slots=4 --actors.units_in_flight=4 --run.rows_per_unit=11"
    ),
    "model, 1 slot": "--engine.num_slots=1",
    "head, 4 draft tokens": "--models.draft=examples/tiny_pair/head --engine.num_speculative_tokens=4",
    "head, adaptive draft lengths, a lookup beside it": (
        "--models.draft=examples/tiny_pair/head --engine.drafter=hybrid --engine.draft_length=adaptive"
    ),
}
AS_DOCUMENTED = {"model, 4 draft tokens, 2 actors": "draft model", "head, 4 draft tokens": "EAGLE-3 head"}
FEW = ("none, 12 slots, units of 11 rows", *AS_DOCUMENTED)
# Processors add floats in different orders. That can change a row of float32 numbers, but hardly ever does.
MAX_SHARE_OF_OTHER_ROWS = 0.02


@pytest.mark.parametrize(
    ("ways", "one_in", "min_tokens"),
    [(FEW, 3, 13_000), pytest.param(tuple(WAYS), 1, 100_000, marks=pytest.mark.slow)],
    ids=["in a few ways, a third of it", "in all ways"],
)
def test_the_demo_is_token_identical_however_it_is_made(tmp_path, monkeypatch, capsys, ways, one_in, min_tokens):
    monkeypatch.chdir(ROOT)
    source, first, total = tmp_path / "prompts.jsonl", None, Counts()
    lines = (ROOT / "examples/prompts.jsonl").read_text().splitlines(keepends=True)
    lines = lines[: len(lines) // one_in]  # the first ones: a row's noise depends on its place in the input
    source.write_text("".join(lines))
    for number, way in enumerate(ways):
        output = tmp_path / str(number)
        command = ["--config=examples/configs/demo.yaml", f"--input.path={source}", f"--output.path={output}"]
        assert generate.main([*command, "--run.progress=none", *WAYS[way].split()]) == 0
        check = check_run(RunDirectory.open(str(output)))
        assert check.problems == [], way
        assert (check.counts.num_rows, check.counts.num_errors) == (len(lines), 0), way
        total += check.counts
        texts = {row["id"]: row["token_ids"] for row in generations(output)}
        first = first or texts
        assert texts == first, f"{way} wrote another corpus"
        if way in AS_DOCUMENTED:
            _assert_documented(figures.lines_of(generations(output)), AS_DOCUMENTED[way])
    capsys.readouterr()
    is_different = same_text.main([str(output)])
    num_same = int(capsys.readouterr().out.split(maxsplit=1)[0])
    assert (1 - MAX_SHARE_OF_OTHER_ROWS) * len(lines) <= num_same <= len(lines)
    assert is_different == (num_same < 300), "rows that are missing or different are told"
    assert total.num_output_tokens >= min_tokens
    assert total.acceptance_rate is not None
    assert total.acceptance_rate > 0.4


def test_a_stale_figure_is_noticed():
    lines = figures.read_lines()
    _assert_documented(lines)
    for line in lines[:10]:
        line["num_accepted_tokens"] = str(int(line["num_accepted_tokens"]) + 1)
    with pytest.raises(AssertionError, match="python -m checks"):
        _assert_documented(lines)


def test_every_bundled_prompt_has_an_id_and_a_kind():
    rows = [json.loads(line) for line in (ROOT / "examples/prompts.jsonl").read_text().splitlines()]
    assert len({row["id"] for row in rows}) == 300
    assert len(Counter(row["kind"] for row in rows)) == 5
    assert all(("prompt" in row) != ("messages" in row) for row in rows)


def _assert_documented(lines: list[dict[str, str]], draft: str = "draft model") -> None:
    documented = {line["id"]: line for line in figures.read_lines(draft)}
    others = [line for line in lines if line != documented[line["id"]]]
    assert len(others) <= MAX_SHARE_OF_OTHER_ROWS * len(lines), (
        f"{len(others)} of {len(lines)} rows have other figures than {figures.LINES[draft].name}, the first "
        f"{others[0]}; run make demo and make demo-head, then python -m checks.figures out/demo out/demo-head, and say "
        "why in CHANGELOG.md"
    )
