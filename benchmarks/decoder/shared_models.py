"""SharedModels: engines loaded over models that stay loaded.

Every timed run gets an engine of its own, made by `Engine.load` as a user's would be, so that nothing an engine learned
(drafts from finished texts, acceptance) leaks into the next repeat. What takes long is done once: reading weights,
probing a model, measuring a cost table and the engine's own time. Slot caches are kept by size, so that their memory is
warm.
"""

import gc
from dataclasses import replace
from functools import cache
from typing import Any
from unittest.mock import patch

from benchmarks.decoder.counts.recorder import Role
from decoding import Engine, EngineOptions
from decoding.checkpoint.loading import DType
from decoding.device import Device
from decoding.drafters.base import Drafter
from decoding.engine.measured_costs import measure_costs, with_overhead
from decoding.heads.assistant_folder import fitting_assistant
from decoding.heads.attach import attach_assistant
from decoding.heads.format.folder import is_assistant
from decoding.network.language_model import LanguageModel
from decoding.network.probe import check_model
from decoding.network.slot_network import Exact
from decoding.pace.cost_table import CostTable


class SharedModel(LanguageModel):
    """A LanguageModel that many engines use, one after another. What `allocate` made comes back with its arguments."""

    num_allocations = 0  # grows whenever memory was reserved that has not been touched yet
    # Where memory has no room for several caches. Recorded graphs have the addresses of one, and are lost with it.
    holds_one_cache = False

    def allocate(self, *args: Any, **kwargs: Any) -> None:
        """Allocate as LanguageModel does; the same arguments give the same cache."""
        kept = self._caches_by_size
        size = (args, tuple(sorted(kwargs.items())))
        if size not in kept:
            if self.holds_one_cache:
                self.forget()
            before = dict(self.__dict__)
            super().allocate(*args, **kwargs)
            kept[size] = {name: value for name, value in vars(self).items() if before.get(name) is not value}
            self.num_allocations += 1
        self.__dict__.update(kept[size])

    def share(self) -> "SharedModel":
        """Share as LanguageModel does: a twin has caches of its own."""
        twin = super().share()
        assert isinstance(twin, SharedModel), "a twin is a copy"
        twin.__dict__.pop("_caches", None)
        return twin

    def forget(self) -> None:
        """Give back the memory of every cache."""
        self._caches_by_size.clear()
        self.release()

    @property
    def _caches_by_size(self) -> dict[Any, dict[str, Any]]:
        caches: dict[Any, dict[str, Any]] = self.__dict__.setdefault("_caches", {})
        return caches


class SharedModels:
    """A target and a draft; makes engines over them."""

    def __init__(self, target: str, draft: str, device: Device, dtype: DType, exact: Exact = "auto") -> None:
        """Load both as an engine with these options does; a ValueError says what cannot be."""
        self._folders = (target, draft)
        self._device, self._dtype = device, dtype
        self.target = _load(target, device, dtype, exact)
        # Nothing depends on the draft's numbers. An assistant is no model: it reads in the target.
        self._has_assistant = is_assistant(draft)
        self.draft = self.target if self._has_assistant else _load(draft, device, dtype)
        self.by_role: dict[Role, LanguageModel] = {"target": self.target}
        if not self._has_assistant:
            self.by_role["draft"] = self.draft
        self._check_model, self._measure_costs = cache(check_model), cache(measure_costs)
        self._attach_assistant = cache(attach_assistant)
        self._overheads: dict[Any, CostTable] = {}

    @property
    def holds_one_cache(self) -> bool:
        """Whether another number of slots makes what was allocated and recorded for this one go: on CUDA."""
        return self.target.holds_one_cache

    @property
    def num_draft_bytes(self) -> int:
        """Bytes of the draft's weights."""
        if not self._has_assistant:
            return self.draft.num_weight_bytes
        assistant = fitting_assistant(self._folders[1], self.target.network.config, self._folders[0])
        return assistant.num_weights * self.target.dtype.itemsize

    @property
    def num_allocations(self) -> int:
        """Number of times that an engine was given new caches."""
        return self.target.num_allocations + self.draft.num_allocations

    def engine(self, options: EngineOptions) -> Engine:
        """Return a new engine with these options; an earlier one must not be used any more."""
        if self._has_assistant and options.drafter == "model":
            options = replace(options, drafter="assistant")
        if self.holds_one_cache:
            gc.collect()  # an earlier engine's recordings are in a circle of references
        for model in (self.target, self.draft) if self.holds_one_cache else ():
            # Plain decoding is not to find the memory full of what drafted for another batch.
            if model.cache is not None and model.cache.num_slots != options.num_slots:
                model.forget()
        with (
            patch("decoding.engine.load.load_checked", self._load_checked),
            patch("decoding.engine.load.attach_assistant", self._attach_assistant),
            patch("decoding.engine.measured_costs.measure_costs", self._measure_costs),
            patch("decoding.engine.measured_costs.with_overhead", self._with_overhead),
        ):
            return Engine.load(*self._folders, options, device=self._device, dtype=self._dtype)

    def _with_overhead(
        self, costs: CostTable, target: LanguageModel, drafter: Drafter | None, *sizes: Any
    ) -> CostTable:
        """Measure the engine's own time once for each kind of drafter, in place of the function of this name."""
        key = (costs, target, type(drafter), sizes)
        if key not in self._overheads:
            self._overheads[key] = with_overhead(costs, target, drafter, *sizes)
        return self._overheads[key]

    def _load_checked(self, path: str, *_: object) -> LanguageModel:
        """Return the shared model, in place of the function of this name."""
        model = self.target if path == self._folders[0] else self.draft
        self._check_model(model, path)
        return model


def _load(path: str, device: Device, dtype: DType, exact: Exact = "off") -> SharedModel:
    model = SharedModel.load(path, device, dtype, exact)
    assert isinstance(model, SharedModel), "load makes what it is called on"
    model.holds_one_cache = model.device.type == "cuda"
    return model
