"""Sequence: one sample on its way through the engine. Its tokens, limits, stop state, counts and finish reason."""

import math
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any, Literal

from decoding.grammar.matcher import Matcher
from decoding.noise import noise_key
from decoding.sampling_params import SamplingParams
from decoding.scope import ONE_FOR_ALL, Scope

FinishReason = Literal["stop", "length", "error"]

# Called after each round with the output tokens and the number of them that it has already checked. Returns how many
# tokens to keep (more than that number) and which string matched, or None. Text is not known to this package.
StopCondition = Callable[[Seq[int], int], tuple[int, str] | None]


@dataclass(frozen=True)
class TokenLogprobs:
    """Log-probabilities under the target's raw logits (before penalties and temperature) at one output position.

    Unlike the tokens they carry the rounding of their forward: the round's, or that of a row scored again alone.
    """

    logprob: float  # of the token that was chosen
    top: tuple[tuple[int, float], ...]  # the most likely tokens, best first
    rank: int | None = None  # tokens that are as likely as the one that was chosen, or likelier; None: not asked for
    best_logit: float | None = None  # of the most likely token; of scores with a list of these, else None


@dataclass(eq=False)
class AskedScores:
    """What is asked of a row's own tokens, and what was found so far: it stays known when the row loses its slot."""

    pairs: tuple[tuple[int, int], ...]  # (index into the row's tokens, a token that may stand behind it), in order
    owners: tuple[int, ...]  # the continuation that each pair belongs to
    num_top: int
    has_ranks: bool
    found: list[TokenLogprobs] = field(default_factory=list)  # of the first pairs

    @cached_property
    def _pair_set(self) -> frozenset[tuple[int, int]]:
        return frozenset(self.pairs)

    def num_answered(self, num_tokens: int, other: "AskedScores | None") -> int:
        """Return how many of the first `num_tokens` another row, which has them too, reads for this one.

        Behind them it asks for all that is asked here.
        """
        is_alike = other is not None and (self.num_top, self.has_ranks) == (other.num_top, other.has_ranks)
        answered = other._pair_set if other is not None and is_alike else frozenset()
        for index, token in self.pairs[len(self.found) :]:
            if index >= num_tokens:
                break
            if (index, token) not in answered:
                return index
        return num_tokens

    def take_over(self, other: "AskedScores", num_tokens: int) -> None:
        """Take the answers behind the first `num_tokens` of a row that has read these tokens, too."""
        answers = dict(zip(other.pairs, other.found, strict=False))
        for pair in self.pairs[len(self.found) :]:
            if pair[0] >= num_tokens:
                break
            self.found.append(answers[pair])

    @property
    def num_known(self) -> int:
        """How many first tokens were read before, since the answers behind them are known."""
        return self.pairs[len(self.found)][0] if 0 < len(self.found) < len(self.pairs) else 0

    def take(self, found: Seq[TokenLogprobs]) -> bool:
        """Take the answers behind a stretch; tell whether all of them are numbers."""
        self.found += found
        return not any(math.isnan(entry.logprob) for entry in found)


@dataclass(frozen=True, slots=True)
class Round:
    """What a round did with a draft: how many of its tokens became text, and which did not.

    The first of `rejected_token_ids` stood where the target wrote its own token instead; where the call was close and
    was decided anew, that may be the same token. In the round that ended the text they may also be tokens behind its
    end.
    """

    num_accepted: int
    rejected_token_ids: tuple[int, ...]


@dataclass(eq=False)
class Sequence:
    """One sample's tokens and counts.

    `tag` belongs to the caller; the engine never reads it. `noise_key` decides the tokens at temperature > 0
    (`Sequence.create` derives it); two sequences with equal prompt, parameters and key have equal output.
    """

    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    noise_key: int
    sample: int = 0
    tag: Any = None
    stop_condition: StopCondition | None = None
    matcher: Matcher | None = None  # where the output stands in its grammar (params.structured); the engine sets it
    max_tokens: int = 0  # output limit: params.max_tokens, or less if the context ends first (the engine lowers it)
    num_speculative_tokens: int | None = None  # most tokens that it drafts in a round; None: as many as the engine may
    # A guess of its whole output, which drafters that look up follow: no text depends on it under coupled verification,
    # and no other rule takes it (`Engine.problem_with`).
    prediction: tuple[int, ...] = ()
    scope: Scope = ONE_FOR_ALL  # the rows with which it shares what was written and computed
    asked: AskedScores | None = None  # log-probabilities of its own tokens that are wanted: then it writes nothing

    output_token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None  # the stop string or stop token id that ended it; None for the model's own end
    error: str | None = None

    num_cached_tokens: int = 0  # prompt tokens whose keys and values were copied from another row, not computed
    num_rounds: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    rounds: list[Round] | None = None  # recorded if it is a list: the caller sets an empty one; not by vLLM
    rejected_token_ids: tuple[int, ...] = ()  # drafted in the newest round where its last token stands, and behind it
    draft_version: int = 0  # of the draft in use when it ended; 0 for the one that its engine was loaded with
    _rounds_by_accepted: list[int] = field(default_factory=list, init=False, repr=False)  # [n]: rounds that accepted n
    _token_ids: list[int] = field(default_factory=list, init=False, repr=False)

    @classmethod
    def create(
        cls,
        prompt_token_ids: Seq[int],
        params: SamplingParams,
        *,
        run_seed: int = 0,
        row: int = 0,
        sample: int = 0,
        attempt: int = 0,
        tag: Any = None,
        stop_condition: StopCondition | None = None,
        num_speculative_tokens: int | None = None,
        scope: Scope = ONE_FOR_ALL,
    ) -> "Sequence":
        """Return a sequence whose noise comes from (run_seed, row, sample, attempt); params.seed replaces two."""
        seed, row = (run_seed, row) if params.seed is None else (params.seed, 0)
        if params.stop and stop_condition is None:
            raise ValueError(
                f"sampling.stop is {params.stop!r}, but token ids have no text: "
                "pass a stop_condition (pipeline.text.text_behind.StopStrings(...).find), or use stop_token_ids"
            )
        if texts := [word for word in params.bad_words if isinstance(word, str)]:
            raise ValueError(
                f"sampling.bad_words has the text {texts[0]!r}, but token ids have no text: name the token ids of each "
                "word (actors.engine.vocabulary.with_bad_word_ids asks a tokenizer)"
            )
        _ = params.bad_word_list  # is made here, in the thread that makes the row, and not in the engine's
        return cls(
            tuple(prompt_token_ids),
            params,
            noise_key(seed, row, sample, attempt),
            sample,
            tag,
            stop_condition,
            num_speculative_tokens=num_speculative_tokens,
            scope=scope,
        )

    def __post_init__(self) -> None:
        """Start with the length limit of the parameters."""
        if self.num_speculative_tokens is not None and self.num_speculative_tokens < 0:
            raise ValueError(f"num_speculative_tokens must not be negative, got {self.num_speculative_tokens}")
        self.max_tokens = self.max_tokens or self.params.max_tokens
        self._token_ids = list(self.prompt_token_ids)

    def __len__(self) -> int:
        """Return the number of tokens, prompt and output together."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def token_ids(self) -> list[int]:
        """Prompt and output, as one list that grows with the output, so that no copy is made. Do not change it."""
        del self._token_ids[len(self) :]
        self._token_ids += self.output_token_ids[len(self._token_ids) - len(self.prompt_token_ids) :]
        return self._token_ids

    @property
    def newest_token(self) -> int:
        return self.output_token_ids[-1] if self.output_token_ids else self.prompt_token_ids[-1]

    @property
    def num_remaining_tokens(self) -> int:
        return self.max_tokens - len(self.output_token_ids)

    @property
    def max_draft_tokens(self) -> int:
        """The longest draft that it may have and could keep: a round adds one token to what it accepts."""
        most, could_keep = self.num_speculative_tokens, self.max_tokens - len(self.output_token_ids) - 1
        return could_keep if most is None or could_keep < most else most

    @property
    def is_finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def accepted_per_position(self) -> list[int]:
        """The number of rounds that accepted the draft token at each position, up to the last one ever accepted."""
        return list(accumulate(reversed(self._rounds_by_accepted[1:])))[::-1]

    def stop_ids(self, eos_token_ids: frozenset[int]) -> frozenset[int]:
        """Return the token ids that may end this sequence."""
        return frozenset(self.params.stop_token_ids) | (frozenset() if self.params.ignore_eos else eos_token_ids)

    def commit(
        self,
        token_ids: Seq[int],
        *,
        num_draft_tokens: int,
        eos_token_ids: frozenset[int],
        logprobs: Seq[TokenLogprobs] = (),
        num_accepted: int | None = None,
        draft_token_ids: Seq[int] = (),
    ) -> None:
        """Append one round's tokens (accepted ones, then next_token), up to an end, and count what was kept.

        `num_accepted` says how many of them are the draft's; unless given, all but the last. The first
        `num_draft_tokens` of `draft_token_ids` are the draft, which must be given where rounds are recorded. What was
        rejected of it is kept until the next round if the round's last token is: that one stands in its place.

        Tokens past an end are not part of the text, so an accepted token among them is not counted as accepted.
        """
        output = self.output_token_ids
        num_before, num_tokens = len(output), len(token_ids)
        self.num_rounds += 1
        self.num_draft_tokens += num_draft_tokens
        stop_ids = self.params.stop_token_ids
        may_end = not eos_token_ids.isdisjoint(token_ids) or (stop_ids and set(stop_ids).intersection(token_ids))
        if num_before + num_tokens < self.max_tokens and not may_end:  # as in nearly all rounds
            output += token_ids
        else:
            for token_id in token_ids:
                output.append(token_id)
                self._finish_at_token(token_id, eos_token_ids)
                if self.is_finished:
                    break
        if self.stop_condition is not None:
            self._finish_at_string(self.stop_condition, num_before)
        num_kept = len(output) - num_before
        if logprobs:
            self.logprobs.extend(logprobs[:num_kept])
        # A draft's token that was decided anew, since the call was close, may be the one that was written.
        rest = tuple(draft_token_ids[num_tokens - 1 : num_draft_tokens])
        is_replaced = num_kept == num_tokens and rest and rest[0] != token_ids[-1]
        self.rejected_token_ids = rest if is_replaced else ()
        num_accepted = num_tokens - 1 if num_accepted is None else num_accepted
        num_accepted = num_accepted if num_accepted < num_kept else num_kept
        self.num_accepted_tokens += num_accepted
        rounds = self._rounds_by_accepted
        if num_accepted >= len(rounds):
            rounds.extend([0] * (num_accepted + 1 - len(rounds)))
        rounds[num_accepted] += 1
        if self.rounds is not None:
            assert len(draft_token_ids) >= num_draft_tokens, "a round is recorded with its draft"
            self.rounds.append(Round(num_accepted, tuple(draft_token_ids[num_accepted:num_draft_tokens])))

    def cut_short(self) -> None:
        """End with the next token, whatever it is, because the rest is not needed. The tokens are not a result."""
        self.max_tokens = len(self.output_token_ids) + 1

    def fail(self, message: str) -> None:
        """End with an error; the tokens so far are not a result."""
        self.finish_reason, self.error = "error", message

    def _finish_at_token(self, token_id: int, eos_token_ids: frozenset[int]) -> None:
        num_output = len(self.output_token_ids)
        may_stop = num_output > self.params.min_tokens
        if may_stop and token_id in self.params.stop_token_ids:
            self.finish_reason, self.stop_reason = "stop", token_id
        elif may_stop and token_id in eos_token_ids and not self.params.ignore_eos:
            self.finish_reason = "stop"
        elif num_output == self.max_tokens:
            self.finish_reason = "length"

    def _finish_at_string(self, stop_condition: StopCondition, num_checked: int) -> None:
        match = stop_condition(self.output_token_ids, max(num_checked, self.params.min_tokens))
        if match is None:
            return
        num_kept, self.stop_reason = match
        assert num_checked < num_kept <= len(self.output_token_ids), "a stop condition keeps what it has checked before"
        self.finish_reason = "stop"
        del self.output_token_ids[num_kept:]
