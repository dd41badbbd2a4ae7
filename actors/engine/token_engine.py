"""TokenEngine: what an EngineLoop and the workers above it need of an engine, whichever code computes its tokens."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from decoding.engine.draft_in_use import DraftRollback
from decoding.engine.options import EngineOptions
from decoding.scoring.text import ScoredText
from decoding.sequence import Sequence


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
    def eos_token_ids(self) -> frozenset[int]:
        """The token ids that end a text."""

    @property
    def close_call(self) -> float:
        """The margin in logits within which rounding could decide between two tokens; 0 if that is not known."""

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

    @property
    def draft_version(self) -> int:
        """The version of the draft in use; 0 for the one that it was loaded with."""

    @property
    def controls_drafts(self) -> bool:
        """Whether a sequence may limit its own drafts, and learns what was rejected of them."""

    @property
    def has_remote_drafts(self) -> bool:
        """Whether the draft model is in another process."""

    def replace_draft(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Go on with other weights of the same draft; raise ValueError if that cannot be, and change nothing then."""

    def draft_was_replaced(self, version: int) -> None:
        """Learn that the draft in another process has other weights now."""

    def take_rollback(self) -> DraftRollback | None:
        """Return a draft that was taken back, each once; None if there is none. Any thread may ask."""

    def problem_with(self, sequence: Sequence) -> str | None:
        """Return why the engine cannot run this sequence; None if it can. Any thread may ask."""

    def problem_with_text(self, text: ScoredText) -> str | None:
        """Return why the engine cannot score this text; None if it can. Any thread may ask."""

    def submit_texts(self, texts: Iterable[ScoredText]) -> None:
        """Queue texts to be scored. One that cannot be comes back from the next step of texts with an error."""

    @property
    def has_texts(self) -> bool:
        """Whether there are texts that `step_texts` would advance or return."""

    def step_texts(self) -> list[ScoredText]:
        """Advance texts by one forward, and return those that are finished, each with its scores or an error."""

    def drop_texts(self, texts: Iterable[ScoredText]) -> None:
        """Forget texts that are not wanted; they do not come back."""

    def give_way(self, why: str) -> None:
        """Go on with each text in flight alone after a step of texts that raised; one that was alone fails by `why`."""

    def clear_texts(self) -> None:
        """Forget all texts: what to do after a step of texts that raised, before the engine scores again."""

    def score(self, texts: Iterable[ScoredText]) -> None:
        """Score texts, and return when all are finished."""


@dataclass(frozen=True)
class Loaded:
    """An engine that a process has loaded, and what it says about itself."""

    engine: TokenEngine
    footer: dict[str, str | bool | int]  # what each part records: engines of one run may be on different machines
    facts: dict[str, Any]  # what the log says
    round_seconds: tuple[float, ...] = ()  # of a round by its draft length, where that was measured
    close: Callable[[], None] = lambda: None  # ends the processes that belong to it
