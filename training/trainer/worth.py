"""Worth: whether training pays for what is left of a run."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Worth:
    """Whether training pays for what is left of a run: `seconds_saved` against the seconds that training takes."""

    remaining_tokens: int
    tokens_per_s: float  # of the run now
    length_before: float  # tokens a round now (mean acceptance length)
    length_after: float  # and with the draft that is hoped for

    @property
    def seconds_saved(self) -> float:
        """remaining_tokens / tokens_per_s * (1 - length_before / length_after): a round costs what it did before."""
        return self.remaining_tokens / self.tokens_per_s * (1 - self.length_before / self.length_after)
