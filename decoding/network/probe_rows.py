"""ProbeRows: what a probe runs through the slots of a model, and how far off the logits are that it finds.

Prompts of many lengths are prefilled into scattered slots; junk tokens follow and are rolled back; then come real ones.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch

SLOTS = (2, 0, 1)
NUM_REAL = 3
RAGGED = (3, 1, 2)  # so many of the real tokens each row has where rows are ragged
_PROMPT_LENGTHS = (4, 0, 40)  # the last one longer than any block of positions that a kernel takes at once
_NUM_JUNK = 4


@dataclass(frozen=True)
class ProbeRows:
    """Tokens of each row."""

    prompts: list[list[int]]
    junk: list[list[int]]
    real: list[list[int]]

    @classmethod
    def of(cls, vocab_size: int, window: int, max_positions: int | None) -> "ProbeRows":
        """For a model of this vocabulary and context; the last prompt is longer than `window`, if there is one."""
        reach = window
        if max_positions is not None:
            reach = max(0, min(reach, max_positions - max(_PROMPT_LENGTHS) - _NUM_JUNK - 1))
        generator = torch.Generator().manual_seed(0)

        def tokens(num_tokens: int) -> list[int]:
            drawn: list[int] = torch.randint(vocab_size, (num_tokens,), generator=generator).tolist()
            return drawn

        *shorter, longest = _PROMPT_LENGTHS
        return cls(
            prompts=[tokens(length) for length in (*shorter, longest + reach)],
            junk=[tokens(_NUM_JUNK) for _ in SLOTS],
            real=[tokens(NUM_REAL) for _ in SLOTS],
        )

    @property
    def starts(self) -> list[int]:
        """Where the junk stands, and then the real tokens."""
        return [len(prompt) for prompt in self.prompts]

    @property
    def num_positions(self) -> int:
        """So many a slot must have."""
        return max(self.starts) + _NUM_JUNK

    @property
    def texts(self) -> list[list[int]]:
        """What each slot holds in the end."""
        return [prompt + real for prompt, real in zip(self.prompts, self.real, strict=True)]


def relative_deviation(found: Seq[torch.Tensor], expected: Seq[torch.Tensor]) -> float:
    """Largest difference of logits, relative to the largest logit; not a number where any of them is none."""
    differences = [(each - like).abs().max() for each, like in zip(found, expected, strict=True)]
    size = float(torch.stack([like.abs().max() for like in expected]).max())
    return float(torch.stack(differences).max()) / size if size else float("inf")


def ragged(logits_BJV: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Of each row's logits [J, V], those at the tokens that it has where rows are ragged."""
    return [row_JV[:length] for row_JV, length in zip(logits_BJV, RAGGED, strict=True)]
