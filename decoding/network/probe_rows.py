"""ProbeRows: the tokens that a probe runs through the slots of a model, and the deviation of the logits it finds."""

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch

SLOTS = (2, 0, 1)
NUM_REAL = 3
RAGGED = (3, 1, 2)  # the number of real tokens of each row when rows are ragged
_PROMPT_LENGTHS = (4, 0, 40)  # the last one longer than any block of positions that a kernel takes at once
_NUM_JUNK = 4
FEWEST_POSITIONS = _NUM_JUNK + 1  # that a model must see, so that one prompt is longer than another


@dataclass(frozen=True)
class ProbeRows:
    """The tokens of each row."""

    prompts: list[list[int]]
    junk: list[list[int]]
    real: list[list[int]]

    @classmethod
    def of(cls, vocab_size: int, reach: int, max_positions: int | None) -> "ProbeRows":
        """Make the rows for a model of this vocabulary and context; the last prompt is longer by `reach`.

        Where the context is shorter, prompts are as long as it allows, and still differ in length.
        """
        middle, shortest, longest = _PROMPT_LENGTHS
        longest += reach
        if max_positions is not None:
            assert max_positions >= FEWEST_POSITIONS
            longest = min(longest, max_positions - _NUM_JUNK)
        middle = min(middle, longest // 2)
        generator = torch.Generator().manual_seed(0)

        def tokens(num_tokens: int) -> list[int]:
            drawn: list[int] = torch.randint(vocab_size, (num_tokens,), generator=generator).tolist()
            return drawn

        return cls(
            prompts=[tokens(length) for length in (middle, shortest, longest)],
            junk=[tokens(_NUM_JUNK) for _ in SLOTS],
            real=[tokens(NUM_REAL) for _ in SLOTS],
        )

    @property
    def starts(self) -> list[int]:
        """The position of each row's first junk token, where the first real token comes later."""
        return [len(prompt) for prompt in self.prompts]

    @property
    def pieces(self) -> list[tuple[list[list[int]], list[int]]]:
        """The prompts in two pieces: the tokens of each row, and where they begin. A long prompt is read in such."""
        halves = [len(prompt) // 2 for prompt in self.prompts]
        cut = [(prompt[:half], prompt[half:]) for prompt, half in zip(self.prompts, halves, strict=True)]
        return [([first for first, _ in cut], [0] * len(cut)), ([second for _, second in cut], halves)]

    @property
    def num_positions(self) -> int:
        """The number of positions that a slot must have."""
        return max(self.starts) + _NUM_JUNK

    @property
    def texts(self) -> list[list[int]]:
        """The tokens that each slot holds in the end."""
        return [prompt + real for prompt, real in zip(self.prompts, self.real, strict=True)]


def relative_deviation(found: Seq[torch.Tensor], expected: Seq[torch.Tensor]) -> float:
    """Return the largest difference of logits, relative to the largest logit; NaN if one of them is NaN."""
    differences = [(each - like).abs().max() for each, like in zip(found, expected, strict=True)]
    size = float(torch.stack([like.abs().max() for like in expected]).max())
    return float(torch.stack(differences).max()) / size if size else float("inf")


def ragged(logits_BJV: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Return each row's logits [J, V] at the tokens that it has when rows are ragged."""
    return [row_JV[:length] for row_JV, length in zip(logits_BJV, RAGGED, strict=True)]
