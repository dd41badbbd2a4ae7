"""The choice of tiles by the clock when a model is loaded: of all that add alike, the fastest on this GPU.

Which one wins changes no number: each must give, with the model's own weights, the bits of the first tile. One that
cannot be compiled, has no room or gives other bits is left out. What was chosen is kept in a file for the processes
that come after, by the GPU's kind, the compiler and the version of the kernels.

Shapes: N lines, I inputs, O outputs.
"""

import fcntl
import hashlib
import json
import logging
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import astuple, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from decoding.device import is_device_fault
from decoding.gpu import linear
from decoding.gpu.available import gpu_kind, kernel_errors
from decoding.gpu.tiles import LINES, Tile, Weight

MOST_SECONDS = 60.0  # of a load; what is left is measured by the next one
_MOST_BYTES = 256 << 20  # of outputs: a product of more is never asked for
_LEAST_BYTES = 1 << 20  # of a weight: a product with a smaller one takes as long as starting it
_UNCACHED_BYTES = 300 << 20  # of weights, read one after the other: more than a GPU's caches hold
_AHEAD_CYCLES = 4_000_000  # in which the host queues what is then timed: about 2 ms
_NUM_TIMES = 3
_FAILURES = (RuntimeError, ValueError)  # of a tile for which there is no room, or no way to lay it out
_FIRST_LINES = (64, 128, 16, 256)  # of the usual rounds, which are measured first

_log = logging.getLogger(__name__)

Clock = Callable[[Callable[[], object]], float]  # the seconds that a GPU takes for what is called
Factors = tuple[Any, Any]  # a layer with a weight [O, I], and the layer of its gate or None


def gpu_clock(run: Callable[[], object]) -> float:
    """Return the seconds that the GPU takes for what is run, at best, without the host's."""
    took = []
    for _ in range(_NUM_TIMES):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda._sleep(_AHEAD_CYCLES)  # type: ignore[no-untyped-call]
        begin.record()
        run()
        end.record()
        end.synchronize()
        took.append(float(begin.elapsed_time(end)) / 1e3)
    return min(took)


def choose_tiles(products: Iterable[Factors], folder: Path, clock: Clock = gpu_clock) -> None:
    """Give each layer the fastest tiles for its products, from a file in `folder` or by the clock.

    A layer's `tiles` are replaced. Raises an error of the device that says that it failed. One process at a time
    measures on a GPU: kernels of another one would take a part of it.
    """
    by_weight: dict[Weight, list[Factors]] = {}
    for layer, gate in products:
        num_outputs, num_inputs = layer.weight.shape
        weight = Weight(num_outputs, num_inputs, layer.weight.dtype, 1 if gate is None else 2)
        if layer.weight.nbytes >= _LEAST_BYTES:
            by_weight.setdefault(weight, []).append((layer, gate))
    if not by_weight:
        return
    device = next(iter(by_weight.values()))[0][0].weight.device
    with _alone_on(device, folder):
        _choose(by_weight, device, folder, clock)
    if device.type == "cuda":
        torch.cuda.empty_cache()  # the plan of slots counts what is free


@contextmanager
def _alone_on(device: torch.device, folder: Path) -> Iterator[None]:
    """Wait until no other process has this GPU's lock, and hold it; go on without it where no file can be locked."""
    gpu = torch.cuda.get_device_properties(device).uuid if device.type == "cuda" else device.type
    with ExitStack() as stack:
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context((folder / f"tiles-{gpu}.lock").open("w"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                _log.info("another process measures tiles on this GPU; this one begins when it has ended")
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _choose(by_weight: Mapping[Weight, list[Factors]], device: torch.device, folder: Path, clock: Clock) -> None:
    began = time.monotonic()
    card = _card(device)
    file = folder / f"tiles-{hashlib.sha256(json.dumps(card).encode()).hexdigest()[:16]}.json"
    kept, measured, num_found, num_left = _kept(file, card), dict[str, Any](), 0, 0
    for num_lines in (*_FIRST_LINES, *(lines for lines in LINES if lines not in _FIRST_LINES)):
        for weight, layers in by_weight.items():
            every, key = list(weight.tiles(num_lines)), f"{num_lines} x {weight}"
            if len(every) == 1 or num_lines * weight.num_outputs * 2 > _MOST_BYTES:
                continue
            tile = next((tile for tile in every if list(astuple(tile)) == kept.get(key)), None)
            num_found += tile is not None
            if tile is None and time.monotonic() < began + MOST_SECONDS:
                tile = fastest(weight, layers, num_lines, clock, began + MOST_SECONDS)
                measured |= {} if tile is None else {key: astuple(tile)}
            num_left += tile is None
            if tile is not None:
                for layer, _ in layers:
                    layer.tiles = {**layer.tiles, (weight.num_weights, num_lines): tile}
    if measured:
        _keep(file, card, measured)
    _log.info(
        "tiles of products: %d measured, %d from %s, %d left, in %.0f s of at most %.0f at a load",
        len(measured), num_found, file, num_left, time.monotonic() - began, MOST_SECONDS,
    )  # fmt: skip


@torch.inference_mode()
def fastest(
    weight: Weight, layers: Sequence[Factors], num_lines: int, clock: Clock, end: float = float("inf")
) -> Tile | None:
    """Return the fastest tile of those with the bits of the first one; None if that one fails, or time is over.

    All layers have such a weight; time is over when `time.monotonic` has come to `end`.
    """
    of = layers[0][0].weight
    device, several = of.device, layers[: max(2, _UNCACHED_BYTES // (weight.num_weights * of.nbytes))]
    first, *others = weight.tiles(num_lines)
    best, least, x_NI = None, float("inf"), None
    for tile in (first, *others):
        if time.monotonic() > end:
            return None
        try:
            if x_NI is None:
                x_NI = torch.empty(num_lines, weight.num_inputs, dtype=weight.dtype, device=device)
                x_NI.normal_(generator=torch.Generator(device).manual_seed(0))
            found_NO = _computed(weight, x_NI, layers[:1], tile)
            if best is None:
                expected_NO = found_NO
            elif not torch.equal(found_NO, expected_NO):
                _log.warning("a tile gives other bits, and is left out: %s of %s", tile, weight)
                continue
            seconds = clock(partial(_computed, weight, x_NI, several, tile))
        except _FAILURES + kernel_errors() as error:
            if is_device_fault(error):
                raise
            if best is None:
                _log.warning("no tile is measured for %d lines and %s: %s", num_lines, weight, error)
                return None
            continue
        if seconds < least:
            best, least = tile, seconds
    return best


def _computed(weight: Weight, x_NI: torch.Tensor, layers: Sequence[Factors], tile: Tile) -> torch.Tensor:
    """Multiply with the weights of these layers by one tile, and return the last product."""
    tiles = {(weight.num_weights, len(x_NI)): tile}
    for layer, gate in layers:
        if weight.num_parts > 1:  # few outputs, of which rounding to 16 bits could hide a change of order
            of = linear.sums(x_NI, layer.weight, None, tiles)
            out_NO, _ = linear.add_parts(replace(of, dtype=torch.float32), None)
        else:
            out_NO = linear.multiply(x_NI, layer.weight, None, None, gate and (gate.weight, None), tiles)
    return out_NO


def _card(device: torch.device) -> list[Any]:
    """Return what the times depend on, beside weights and lines."""
    name, capability = "the interpreter", (0, 0)
    if device.type == "cuda":
        name, capability = torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device)
    return [gpu_kind(name), *capability]


def _kept(file: Path, card: list[Any]) -> dict[str, Any]:
    """Return the sizes of the tiles that a file has for this card; none if it cannot be read or is of another one."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        content = json.loads(file.read_text())
        if content["card"] == card:
            return dict(content["tiles"])
    return {}


def _keep(file: Path, card: list[Any], measured: dict[str, Any]) -> None:
    """Replace a file by one that has these tiles, too; a folder that cannot be written is told of."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=file.parent) as scratch:
            made = Path(scratch) / "made"
            made.write_text(json.dumps({"card": card, "tiles": _kept(file, card) | measured}))
            made.replace(file)
    except OSError as error:
        _log.warning("the next process measures tiles again, since they cannot be kept: %s", error)
