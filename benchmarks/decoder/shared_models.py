"""SharedModels: engines loaded over models that stay loaded.

Every timed run gets an engine of its own, made by `Engine.load` as a user's would be, so that nothing an engine learned
(drafts from finished texts, acceptance) leaks into the next repeat. What takes long is done once: reading weights,
probing a model, measuring a cost table. Slot caches are kept by size, so that their memory is warm.
"""

from functools import cache
from typing import Any
from unittest.mock import patch

import torch

from decoding import Engine, EngineOptions
from decoding.checkpoint.loading import DType
from decoding.device import Device
from decoding.engine.measured_costs import measure_costs
from decoding.network.language_model import LanguageModel
from decoding.network.probe import check_model


class SharedModel(LanguageModel):
    """A LanguageModel that many engines use, one after another. What `allocate` made comes back with its arguments."""

    num_allocations = 0  # grows whenever memory was reserved that has not been touched yet

    def allocate(self, *args: Any, **kwargs: Any) -> None:
        """Allocate as LanguageModel does; the same arguments give the same cache. CUDA memory holds one at a time."""
        kept: dict[Any, dict[str, Any]] = self.__dict__.setdefault("_kept_by_size", {})
        size = (args, tuple(sorted(kwargs.items())))
        if size not in kept:
            if self.device.type == "cuda":
                kept.clear()
                self.cache = None
                torch.cuda.empty_cache()
            before = dict(self.__dict__)
            super().allocate(*args, **kwargs)
            kept[size] = {name: value for name, value in vars(self).items() if before.get(name) is not value}
            self.num_allocations += 1
        self.__dict__.update(kept[size])


class SharedModels:
    """A target and a draft; makes engines over them."""

    def __init__(self, target: str, draft: str, device: Device, dtype: DType) -> None:
        """Load both; a ValueError says what cannot be."""
        self._folders = (target, draft)
        self._device, self._dtype = device, dtype
        self.target = _load(target, device, dtype)
        self.draft = _load(draft, device, dtype)
        self._check_model, self._measure_costs = cache(check_model), cache(measure_costs)

    @property
    def num_allocations(self) -> int:
        """Number of times that an engine was given new caches."""
        return self.target.num_allocations + self.draft.num_allocations

    def engine(self, options: EngineOptions) -> Engine:
        """Return a new engine with these options; an earlier one must not be used any more."""
        with (
            patch("decoding.engine.load.LanguageModel", self),
            patch("decoding.engine.load.check_model", self._check_model),
            patch("decoding.engine.engine.measure_costs", self._measure_costs),
        ):
            return Engine.load(*self._folders, options, device=self._device, dtype=self._dtype)

    def load(self, path: str, *_: object) -> LanguageModel:
        """Return the shared model, in place of LanguageModel.load."""
        return self.target if path == self._folders[0] else self.draft


def _load(path: str, device: Device, dtype: DType) -> SharedModel:
    model = SharedModel.load(path, device, dtype)
    assert isinstance(model, SharedModel), "load makes what it is called on"
    return model
