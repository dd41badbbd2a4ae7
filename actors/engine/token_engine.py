"""TokenEngine: what an EngineLoop and the workers above it need of an engine, whichever code computes its tokens."""

from collections.abc import Generator, Iterable
from collections.abc import Sequence as Seq
from typing import Protocol

from decoding.engine.options import EngineOptions
from decoding.sequence import Sequence, TokenLogprobs


class TokenEngine(Protocol):
    """Sequences in, finished sequences out. Not thread-safe: one thread drives it.

    `decoding.engine.engine.Engine` is one, `actors.vllm.engine.VllmEngine` is another.
    """

    max_model_len: int

    @property
    def options(self) -> EngineOptions:
        """What it was loaded with; `num_slots` is the present number."""

    @property
    def vocab_size(self) -> int:
        """Token ids of the target: 0 to vocab_size - 1."""

    @property
    def has_work(self) -> bool:
        """Whether a step would return or advance anything."""

    @property
    def is_lost(self) -> bool:
        """Whether the engine has failed so that nothing can run any more, also where only a prompt was scored."""

    @property
    def in_flight(self) -> list[Sequence]:
        """The sequences that hold a slot and are not finished."""

    @property
    def num_running(self) -> int:
        """The number of sequences in flight."""

    @property
    def round_seconds(self) -> float:
        """Seconds spent in rounds since the engine was loaded."""

    def submit(self, sequences: Iterable[Sequence]) -> None:
        """Queue sequences. One that cannot run comes back from the next step with finish_reason 'error'."""

    def step(self) -> list[Sequence]:
        """Advance what runs by one round at most, and return the finished sequences.

        Raises TargetLostError if the engine cannot go on with what it runs; its process must then end.
        """

    def drop(self, sequences: Iterable[Sequence], why: str = "it was dropped") -> None:
        """Drop sequences that are not wanted. Each comes back from a step; none is a result."""

    def clear(self) -> None:
        """Forget every sequence: what to do after a step that raised, before the engine is used again."""

    def up_next(self) -> set[Sequence]:
        """Return the waiting sequences that get a slot in the next step."""

    def resize(self, num_slots: int) -> None:
        """Go on with this many slots, or raise why that cannot be done."""

    def problem_with(self, sequence: Sequence) -> str | None:
        """Return why the engine cannot run this sequence; None if it can. Any thread may ask."""

    def prompt_logprobs(self, prompt_token_ids: Seq[int], num_top: int) -> Generator[list[TokenLogprobs], None, None]:
        """Yield the log-probability of each token of a prompt but its first, a chunk at a time."""
