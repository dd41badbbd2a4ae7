"""Prefixes: how much of a prompt stands in a slot already, so that its keys and values need not be computed."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from decoding.sequence import Sequence

_FIRST_STEP = 16  # tokens compared at first; each further comparison is twice as long


@dataclass(eq=False)
class Resident:
    """A sequence in a slot, from the time the slot is given to it until it is given to somebody else.

    A finished one stays resident: its keys and values stand until they are overwritten, and may be shared until then.
    """

    sequence: Sequence
    number: int  # residents are numbered as they come
    num_filled: int = 0  # prompt tokens whose keys and values stand in the slot
    num_finite: int = 0  # so many of them are known to be finite
    leader: "Resident | None" = None  # whom this one waits for, to copy what it is computing
    num_awaited: int = 0  # tokens that the leader must have filled by then
    is_admitted: bool = False  # has run, or is about to

    @property
    def num_missing(self) -> int:
        """Prompt tokens that must stand before it can run: all but the newest, which each round scores first."""
        return len(self.sequence.prompt_token_ids) - 1 - self.num_filled

    @property
    def is_ready(self) -> bool:
        """Whether it can take part in rounds."""
        return not self.num_missing and not self.sequence.is_finished

    @property
    def is_filling(self) -> bool:
        """Whether its prompt is still being read."""
        return bool(self.num_missing)

    @property
    def has_run(self) -> bool:
        """Whether a round has seen all its keys and values and found its logits finite."""
        return self.sequence.num_rounds > 0 and self.sequence.finish_reason != "error"

    def num_in_common(self, prompt: tuple[int, ...]) -> int:
        """How many first tokens of `prompt`, but its newest, are the first settled tokens of this sequence."""
        if self.sequence.finish_reason == "error":
            return 0  # its slot was cleared, or is not worth looking at
        own, output = self.sequence.prompt_token_ids, self.sequence.output_token_ids
        common = common_prefix(prompt, own)
        if common == len(own) and output:
            common += common_prefix(prompt[common:], tuple(output))
        return min(common, len(prompt) - 1, len(self.sequence) - 1)

    def num_standing(self, num_in_common: int) -> int:
        """How many of those tokens stand in the slot now."""
        return min(num_in_common, self.num_filled) if self.is_filling else num_in_common


def common_prefix(first: Seq[int], second: Seq[int]) -> int:
    """How many first tokens two lists (or two tuples) share.

    Whole stretches are compared at once, in C: 32 slots of 1000 equal tokens take well under a millisecond, and
    prompts that differ early take next to nothing.
    """
    most = min(len(first), len(second))
    low, step = 0, _FIRST_STEP
    while low < most:
        high = min(low + step, most)
        if first[low:high] != second[low:high]:
            break
        low, step = high, 2 * step
    else:
        return most
    while high - low > 1:  # they are equal before low and differ before high
        middle = (low + high) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle
    return low
