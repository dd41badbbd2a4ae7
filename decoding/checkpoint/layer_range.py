"""LayerRange: the layers of a model that a stage has."""

from dataclasses import dataclass
from itertools import accumulate, pairwise


@dataclass(frozen=True)
class LayerRange:
    """Layers `first` up to `end` (not included) of `num_layers`."""

    first: int
    end: int
    num_layers: int

    def __post_init__(self) -> None:
        if not 0 <= self.first < self.end <= self.num_layers:
            raise ValueError(f"no layers {self.first} up to {self.end} in a model of {self.num_layers}")

    @classmethod
    def whole(cls, num_layers: int) -> "LayerRange":
        return cls(0, num_layers, num_layers)

    @property
    def has_embedding(self) -> bool:
        """Whether the input is tokens, not hidden states."""
        return self.first == 0

    @property
    def has_head(self) -> bool:
        """Whether the output is logits, not hidden states."""
        return self.end == self.num_layers

    def __contains__(self, layer: int) -> bool:
        return self.first <= layer < self.end


def cut(num_layers: int, num_stages: int) -> list[LayerRange]:
    """Cut a model into stages of equal size; a remainder goes to the middle, away from embedding and head.

    Raises ValueError if there are fewer layers than stages.
    """
    if not 1 <= num_stages <= num_layers:
        raise ValueError(
            f"a model of {num_layers} layers cannot be cut into {num_stages} stages; use at most that many"
        )
    size, num_larger = divmod(num_layers, num_stages)
    first_larger = (num_stages - num_larger) // 2
    sizes = [size + (first_larger <= stage < first_larger + num_larger) for stage in range(num_stages)]
    return [LayerRange(first, end, num_layers) for first, end in pairwise(accumulate(sizes, initial=0))]
