"""What tests of the engine's loop share: rows, what the target writes for them alone, and steps that a test watches."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq

from decoding import Engine, EngineOptions, SamplingParams, Sequence

Pair = tuple[str, str]


def sequences(count: int, params: SamplingParams, first_row: int = 0) -> list[Sequence]:
    """Make new sequences; the same every time."""
    return [Sequence.create([5, 6, 7 + i], params, row=first_row + i) for i in range(count)]


def tokens(asked: Seq[Sequence]) -> list[list[int]]:
    """Return what each sequence has written."""
    return [sequence.output_token_ids for sequence in asked]


def alone(pair: Pair, asked: Seq[Sequence]) -> list[list[int]]:
    """Return what the target writes for such sequences, one after the other and without a draft."""
    again = [Sequence(sequence.prompt_token_ids, sequence.params, sequence.noise_key) for sequence in asked]
    for _ in Engine.load(*pair, EngineOptions(num_slots=1, drafter="none")).stream(again):
        pass
    return tokens(again)


def around_step(
    engine: Engine, before: Callable[[], object] = lambda: None, after: Callable[[], object] = lambda: None
) -> None:
    """Have the engine call these functions around each of its steps."""
    step = engine.step

    def watched() -> list[Sequence]:
        before()
        finished = step()
        after()
        return finished

    engine.step = watched  # type: ignore[method-assign]
