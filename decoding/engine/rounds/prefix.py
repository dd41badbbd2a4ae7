"""Prefixes: how many of a sequence's first tokens are in a slot already, so that they need not be computed."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from decoding.common_prefix import common_prefix
from decoding.network.target import SlotCache
from decoding.sequence import Sequence


@dataclass(eq=False)
class Resident:
    """A sequence in a slot, from the time when it gets the slot until another sequence does.

    A sequence that comes back with output is read like a prompt: all of its tokens but the newest. A finished one stays
    resident, since its keys and values may be shared until they are overwritten.
    """

    sequence: Sequence
    number: int  # residents are numbered in the order in which they come
    num_filled: int = 0  # tokens whose keys and values are in the slot
    num_finite: int = 0  # how many of them are known to be finite
    leader: "Resident | None" = None  # the resident that is reading tokens which this one will copy
    num_awaited: int = 0  # tokens that the leader must have read by then
    num_reserved: int = 0  # positions for which there is memory
    is_admitted: bool = False  # it has run, or is about to

    def __post_init__(self) -> None:
        """Remember what the sequence has when it gets the slot."""
        self._num_to_read = len(self.sequence) - 1
        self._num_earlier_rounds = self.sequence.num_rounds

    @property
    def tokens_to_read(self) -> tuple[int, ...]:
        """The tokens that must be in the slot before it can run: all but the newest, which each round scores first."""
        return tuple(self.sequence.token_ids[: self._num_to_read])

    @property
    def num_missing(self) -> int:
        """How many of the tokens to read are not in the slot yet."""
        return self._num_to_read - self.num_filled

    def num_until_copied(self, followers: "Seq[Resident]", num_read_again: int) -> int:
        """Return how many tokens to read next: all, or those up to the first length that a follower will copy.

        Only a slot with states needs that. What is read at once leaves a state behind its end alone, and a follower
        that drafts reads the last `num_read_again` of the tokens that it waits for again.
        """
        own = [each for each in followers if each.leader is self]
        ends = [each.num_awaited - (num_read_again if each.sequence.asked is None else 0) for each in own]
        return min([self.num_missing, *(end - self.num_filled for end in ends if end > self.num_filled)])

    @property
    def is_ready(self) -> bool:
        """Whether it can take part in rounds."""
        return not self.num_missing and not self.sequence.is_finished

    @property
    def is_running(self) -> bool:
        """Whether it takes part in rounds already, and goes on."""
        return self.is_admitted and self.sequence.finish_reason is None and self.num_filled == self._num_to_read

    @property
    def is_filling(self) -> bool:
        """Whether its tokens are still being read."""
        return bool(self.num_missing)

    @property
    def has_run(self) -> bool:
        """Whether a round has seen all keys and values in this slot and found its logits finite."""
        return self.sequence.num_rounds > self._num_earlier_rounds and self.sequence.finish_reason != "error"

    def is_finite(self, slot: int, num_tokens: int, cache: SlotCache) -> bool:
        """Tell whether its slot may be copied: a value that is not finite would spread to prompts that are sound."""
        if not self.has_run and num_tokens > self.num_finite and cache.is_finite(slot, num_tokens):
            self.num_finite = num_tokens
        return self.has_run or num_tokens <= self.num_finite

    def num_shareable(self, newcomer: "Resident") -> int:
        """Return how many first tokens of a newcomer are also this one's, with all that is asked behind them."""
        num_common, asked = self.num_in_common(newcomer.tokens_to_read), newcomer.sequence.asked
        return num_common if asked is None else asked.num_answered(num_common, self.sequence.asked)

    def num_in_common(self, tokens: tuple[int, ...]) -> int:
        """Return how many of the first tokens are also the first settled tokens of this sequence."""
        if self.sequence.finish_reason == "error":
            return 0  # its slot was cleared, or may hold values that are not finite
        prompt = self.sequence.prompt_token_ids
        if not tokens or tokens[0] != prompt[0]:
            return 0
        num_common = common_prefix(tokens, prompt)
        if num_common == len(prompt) < len(tokens):
            num_common = common_prefix(tokens, tuple(self.sequence.token_ids))
        return min(num_common, len(self.sequence) - 1)

    def num_cached(self, num_in_common: int) -> int:
        """Return how many of those tokens are in the slot now."""
        return min(num_in_common, self.num_filled) if self.is_filling else num_in_common


def grants(reading: dict[int, Resident], followers: Seq[Resident], num_read_again: int, budget: int) -> dict[int, int]:
    """Return how many tokens of a budget each of these residents reads now, by slot; none of them waits for another.

    The one that came first gets half, and the shortest rests share what is left.
    """
    if not reading or budget <= 0:
        return {}
    oldest = min(reading, key=lambda slot: reading[slot].number)
    wanted = {slot: each.num_until_copied(followers, num_read_again) for slot, each in reading.items()}
    granted = {oldest: min(wanted[oldest], -(-budget // 2))}
    budget -= granted[oldest]
    for slot in sorted(reading, key=lambda slot: reading[slot].num_missing - granted.get(slot, 0)):
        before = granted.get(slot, 0)
        more = min(wanted[slot] - before, budget)
        if more:
            granted[slot] = before + more
            budget -= more
    return granted
