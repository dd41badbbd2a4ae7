"""A worker of `python -m benchmarks.pairs`: it generates with the code of one commit, for a moment at a time.

It is run as a file in a folder with that commit's code, so it uses only what both commits have. It reads a request from
each line of standard input, and answers on standard output, both in JSON.
"""

import hashlib
import json
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TextIO

import torch
from transformers import AutoTokenizer

from benchmarks.forms import requests
from decoding import Engine, EngineOptions, SamplingParams, Sequence
from decoding.drafters import DrafterName
from decoding.engine.load import Parts, load_parts
from decoding.grammar.structured import Structured

_PAIR = Path("examples/tiny_pair")
_PROMPTS = Path("examples/prompts.jsonl")
_SAMPLING = SamplingParams(temperature=0.8, max_tokens=100)


class Worker:
    """One way to generate, with an engine for each repeat."""

    def load(self, drafter: DrafterName, rows: int, form: bool) -> dict[str, Any]:
        """Load the models for a way; `rows` are generated at once."""
        self._options = EngineOptions(drafter=drafter, num_slots=rows, max_model_len=512, num_speculative_tokens=8)
        draft = str(_PAIR / "draft") if drafter == "model" else None
        self._parts: Parts = load_parts(str(_PAIR / "target"), draft, self._options, "cpu", "float32")
        self._prompts = list(_requests() if form else _bundled())
        if rows == 1:
            self._prompts = self._prompts[:: len(self._prompts) // 12 or 1]
        return {}

    def begin(self, seed: int) -> dict[str, Any]:
        """Begin a repeat with a fresh engine, which has learned nothing of earlier ones."""
        self._rows = [
            Sequence.create(
                prompt, SamplingParams(structured=form, temperature=0.8, max_tokens=100), run_seed=seed, row=row
            )
            for row, (prompt, form) in enumerate(self._prompts)
        ]
        self._engine = Engine.over(self._parts, self._options)
        self._engine.submit(self._rows)
        return {}

    def turn(self, seconds: float) -> dict[str, Any]:
        """Generate for some seconds. Return what it took, and whether all rows are finished."""
        started = now = time.perf_counter()
        while self._engine.has_work and now - started < seconds:
            self._engine.step()
            now = time.perf_counter()
        return {"seconds": now - started, "is_done": not self._engine.has_work}

    def end(self) -> dict[str, Any]:
        """Return how many tokens the repeat wrote, and a digest of them."""
        tokens = [row.output_token_ids for row in self._rows]
        return {"tokens": sum(map(len, tokens)), "digest": hashlib.sha256(repr(tokens).encode()).hexdigest()}


def _bundled() -> Iterable[tuple[list[int], Structured | None]]:
    tokenizer = AutoTokenizer.from_pretrained(_PAIR / "target")
    for line in _PROMPTS.read_text().splitlines():
        row = json.loads(line)
        if "messages" in row:
            yield tokenizer.apply_chat_template(row["messages"], add_generation_prompt=True, return_dict=False), None
        else:
            yield tokenizer(row["prompt"])["input_ids"], None


def _requests() -> Iterable[tuple[list[int], Structured | None]]:
    for request in requests() * 3:
        yield request.prompt, Structured(json_schema=request.schema)


def main(answers: TextIO) -> None:
    """Answer requests until there are no more."""
    torch.set_num_threads(1)
    worker = Worker()
    for line in sys.stdin:
        name, arguments = json.loads(line)
        print(json.dumps(getattr(worker, name)(**arguments)), file=answers, flush=True)


if __name__ == "__main__":
    with os.fdopen(os.dup(1), "w") as own:  # what a library prints must not look like an answer
        os.dup2(2, 1)
        main(own)
