"""What a target in stages costs: tokens a second against the same target in one process, on the same cores.

`python -m benchmarks.stages --target FOLDER [--draft FOLDER]` prints a table. On one machine stages share its cores, so
the ideal is the target in one process: what is missing is what the stages' messages take, and what the cores lose to
each other. On machines of their own, stages add memory and lose the same.
"""

import argparse
import os
import pickle
from contextlib import closing
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import ray
import torch

from actors.engines.dray import load_sharded
from actors.placement import StageSettings
from actors.settings import ModelSettings
from actors.stages.target import ShardedModel
from benchmarks.hardware import describe_machine
from benchmarks.harness import listed, seconds_of
from decoding import Engine, EngineOptions, SamplingParams
from decoding.checkpoint.supported import load_config

_REPEATS = 3


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stages", description=__doc__.splitlines()[0])
    parser.add_argument("--target", required=True, help="folder of the target")
    parser.add_argument("--draft", help="folder of the draft; without one nothing is drafted")
    parser.add_argument("--stages", type=listed(int), default=(2, 3), help="numbers of stages")
    parser.add_argument("--tensor-parallel", type=listed(int), default=(), help="numbers of ranks of a single stage")
    parser.add_argument("--rows", type=int, default=8, help="rows at once, and in all")
    parser.add_argument("--tokens", type=int, default=48, help="output tokens of a row")
    options = parser.parse_args()
    ray.init(num_cpus=16, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    print(describe_machine(), flush=True)
    cores = len(os.sched_getaffinity(0))
    print("| placement | threads | tokens/s | of one process with all cores |\n|---|---|---|---|", flush=True)
    torch.set_num_threads(cores)
    whole = _measured(options, None, 1)
    _print_row("in one process", str(cores), whole, whole)
    torch.set_num_threads(1)
    _print_row("in one process", "1", _measured(options, None, 1), whole)
    for count in options.stages:
        threads = max(1, cores // count)
        model = _sharded(options.target, count, threads)
        with closing(model.pipeline):
            for num_lanes in sorted({1, count, count + 1}):
                speed = _measured(options, model, num_lanes)
                _print_row(f"{count} stages, {num_lanes} lanes", f"{threads} each", speed, whole)
            if count == options.stages[0]:
                _print_hops(options.target, model, options.rows)
    for num_ranks in options.tensor_parallel:
        threads = max(1, cores // num_ranks)
        model = _sharded(options.target, 1, threads, num_ranks)
        with closing(model.pipeline):
            _print_row(f"1 stage of {num_ranks} ranks", f"{threads} each", _measured(options, model, 1), whole)


def _print_row(name: str, threads: str, speed: float, whole: float) -> None:
    print(f"| {name} | {threads} | {speed:.1f} | {speed / whole:.2f} |", flush=True)


def _sharded(target: str, count: int, num_threads: int, num_ranks: int = 1) -> ShardedModel:
    models = ModelSettings(target=target, device="cpu", dtype="float32")
    return load_sharded(models, StageSettings(count=count, num_cpus=num_threads, tensor_parallel=num_ranks))


def _measured(options: argparse.Namespace, model: ShardedModel | None, num_lanes: int) -> float:
    """Return tokens per second, the median of a few runs."""
    engine = Engine.load(
        options.target,
        options.draft,
        EngineOptions(num_slots=options.rows, max_model_len=512, draft_length="fixed", num_speculative_tokens=4),
        device="cpu",
        dtype="float32",
        target_model=model,
        num_lanes=num_lanes,
    )
    vocab_size = engine.target.vocab_size
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(vocab_size, (64,), generator=generator).tolist() for _ in range(options.rows)]
    params = SamplingParams(temperature=0.8, max_tokens=options.tokens, ignore_eos=True)
    num_tokens = sum(len(sequence.output_token_ids) for sequence in engine.generate(prompts, params))
    return num_tokens / median(seconds_of(partial(engine.generate, prompts, params)) for _ in range(_REPEATS))


class _Echo:
    """An actor that hands on what it gets."""

    def hand_on(self, value: object) -> object:
        return value


def _print_hops(target: str, model: ShardedModel, num_rows: int) -> None:
    """Print milliseconds and bytes of one hop between two actors, for rows of one token and of five."""
    hidden_size = load_config(target).get_text_config().hidden_size
    first, second = (ray.remote(num_cpus=0)(_Echo).remote() for _ in range(2))
    for num_tokens in (num_rows, 5 * num_rows, 1024):
        hidden = np.zeros((num_tokens, hidden_size), dtype=np.float32)
        milliseconds = _hop(first, second, hidden)
        num_bytes = len(pickle.dumps(hidden, protocol=5))
        tensor = _hop(first, second, torch.from_numpy(hidden))
        print(
            f"a hop of {num_tokens} tokens x {hidden_size}: {milliseconds:.2f} ms as an array, "
            f"{tensor:.2f} ms as a tensor, {num_bytes} bytes, {num_bytes // num_tokens} a token",
            flush=True,
        )
    model.allocate(num_rows, 128)
    for num_tokens in (1, 5):
        seconds = min(model.seconds(num_rows, num_tokens) for _ in range(10))
        print(f"a step of {num_rows} rows x {num_tokens}: {1e3 * seconds:.2f} ms through all stages", flush=True)


def _hop(first: Any, second: Any, value: object) -> float:
    """Return the milliseconds that a second actor adds to a first one."""
    reference = ray.put(value)

    def one() -> None:
        ray.wait([first.hand_on.remote(reference)], fetch_local=False)

    def two() -> None:
        ray.wait([second.hand_on.remote(first.hand_on.remote(reference))], fetch_local=False)

    times = [(seconds_of(one), seconds_of(two)) for _ in range(30)][5:]
    return 1e3 * (median(after for _, after in times) - median(before for before, _ in times))


if __name__ == "__main__":
    main()
