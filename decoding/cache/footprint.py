"""Footprint: the bytes of a model and of the slots of its cache, as a plan has them."""

from dataclasses import dataclass

from decoding.cache.pages import PAGE, num_pages_for

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
    has_pages: bool = False  # whether rows have pages of keys and values
    tokens_per_slot: int | None = None  # as in `EngineOptions`, where rows have pages

    @property
    def cache(self) -> int:
        """Bytes of keys and values of all slots, and of their states.

        A slot has a spare position beyond its end; where rows have pages, one page is beyond the end of all rows.
        """
        num_tokens = self.num_slots * (self.max_model_len + 1)
        if self.has_pages:
            num_tokens = PAGE * (1 + num_pages_for(self.num_slots, self.max_model_len, self.tokens_per_slot, PAGE))
        return self.cache_per_token * num_tokens + self.num_slots * self.states_per_slot

    @property
    def fixed(self) -> int:
        """Bytes that do not depend on the number of slots."""
        return self.weights + self.recorded

    @property
    def of_slots(self) -> int:
        """Bytes that depend on the number of slots."""
        return self.cache + self.num_slots * self.logits_per_slot

    @property
    def total(self) -> int:
        return self.fixed + self.of_slots

    def __str__(self) -> str:
        return (
            f"{self.total / GIB:.2f} GiB (weights {self.weights / GIB:.2f}, cache {self.cache / GIB:.2f} for "
            f"{self.num_slots} slots of {self.max_model_len} tokens"
            + (f", on average {self.tokens_per_slot}" if self.has_pages and self.tokens_per_slot else "")
            + (f", recordings {(self.total - self.weights - self.cache) / GIB:.2f})" if self.recorded else ")")
        )
