"""TextScorer: an Engine in a Ray Data actor that scores given texts, for runs of task "score"."""

from typing import Any

from actors.engine.score_translation import ScoredRow, decode_scored_row, encode_scored_row
from actors.workers.engine_worker import EngineWorker
from pipeline.inputs.rows import InputRow
from pipeline.inputs.score import ScoreOptions


class TextScorer(EngineWorker[ScoredRow]):
    """A worker that scores texts."""

    def __init__(self, *args: Any, score: ScoreOptions, **named: Any) -> None:
        """Load what an EngineWorker loads. `score` says what is scored of a row."""
        self._options = score
        super().__init__(*args, **named)

    def _begin(self) -> None:
        if self._settings.is_exact_required and not self._engine.footer["is_batch_invariant"]:
            raise ValueError(
                f"run.exact is 'required', but on {self._engine.footer['device']} in {self._engine.footer['dtype']} "
                "scores depend on the batch by rounding (docs/scoring.md); set run.exact to 'any'"
            )

    def _encode(self, row: InputRow, ordinal: int) -> ScoredRow:
        return encode_scored_row(row, self._codec, self._options)

    async def _finish(self, rows: list[ScoredRow]) -> None:
        await self._loop.score([row.scored for row in rows])

    def _decode(self, row: ScoredRow) -> list[dict[str, Any]]:
        return decode_scored_row(row, self._codec, self._options)
