"""Footprint: the bytes of a model and of the slots of its cache, as a plan has them."""

from dataclasses import dataclass

GIB = 2**30
SHARE = 0.9  # of a GPU's memory that is planned: a forward needs the rest for a moment, and CUDA itself


@dataclass(frozen=True)
class Footprint:
    """Numbers of bytes. What a forward needs for a moment depends on device and shapes, and is not included."""

    weights: int
    cache_per_token: int  # keys and values of one token in one slot, over all layers
    num_slots: int
    max_model_len: int
    states_per_slot: int = 0  # what recurrent layers keep of one row, for all lengths to which it can be rolled back
    recorded: int = 0  # on a GPU: recordings
    logits_per_slot: int = 0  # that recordings write

    @property
    def cache(self) -> int:
        """Bytes of keys and values of all slots, each with a spare position beyond its end, and of their states."""
        return self.num_slots * (self.cache_per_token * (self.max_model_len + 1) + self.states_per_slot)

    @property
    def fixed(self) -> int:
        """Bytes that do not depend on the number of slots."""
        return self.weights + self.recorded

    @property
    def of_a_slot(self) -> int:
        """Bytes of each slot."""
        return self.cache // self.num_slots + self.logits_per_slot

    @property
    def total(self) -> int:
        return self.fixed + self.num_slots * self.of_a_slot

    def __str__(self) -> str:
        return (
            f"{self.total / GIB:.2f} GiB (weights {self.weights / GIB:.2f}, cache {self.cache / GIB:.2f} for "
            f"{self.num_slots} slots of {self.max_model_len} tokens"
            + (f", recordings {(self.total - self.weights - self.cache) / GIB:.2f})" if self.recorded else ")")
        )
