"""TokenEngine: what every engine is to the code that drives it, and the queue of its rows."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Set
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import islice

import torch

from decoding.engine.draft_in_use import DraftInUse, DraftRollback
from decoding.engine.options import EngineOptions
from decoding.engine.scored_text import ScoredText
from decoding.pace.learned import Learned
from decoding.sampling.token_history import dead_end
from decoding.sampling_params import SamplingParams
from decoding.sequence import Sequence


@dataclass(frozen=True)
class Limits:
    """What every sequence must keep to."""

    max_model_len: int  # tokens of prompt and output
    vocab_size: int
    eos_token_ids: frozenset[int]

    def problem_with(self, sequence: Sequence) -> str | None:
        """Return why the engine cannot run this sequence; None if it can."""
        params, vocab_size = sequence.params, self.vocab_size
        if problem := self.problem_with_prompt(sequence.prompt_token_ids, self.max_model_len - 1):
            return problem
        if problem := self._foreign(sequence.prediction):
            return f"its prediction: {problem}"
        stop_ids = sequence.stop_ids(self.eos_token_ids)
        if params.min_tokens and sum(token_id < vocab_size for token_id in stop_ids) == vocab_size:
            return "every token id is a stop id and sampling.min_tokens forbids them all; name fewer stop_token_ids"
        named = (params.logit_bias, params.allowed_token_ids or (), params.bad_word_list.outside(vocab_size))
        if problem := next(filter(None, map(self._foreign, named)), None):
            return problem
        return dead_end(sequence, (), vocab_size, stop_ids, with_grammar=False)

    def problem_with_prompt(self, token_ids: Seq[int], max_tokens: int) -> str | None:
        """Return why the engine cannot read a prompt of at most `max_tokens`; None if it can."""
        if not token_ids:
            return "the prompt has no tokens; a language model needs at least one to continue"
        if len(token_ids) > max_tokens:
            also = ", which must also hold the output" if max_tokens < self.max_model_len else ""
            return (
                f"the prompt has {len(token_ids)} tokens and the context is {self.max_model_len}{also}; shorten the "
                "prompt or raise engine.max_model_len"
            )
        return self._foreign(token_ids)

    def problem_with_text(self, text: ScoredText, num_behind: int = 0) -> str | None:
        """Return why the engine cannot score this text with `num_behind` tokens behind it; None if it can."""
        if problem := self.problem_with_prompt(text.prompt_token_ids, self.max_model_len - num_behind):
            return problem
        num_tokens = len(text.prompt_token_ids) + text.longest
        if num_tokens > self.max_model_len - num_behind:
            parts = f"({len(text.prompt_token_ids)} of the prompt and {text.longest} behind it) "
            return (
                f"the text has {num_tokens} tokens {parts if len(text.prompt_token_ids) > 1 else ''}and the context is "
                f"{self.max_model_len}; shorten the text or raise engine.max_model_len"
            )
        return next(filter(None, map(self._foreign, text.continuations)), None)

    def _foreign(self, token_ids: Iterable[int]) -> str | None:
        foreign = next((token_id for token_id in token_ids if not 0 <= token_id < self.vocab_size), None)
        return (
            None if foreign is None else f"token id {foreign} is outside the target's vocabulary of {self.vocab_size}"
        )


class TargetLostError(RuntimeError):
    """The target is lost over the same rows again and again: one of them is the reason, or the target cannot run."""


class TokenEngine(ABC):
    """Sequences in, finished sequences out. Not thread-safe: one thread drives it.

    `decoding.engine.engine.Engine` is one, `actors.vllm.engine.VllmEngine` is another.
    """

    _draft: DraftInUse | None = None  # None: no draft of it can be replaced, for the reason beside it
    _why_draft_stays = ""

    def __init__(self, limits: Limits, options: EngineOptions) -> None:
        """Begin without rows."""
        self._limits = limits
        self.options = options  # what it was loaded with; `num_slots` is the present number
        self._waiting: deque[Sequence] = deque()
        self._ended: list[Sequence] = []  # the next step returns them

    @property
    def max_model_len(self) -> int:
        """Tokens of prompt and output."""
        return self._limits.max_model_len

    @property
    def vocab_size(self) -> int:
        """Token ids of the target: 0 to vocab_size - 1."""
        return self._limits.vocab_size

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """The token ids that end a text."""
        return self._limits.eos_token_ids

    @property
    def close_call(self) -> float:
        """The margin in logits within which rounding could decide between two tokens; 0 if that is not known."""
        return 0.0

    @property
    def controls_drafts(self) -> bool:
        """Whether a sequence may limit its own drafts, and learns what was rejected of them."""
        return False

    @property
    def has_remote_drafts(self) -> bool:
        """Whether the draft model is in another process."""
        return False

    @property
    def draft_version(self) -> int:
        """The version of the draft in use; 0 for the one that it was loaded with."""
        return 0 if self._draft is None else self._draft.version

    @property
    @abstractmethod
    def round_seconds(self) -> float:
        """Seconds spent in rounds since the engine was loaded."""

    @property
    @abstractmethod
    def in_flight(self) -> list[Sequence]:
        """The sequences that hold a slot and are not finished: those that write, and those that are being read."""

    @property
    def num_running(self) -> int:
        """The number of sequences in flight."""
        return len(self.in_flight)

    @property
    def has_work(self) -> bool:
        """Whether a step would return or advance anything."""
        return bool(self.in_flight or self._waiting or self._ended)

    def up_next(self) -> set[Sequence]:
        """Return the waiting sequences that get a slot in the next step."""
        num_free = self.options.slots - len(self.in_flight) if self._waiting else 0
        return set(islice(tuple(self._waiting), max(0, num_free)))

    def generate(self, prompts: Seq[Seq[int]], params: SamplingParams, *, seed: int = 0) -> list[Sequence]:
        """Return every prompt's `params.n` samples, in order; row and sample numbers go into the noise."""
        sequences = [
            Sequence.create(prompt, params, run_seed=seed, row=row, sample=sample)
            for row, prompt in enumerate(prompts)
            for sample in range(params.n)
        ]
        list(self.stream(sequences))
        return sequences

    def score(self, texts: Iterable[ScoredText]) -> None:
        """Score texts, and return when all are finished. Sequences that end meanwhile come back from the next step."""
        texts = list(texts)
        rows, others = self.rows_of(texts), list[Sequence]()
        self.submit(rows)
        try:
            while not all(row.is_finished for row in rows):
                others += (sequence for sequence in self.step() if sequence.asked is None)
        finally:
            self._ended += others
        for text in texts:
            text.collect()

    def rows_of(self, texts: Iterable[ScoredText]) -> list[Sequence]:
        """Return the rows whose tokens are scored for these texts. A text that cannot be scored ends with an error.

        Any thread may ask.
        """
        rows = list[Sequence]()
        for text in texts:
            if not text.is_finished and (problem := self.problem_with_text(text)):
                text.fail(problem)
            if not text.is_finished:
                rows += text.rows(asks_for_others=self._asks_for_others)
        return rows

    def stream(self, sequences: Iterable[Sequence]) -> Iterator[Sequence]:
        """Yield the sequences as they finish. A caller that stops early leaves the rest in the engine (see `clear`)."""
        self.submit(sequences)
        while self.has_work:
            yield from self.step()

    def submit(self, sequences: Iterable[Sequence]) -> None:
        """Queue sequences. One that cannot run comes back from the next step with finish_reason 'error'."""
        for sequence in sequences:
            if sequence.asked is None and not sequence.is_finished and (problem := self.problem_with(sequence)):
                sequence.fail(problem)
            if sequence.is_finished:  # perhaps it failed before it came
                self._ended.append(sequence)
            else:
                sequence.max_tokens = min(sequence.max_tokens, self.max_model_len - len(sequence.prompt_token_ids))
                self._waiting.append(sequence)

    @abstractmethod
    def step(self) -> list[Sequence]:
        """Advance what runs by one round at most, and return the finished sequences.

        Raises TargetLostError if the engine cannot go on with what it runs; its process must then end.
        """

    def drop(self, sequences: Iterable[Sequence], why: str = "it was dropped") -> None:
        """Drop sequences that are not wanted. Each comes back from a step, as it would have; none is a result.

        Those that can stop end at once, with finish_reason 'error' and `why`; the others end with their next token.
        """
        unwanted = set(sequences)
        stopped = [sequence for sequence in (*self._waiting, *self._stoppable) if sequence in unwanted]
        self._ended += stopped  # before they leave the others: at no moment is there nothing to do
        for sequence in stopped:
            sequence.fail(why)
        kept = [sequence for sequence in self._waiting if sequence not in unwanted]
        self._waiting.clear()  # the same queue: lanes share it
        self._waiting.extend(kept)
        self._stop(set(stopped))
        for sequence in unwanted.intersection(self.in_flight):
            sequence.cut_short()

    def clear(self) -> None:
        """Forget every sequence: what to do after a step that raised, before the engine is used again."""
        self._waiting.clear()
        self._ended.clear()

    def _take_ended(self) -> list[Sequence]:
        ended, self._ended = self._ended, []
        return ended

    @property
    @abstractmethod
    def _stoppable(self) -> list[Sequence]:
        """The sequences in flight that need not write another token to end."""

    @abstractmethod
    def _stop(self, sequences: Set[Sequence]) -> None:
        """Take those of these sequences that are in flight out of their slots; each has ended with an error."""

    @property
    def _asks_for_others(self) -> bool:
        """Whether a row can ask for the log-probabilities of tokens that do not follow in it."""
        return False

    @abstractmethod
    def resize(self, num_slots: int) -> None:
        """Go on with this many slots, or raise why that cannot be done."""

    @abstractmethod
    def problem_with(self, sequence: Sequence) -> str | None:
        """Return why the engine cannot run this sequence; None if it can. Any thread may ask."""

    def problem_with_text(self, text: ScoredText) -> str | None:
        """Return why the engine cannot score this text; None if it can. Any thread may ask."""
        return self._limits.problem_with_text(text)

    def replace_draft(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Go on with other weights of the same draft, between two steps; no token changes.

        The names are those of the network's or head's own tensors. If fewer than half as many of its tokens are
        accepted in its first 200 rounds as before, the weights before come back (`take_rollback`). Raises ValueError,
        in one line, for what is no such draft; nothing has changed then.
        """
        self._replaceable_draft.replace(weights, version)

    def draft_was_replaced(self, version: int) -> None:
        """Learn that the draft in another process has other weights now; acceptance is judged as in `replace_draft`."""
        self._replaceable_draft.was_replaced(version)

    @property
    def learned(self) -> Learned | None:
        """What it has learned of the drafters that take turns; None where one was asked for."""
        return None

    def hear(self, learned: Learned) -> None:  # noqa: B027 - may be ignored
        """Learn, between two steps, what other engines have learned: their fastest drafter begins, or is tried soon."""

    def take_rollback(self) -> DraftRollback | None:
        """Return a draft that was taken back, each once; None if there is none. Any thread may ask."""
        return None if self._draft is None else self._draft.take_rollback()

    @property
    def _replaceable_draft(self) -> DraftInUse:
        if self._draft is None:
            raise ValueError(self._why_draft_stays)
        return self._draft
