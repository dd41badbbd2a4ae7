"""A process that is killed in the middle of rows with forms: the run goes on to the same corpus."""

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from transformers import AutoTokenizer

from actors.workers.engine_worker import EngineWorker
from decoding.sequence import Sequence
from jobs.driver import execution
from tests.jobs.runs import content, errors, generations, problems

SCHEMA = {
    "type": "object",
    "properties": {"b": {"enum": ["yes", "no"]}, "a": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["b", "a"],
    "additionalProperties": False,
}
NUM_ROWS, MAX_TOKENS = 24, 40
_FEWEST_IN_MID_ROW = 2  # rows with a form that have begun and not ended, in one unit, when its process is killed


def killed_in_mid_row(where: Path, output: Path) -> type[EngineWorker]:
    """Return a generator whose process is killed by SIGKILL between two rounds, in the middle of rows with forms.

    That happens twice: before any unit is committed, and again when some are. Each time the file `killed-N` in the
    folder `where` first records the rows: of each its prompt, its output tokens, and what its form forces behind them.
    """

    class Killed(EngineWorker):
        async def _finish(self, rows: list[Any]) -> None:
            step = self.engine.loop.engine.step

            def step_and_look() -> Any:
                finished = step()
                record = where / f"killed-{int(any(output.glob('data/*.parquet')))}"
                begun = [row for row in self.engine.loop.engine.in_flight if _is_in_mid_row(row)]
                is_time = len(begun) >= _FEWEST_IN_MID_ROW and any(row.num_accepted_tokens for row in begun)
                if is_time and not record.exists():
                    record.write_text(json.dumps([_recorded(row) for row in begun]))
                    os.kill(os.getpid(), signal.SIGKILL)
                return finished

            self.engine.loop.engine.step = step_and_look  # type: ignore[method-assign]
            await super()._finish(rows)

    return Killed


def _is_in_mid_row(row: Sequence) -> bool:
    """Tell whether a row with a form has written tokens, and has not ended."""
    return row.matcher is not None and len(row.output_token_ids) > 1 and not row.is_finished


def _recorded(row: Sequence) -> dict[str, Any]:
    assert row.matcher is not None
    return {
        "prompt": row.prompt_token_ids,
        "output": row.output_token_ids,
        "num_accepted": row.num_accepted_tokens,
        "forced": row.matcher.forced(row.output_token_ids),
    }


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.ray
@pytest.mark.usefixtures("ray_address")
@pytest.mark.parametrize("temperature", [0, 0.8])
def test_rows_whose_process_is_killed_between_their_tokens_have_the_same_text_once(
    job, tmp_path, monkeypatch, temperature
):
    job.read(
        [
            {"id": f"row-{i}", "kind": "a", "prompt": f"hello {i}"}
            | ({"sampling": {"structured": {"regex": "[ab]{2,6}"}}} if i % 3 == 0 else {})
            for i in range(NUM_ROWS)
        ]
    )
    form = tmp_path / "structured.yaml"
    structured = {"json_schema": SCHEMA, "disable_any_whitespace": True}
    form.write_text(yaml.safe_dump({"sampling": {"structured": structured}}, sort_keys=False))
    sampling = (f"--sampling.temperature={temperature}", f"--sampling.max_tokens={MAX_TOKENS}")
    flags = (f"--config={form}", *sampling, "--actors.max_actors=1", "--engine.draft_length=fixed")
    undisturbed = job.undisturbed(*flags, "--engine.drafter=model")
    monkeypatch.setattr(execution, "EngineWorker", killed_in_mid_row(tmp_path, job.output))
    assert job.generate(*flags, "--engine.drafter=model") == 0, job.printed()

    expected, found = generations(undisturbed), generations(job.output)
    assert [row["id"] for row in found] == [f"row-{i}" for i in range(NUM_ROWS)], "every row is there once"
    assert [row["token_ids"] for row in found] == [row["token_ids"] for row in expected]
    assert content(job.output) == content(undisturbed)
    assert errors(job.output) == []
    assert problems(job.output) == []
    ended = [row for row in found if row["finish_reason"] == "stop"]
    assert len(ended) > NUM_ROWS // 2
    for row in ended:
        if int(row["id"].removeprefix("row-")) % 3:
            jsonschema.validate(json.loads(row["text"]), SCHEMA)
        else:
            assert re.fullmatch("[ab]{2,6}", row["text"])

    assert "worker processes died over units" in job.printed()
    tokenizer = AutoTokenizer.from_pretrained(job.pair[0])
    texts = {tuple(tokenizer(row["prompt"])["input_ids"]): row["token_ids"] for row in expected}
    assert len(texts) == NUM_ROWS
    kills = [json.loads((tmp_path / f"killed-{number}").read_text()) for number in (0, 1)]
    for rows in kills:
        assert len(rows) >= _FEWEST_IN_MID_ROW
        for row in rows:  # what was lost is the beginning of this row's text, and more was to come
            text, begun = texts[tuple(row["prompt"])], row["output"]
            assert text[: len(begun)] == begun
            assert len(text) > len(begun) > 0
        assert any(row["num_accepted"] for row in rows), "drafted tokens had been accepted"
    assert any(row["forced"] for rows in kills for row in rows), "forced tokens were to be drafted next"
