"""`python -m benchmarks.gpu_check.round_profile --json FILE`: where the time of a round goes, on the 8B pair.

20 rounds in which no prompt is read are run under torch's profiler, once everything is recorded and compiled.
"""

import argparse
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.gpu_check.pair import ACCEPTANCE, DTYPE, SIZE
from benchmarks.harness import listed, write_json
from benchmarks.pair_factory import SHAPES, cached_pair
from benchmarks.roofline.gpus import gpu_of
from benchmarks.roofline.launched import can_predict, launched_round
from benchmarks.roofline.model_size import ModelSize
from decoding import Engine, EngineOptions, SamplingParams
from decoding import Sequence as Row
from decoding.engine.load import Parts, load_parts

_NUM_ROUNDS = 20
_WARM_UP = 12  # rounds: each shape is run, recorded and replayed
_PROMPT_TOKENS, _NEW_TOKENS = 1024, 512  # 512: no row ends in the rounds that are run
_WAITS = ("cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize", "cuStreamSynchronize")
_REPLAYS = ("cudaGraphLaunch", "cuGraphLaunch")
_LAUNCHES = ("LaunchKernel", "Memcpy", "Memset")  # parts of the names of calls, by the runtime or the driver


class Event(NamedTuple):
    """Something that happened in the rounds: a call of the host, or work of the device."""

    name: str
    is_on_device: bool
    start_us: float
    end_us: float


def summary(events: Iterable[Event], num_rounds: int, seconds: float) -> dict[str, Any]:
    """Return what the rounds did, which took `seconds` together; kernels by the time they took, longest first."""
    work: list[Event] = []
    calls = Counter[str]()
    for event in events:
        if event.is_on_device:
            work.append(event)
        else:
            calls[event.name] += 1
    busy_us = _union(work)
    took_us, times = defaultdict[str, float](float), Counter[str]()
    for event in work:
        took_us[event.name] += event.end_us - event.start_us
        times[event.name] += 1
    total_us = sum(took_us.values()) or 1
    return {
        "num_rounds": num_rounds,
        "seconds_per_round": seconds / num_rounds,
        "busy_share": busy_us / (seconds * 1e6),
        "waits_per_round": sum(calls[name] for name in _WAITS) / num_rounds,
        "replays_per_round": sum(calls[name] for name in _REPLAYS) / num_rounds,
        "launches_per_round": sum(n for name, n in calls.items() if any(part in name for part in _LAUNCHES))
        / num_rounds,
        "calls_per_round": {name: n / num_rounds for name, n in calls.most_common() if name.startswith("cu")},
        "kernels": [
            {
                "name": name,
                "share": us / total_us,
                "per_round": times[name] / num_rounds,
                "us_per_round": us / num_rounds,
            }
            for name, us in sorted(took_us.items(), key=lambda kernel: -kernel[1])[:40]
        ],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the rounds and write where their time went; return 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check.round_profile")
    parser.add_argument("--cache", type=Path, default=Path("out/pairs"), metavar="FOLDER")
    parser.add_argument("--batch", type=int, default=64, metavar="ROWS")
    parser.add_argument("--drafted", type=listed(int), default=(0, 2), metavar="TOKENS", help="default 0,2")
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    given = parser.parse_args(arguments)
    pair = cached_pair(given.cache, SIZE, ACCEPTANCE, DTYPE, device="cuda")
    parts = load_parts(str(pair / "target"), str(pair / "draft"), _options(given.batch, 2), "cuda", DTYPE)
    profiles = []
    for num_drafted in given.drafted:
        profiles.append({"drafted": num_drafted, **_profile(parts, given.batch, num_drafted)})
        if not num_drafted:
            profiles[-1]["predicted_seconds"] = predicted_seconds(torch.cuda.get_device_name(), given.batch)
        write_json(given.json, {"batch": given.batch, "profiles": profiles})
    return 0


def predicted_seconds(device_name: str, batch: int) -> float | None:
    """Return what `benchmarks.roofline` says of a round without drafts; None of a GPU that it does not know."""
    gpu, shape = gpu_of(device_name), SHAPES[SIZE]
    if gpu is None or not can_predict(gpu):
        return None
    size = ModelSize.of_config(shape.config())
    assert size is not None, "the pair is of the kind that is counted"
    return launched_round(gpu, shape, size, batch, _PROMPT_TOKENS + _WARM_UP + _NUM_ROUNDS // 2).seconds


def _options(batch: int, num_drafted: int) -> EngineOptions:
    return EngineOptions(
        num_slots=batch,
        max_model_len=_PROMPT_TOKENS + _NEW_TOKENS,
        num_speculative_tokens=max(1, num_drafted),
        draft_length="fixed",
        drafter="model" if num_drafted else "none",
        draft_window=0 if num_drafted else None,  # random weights depend on every position alike
    )


def _profile(parts: Parts, batch: int, num_drafted: int) -> dict[str, Any]:
    """Return the speed of reading prompts and of writing, and what the rounds did."""
    if not num_drafted:
        parts = replace(parts, draft=None, drafter_name="none")
    engine = Engine.over(parts, _options(batch, num_drafted))
    _read_prompts(engine, batch)
    engine.clear()
    prompts_seconds = _read_prompts(engine, batch)
    for _ in range(_WARM_UP):
        engine.step()
    written = _num_written(engine)
    events, seconds = _profiled(engine)
    tokens_per_round = (_num_written(engine) - written) / (2 * _NUM_ROUNDS)
    for lane in engine.lanes:
        lane.close()
    return {
        "prompt_tokens_per_second": batch * _PROMPT_TOKENS / prompts_seconds,
        "tokens_per_round": tokens_per_round,
        **summary(events, _NUM_ROUNDS, seconds),
    }


def _num_written(engine: Engine) -> int:
    return sum(len(row.output_token_ids) for row in engine.in_flight)


def _read_prompts(engine: Engine, batch: int) -> float:
    """Let all rows write; return the seconds until they do."""
    params = SamplingParams(temperature=0.8, top_p=0.95, max_tokens=_NEW_TOKENS, ignore_eos=True)
    generator = torch.Generator().manual_seed(0)
    prompts_BT = torch.randint(SHAPES[SIZE].vocab, (batch, _PROMPT_TOKENS), generator=generator)
    torch.cuda.synchronize()
    began = time.perf_counter()
    engine.submit(Row.create(prompt, params, row=row) for row, prompt in enumerate(prompts_BT.tolist()))
    while not all(row.num_rounds for row in engine.in_flight) or engine.up_next():
        engine.step()
    return time.perf_counter() - began


def _profiled(engine: Engine) -> tuple[list[Event], float]:
    """Return the events of some rounds and their seconds, measured without the profiler."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(_NUM_ROUNDS):
        engine.step()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(_NUM_ROUNDS):
            engine.step()
    on_device = torch.profiler.DeviceType.CUDA
    events = [
        Event(event.name, event.device_type == on_device, event.time_range.start, event.time_range.end)
        for event in profile.events()
    ]
    return events, seconds


def _union(work: Sequence[Event]) -> float:
    """Return the microseconds in which the device did anything: streams may overlap."""
    busy, behind = 0.0, float("-inf")
    for event in sorted(work, key=lambda event: event.start_us):
        busy += max(0.0, event.end_us - max(event.start_us, behind))
        behind = max(behind, event.end_us)
    return busy


if __name__ == "__main__":
    sys.exit(main())
