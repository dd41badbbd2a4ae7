"""SampledRows: rows from all over a run's input, which engines write again and again."""

import random
from collections.abc import Sequence as Seq
from functools import partial
from itertools import islice
from math import ceil

from actors.engines.loading import load_codec
from decoding.engine.engine import Engine
from decoding.sequence import Sequence
from jobs.driver.plan import Plan
from jobs.proving.asked import Codecs, good_inputs
from jobs.proving.comparison import problem_with_row, rows_of
from jobs.work.estimate import spread_units
from pipeline.inputs.units import WorkUnit

_LEAST_TOKENS = 16  # of a text, in which drafts are measured


class SampledRows:
    """Some rows of the input, and how much of their texts is written."""

    def __init__(self, plan: Plan, engine: Engine, most_slots: int, units: Seq[WorkUnit] | None = None) -> None:
        """Read rows that `engine` can write, of `units` if they are given. Raises ValueError if there are none."""
        self._settings, self._max_model_len = plan.settings, engine.max_model_len
        self._codecs = Codecs(load_codec(plan.settings))
        check = partial(problem_with_row, codecs=self._codecs, settings=plan.settings, problem_with=engine.problem_with)
        self.left_out: list[str] = []
        self._fewest = ceil(most_slots / plan.settings.sampling.n)  # which fill the slots
        of_unit = None if units is None else ceil(8 * self._fewest / max(1, len(units)))  # its first rows
        self._all = [
            row
            for unit in units or spread_units(plan, 8 * self._fewest)
            for row in islice(good_inputs(plan, [unit], check, self.left_out.append), of_unit)
        ]
        if not self._all:
            raise ValueError(f"no row of the input can be written, so there is nothing to measure; {self.left_out[0]}")
        random.Random(0).shuffle(self._all)  # so that any first ones come from all over the input
        self._rows, self.max_tokens = self._all[: self._fewest], _LEAST_TOKENS

    def settle(self, times_longer: float) -> None:
        """Write this many times as much: longer texts, and more of them where they are whole."""
        longest = max(row.max_tokens for row in self._sequences_of_all())
        tokens = self.max_tokens * times_longer
        self.max_tokens = int(min(max(tokens, _LEAST_TOKENS), longest))
        self._rows = self._all[: max(self._fewest, int(self._fewest * tokens / longest))]

    @property
    def is_cut(self) -> bool:
        """Whether texts end sooner than those of a run."""
        return any(row.max_tokens > self.max_tokens for row in self._sequences_of_all())

    def sequences(self) -> list[Sequence]:
        """Return the rows as an engine takes them, with nothing written yet."""
        rows = self._sequences_of_all()
        for row in rows:
            row.max_tokens = min(row.max_tokens, self.max_tokens)
        return rows

    def _sequences_of_all(self) -> list[Sequence]:
        return rows_of(self._rows, self._codecs, self._settings, self._max_model_len)

    def engine_hours(self, texts: Seq[Seq[int]], tokens_per_second: float, num_rows: int) -> float:
        """Return the hours that `num_rows` rows take one engine at a speed, if their texts are as long as these."""
        return sum(map(len, texts)) / len(self._rows) * num_rows / tokens_per_second / 3600

    @property
    def num_rows(self) -> int:
        """How many they are."""
        return len(self._rows)
