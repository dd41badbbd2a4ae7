"""TextWorld: rows over tiny models, and the text of the target alone, which an engine must write whatever drafts."""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace

import pytest

from decoding import Engine, SamplingParams, Sequence
from decoding.grammar.grammars import Grammars
from tests.decoding.tiny import check_counts, outputs, run
from tests.worlds.lanes import PLACES, lanes_over

RUN_SEED = 3


@dataclass(frozen=True)
class TextWorld:
    """Rows that are made anew for each engine; the tag of a row is its number."""

    models: SimpleNamespace
    rows: Callable[[], list[Sequence]]
    grammars: Grammars | None = None
    max_model_len: int = 80

    @cached_property
    def each_alone(self) -> list[Sequence]:
        """Each row by itself, one token a round."""
        engine = self.engine("none", num_slots=1)
        return [run(engine, [row])[0] for row in self.rows()]

    @property
    def alone(self) -> list[list[int]]:
        """The texts of the target alone."""
        return outputs(self.each_alone)

    def engine(self, kind: str, place: str = "one lane", **options: object) -> Engine:
        """Return an engine in which this drafter, or the draft model of this name, drafts: where, says `PLACES`."""
        sizes = {"max_model_len": self.max_model_len, **options}
        return lanes_over(self.models, kind, grammars=self.grammars, **PLACES[place], **sizes)[0]

    def check(self, engine: Engine) -> list[Sequence]:
        """Let an engine write the rows, and return them; raise AssertionError if their texts are others."""
        rows = list(run(engine, self.rows()))
        self.compare(rows)
        return rows

    def compare(self, finished: Iterable[Sequence]) -> None:
        """Raise AssertionError unless these rows, in any order, are those of the target alone, and ended like them."""
        for row in finished:
            other = self.each_alone[row.tag]
            assert row.output_token_ids == other.output_token_ids, row.tag
            assert (row.finish_reason, row.stop_reason) == (other.finish_reason, other.stop_reason)
            assert row.error == other.error
            assert [e.logprob for e in row.logprobs] == pytest.approx([e.logprob for e in other.logprobs], abs=1e-4)
            assert 0 <= row.num_cached_tokens < len(row.prompt_token_ids)
            if row.error is None:
                check_counts(row)
            if row.num_speculative_tokens is not None:
                assert row.num_draft_tokens <= row.num_speculative_tokens * row.num_rounds
                assert len(row.accepted_per_position) <= row.num_speculative_tokens


def rows_of(prompts: Seq[Seq[int]], params: Iterable[SamplingParams]) -> list[Sequence]:
    """Return a row for each prompt, with noise of its own."""
    pairs = enumerate(zip(prompts, params, strict=True))
    return [Sequence.create(prompt, own, run_seed=RUN_SEED, row=row, tag=row) for row, (prompt, own) in pairs]
