"""ForwardGraphs: forwards of few tokens, recorded once for each shape as CUDA graphs, and replayed.

A forward of a round starts a thousand small kernels, and Python takes longer to start one than the GPU to run it. A
graph starts them all at once. It reads and writes fixed addresses, so the inputs of a forward are copied to the
recording's own tensors. Shapes are rounded up, so that few recordings serve all rounds. The rest is padding: rows that
read position 0, tokens that are written to the spare position of slot 0.

Shapes: B rows, T tokens of each, N tokens in all, J wanted positions of each row, V vocabulary, L visible positions.
"""

import os
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from decoding.cache.features import Features
from decoding.cache.kv_cache import LENGTH_BUCKET, KVCache
from decoding.cache.plan import Packing, Plan
from decoding.fused.recordings import CudaRecorder, Recorder, Recordings, rounded

_MAX_TOKENS = 16  # of a row; a forward with more is a prefill, which keeps a GPU busy by itself


@dataclass(frozen=True)
class Inputs:
    """The inputs of one forward."""

    tokens_N: torch.Tensor
    positions_N: torch.Tensor
    wanted_BJ: torch.Tensor  # indexes into the N tokens
    plan: Plan
    features: Features | None = None  # where the tokens' features are left; None: no drafter reads them


Forward = Callable[[Inputs, KVCache], torch.Tensor]  # logits [B * J, V], or without a head hidden states [N, E]


class ForwardGraphs:
    """The recordings of one network over one cache at a time."""

    def __init__(self, forward: Forward, record: Recorder, *, has_head: bool = True) -> None:
        """Use `record` (see `CudaRecorder` in recordings.py) to make recordings of `forward`."""
        self._forward, self._has_head = forward, has_head
        self._cache: weakref.ref[KVCache] | None = None
        self.recordings = Recordings[_Shape](record, "forwards")
        # Shared by the recordings: outputs of their own would take too much memory.
        self._logits = self._features = torch.empty(0, 0)
        self._layer_ids: tuple[int, ...] = ()  # whose streams the recordings read

    def run(self, inputs: Inputs, cache: KVCache) -> torch.Tensor:
        """Run a forward; return what it returns, which is valid until the next one.

        Features are copied out of the recording's output without its padding, so that they stay valid.
        """
        plan = inputs.plan
        num_rows, num_tokens = plan.positions_BT.shape
        num_wanted = inputs.wanted_BJ.shape[1]
        if not num_wanted or num_tokens > _MAX_TOKENS:  # else padded, recorded or not: ranks gather as many lines
            return self._forward(inputs, cache)
        layer_ids = () if inputs.features is None else inputs.features.tap.layer_ids
        # The recordings have the addresses of another cache, or read other streams.
        if self._cache is None or self._cache() is not cache or layer_ids != self._layer_ids:
            self.forget()
            self._cache, self._layer_ids = weakref.ref(cache), layer_ids
        rows = min(rounded(num_rows), cache.num_slots)
        in_all = rows * num_tokens if plan.packing is None else rounded(len(inputs.tokens_N))
        visible = min(rounded(-(-plan.num_visible // LENGTH_BUCKET)) * LENGTH_BUCKET, cache.num_positions)
        key = (rows, num_tokens, in_all, num_wanted, visible, plan.slots_B is None, plan.packing is None)
        shape = self.recordings.inputs(key, lambda: _Shape(inputs, rows, in_all, visible, cache.num_positions))
        shape.take(inputs)
        cache.use(shape.inputs.plan)
        logits = self.recordings.run(key, lambda: self._run(shape, cache))
        if inputs.features is not None:
            inputs.features.add(self._features[: len(inputs.tokens_N)].clone())
        return logits[: num_rows * num_wanted if self._has_head else len(inputs.tokens_N)]

    def forget(self) -> None:
        """Drop all recordings, and give back their memory with the next `torch.cuda.empty_cache`."""
        self.recordings.forget()
        self._logits = self._features = torch.empty(0, 0)

    def _run(self, shape: "_Shape", cache: KVCache) -> torch.Tensor:
        """Run the shape's forward; leave its features, and return its logits, padding included."""
        features = None if shape.tap is None else Features(shape.tap)
        logits = self._forward(replace(shape.inputs, features=features), cache)
        if features is not None:
            found_NH = features.take()
            self._features = self._with_room(self._features, found_NH)
            self._features[: len(found_NH)].copy_(found_NH)
        self._logits = self._with_room(self._logits, logits)
        return self._logits[: len(logits)].copy_(logits)

    def _with_room(self, lines: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
        """Return these lines if they are enough, else room for twice as many as were found.

        They are never replaced while a shape is recorded, since it has been run before.
        """
        if len(lines) >= len(found):
            return lines
        self.recordings.record_anew()
        return found.new_empty(2 * len(found), found.shape[1])


def graphs_on(device: torch.device, forward: Forward, *, has_head: bool = True) -> ForwardGraphs | None:
    """Return recordings of a forward on this device; None where nothing is recorded: on a CPU, or by DRAY_GRAPHS."""
    if device.type != "cuda" or os.environ.get("DRAY_GRAPHS", "on") == "off":
        return None
    return ForwardGraphs(forward, CudaRecorder(), has_head=has_head)


class _Shape:
    """The input tensors of the forwards of one shape."""

    def __init__(self, like: Inputs, num_rows: int, num_tokens: int, num_visible: int, spare: int) -> None:
        def padding(name: str, tensor: torch.Tensor) -> torch.Tensor:
            length = num_tokens if name.endswith("_N") else num_rows + (name == "row_first")
            return tensor.new_full((length, *tensor.shape[1:]), spare if name == "written_N" else 0)

        self._spare = spare
        self._sizes: tuple[int, int] | None = None
        self.tap = None if like.features is None else like.features.tap
        padded: Inputs = _changed(replace(like, features=None), padding)
        self.inputs = replace(padded, plan=replace(padded.plan, num_visible=num_visible))

    def take(self, inputs: Inputs) -> None:
        """Copy these inputs into the shape's own tensors."""
        sizes = (len(inputs.plan.positions_BT), len(inputs.tokens_N))
        is_smaller = self._sizes is not None and (sizes[0] < self._sizes[0] or sizes[1] < self._sizes[1])
        self._sizes = sizes
        for (name, mine), (_, given) in zip(_tensors(self.inputs), _tensors(inputs), strict=True):
            if is_smaller:
                mine.fill_(self._spare if name == "written_N" else 0)
            mine[: len(given)].copy_(given, non_blocking=True)


def _changed(of: Any, change: Callable[[str, torch.Tensor], torch.Tensor]) -> Any:
    """Return inputs, a plan or a packing whose tensors, inner ones too, are what `change` makes of name and tensor."""
    found = {name: change(name, value) for name, value in vars(of).items() if isinstance(value, torch.Tensor)}
    found |= {name: _changed(value, change) for name, value in vars(of).items() if isinstance(value, Plan | Packing)}
    return replace(of, **found)


def _tensors(of: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the names and tensors of inputs, of a plan or of a packing, with those of what is in it."""
    for name, value in vars(of).items():
        if isinstance(value, torch.Tensor):
            yield name, value
        elif isinstance(value, Plan | Packing):
            yield from _tensors(value)
