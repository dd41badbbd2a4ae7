"""Work: what a run's forwards read, and how long a GPU at its limits would take for them.

The limits are those of `benchmarks/roofline`. Unlike a replay of the forwards, which is as slow as the code is, they
know nothing of the code.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from benchmarks.decoder.counts.recorder import ForwardRecorder, Role
from benchmarks.roofline.gpus import Gpu, gpu_of
from benchmarks.roofline.ideal import ROUND_SECONDS, STEP_SECONDS, forward_seconds
from benchmarks.roofline.model_size import ModelSize
from decoding.network.language_model import LanguageModel

_MAX_UNCOUNTED = 0.01  # share of a model's weights that its size may leave out: norms and biases
_SECONDS_BESIDE = {"prefill": 0.0, "target": ROUND_SECONDS, "draft": STEP_SECONDS}  # each forward's, by phase


@dataclass(frozen=True, kw_only=True)
class Work:
    """Bytes of weights, keys and values that a run must read, and the least time of its forwards."""

    prefill_bytes: int
    round_bytes: int  # of all rounds together, target and draft
    roofline_seconds: float | None  # None: the limits of this device are not known
    roofline_round_seconds: float | None  # of all rounds together: without prefill


def work_of(recorder: ForwardRecorder) -> Work | None:
    """Return the work of a recorded run; None where a model is of a kind that ModelSize does not describe."""
    sizes = {role: size_of_model(model) for role, model in recorder.models.items()}
    known: Mapping[Role, ModelSize] = {role: size for role, size in sizes.items() if size is not None}
    if any(role not in known for _, role, _ in recorder.forwards):
        return None
    gpu = _limits(recorder.models["target"])
    read = {"prefill": 0, "target": 0, "draft": 0}
    seconds = {"prefill": 0.0, "target": 0.0, "draft": 0.0}
    for (phase, role, forward), count in recorder.forwards.items():
        size = known[role]
        read[phase] += count * (size.weight_bytes_read(forward) + size.cache_bytes_read(forward))
        if gpu is not None:
            seconds[phase] += count * (forward_seconds(gpu, size, forward) + _SECONDS_BESIDE[phase])
    return Work(
        prefill_bytes=read["prefill"],
        round_bytes=read["target"] + read["draft"],
        roofline_seconds=None if gpu is None else sum(seconds.values()),
        roofline_round_seconds=None if gpu is None else seconds["target"] + seconds["draft"],
    )


def size_of_model(model: LanguageModel) -> ModelSize | None:
    """Return a model's size by its configuration; None if that is not the size of the weights that it has."""
    size = ModelSize.of_config(model.network.config, model.dtype.itemsize)
    if size is None or abs(model.num_weight_bytes / size.weight_bytes - 1) > _MAX_UNCOUNTED:
        return None
    return size


def _limits(model: LanguageModel) -> Gpu | None:
    """Return the GPU that runs the model; None for one that is not known, and where products are not in 16 bits."""
    if model.device.type != "cuda" or model.dtype not in (torch.bfloat16, torch.float16):
        return None
    return gpu_of(model.runs_on)
