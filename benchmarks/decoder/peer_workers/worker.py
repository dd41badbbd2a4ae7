"""What the workers share: answers in JSON lines to benchmarks/decoder/peers.py, and a batch that is kept full.

A worker runs in an environment of its own, as a script, and finds this file beside its own.
"""

import importlib.metadata
import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any


def answer_all(load: Callable[[dict], Any], generate: Callable[[Any, dict, dict], dict], *packages: str) -> None:
    """Load what the first line says and answer with versions, then generate for each further line."""
    answers = os.fdopen(os.dup(1), "w")  # only answers go there
    os.dup2(2, 1)
    task = json.loads(sys.stdin.readline())
    system = load(task)
    versions = {name: importlib.metadata.version(name) for name in packages}
    print(json.dumps({"versions": versions}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(generate(system, task, json.loads(line))), file=answers, flush=True)


def generate_all(
    prompts: list, batch: int, add: Callable[[int, Any], None], step: Callable[[], Iterable[tuple[int, list[int]]]]
) -> dict:
    """Return the token ids of each prompt, in order, and the seconds it took.

    At most `batch` requests are in the system; a waiting one joins when one finishes. `add` takes a number and a
    prompt, and `step` yields the numbers and outputs of those that have finished.
    """
    waiting, num_running = deque(enumerate(prompts)), 0
    outputs: dict[int, list[int]] = {}
    started = time.perf_counter()
    while waiting or num_running:
        while waiting and num_running < batch:
            add(*waiting.popleft())
            num_running += 1
        for number, output in step():
            outputs[number] = output
            num_running -= 1
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "token_ids": [outputs[number] for number in range(len(prompts))]}
