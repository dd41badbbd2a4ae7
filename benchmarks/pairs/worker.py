"""A worker of `python -m benchmarks.pairs`: it generates with the code of one commit, for a moment at a time.

It is run as a file in a folder with that commit's code, so it uses only what both commits have. It reads a request from
each line of standard input, and answers on standard output, both in JSON.
"""

import gc
import hashlib
import json
import os
import sys
import time
from typing import Any, TextIO

import torch
import transformers.models.llama.modeling_llama  # noqa: F401 - imported late, it would not be frozen

from decoding import Engine, EngineOptions, SamplingParams, Sequence
from decoding.choices import DrafterName
from decoding.engine.load import Parts, load_parts
from decoding.grammar.structured import Structured

_PAIR = "examples/tiny_pair"


class Worker:
    """One way to generate, with an engine for each repeat."""

    def load(self, drafter: DrafterName, num_slots: int, prompts: list[tuple[list[int], Any]]) -> None:
        """Load the models for a way; a prompt has token ids, and a JSON schema or none."""
        self._options = EngineOptions(drafter=drafter, num_slots=num_slots, max_model_len=512, num_speculative_tokens=8)
        draft = f"{_PAIR}/draft" if drafter == "model" else None
        gc.freeze()  # to look at all objects of modules takes 0.2 s, and would fall into some passes of 2 s
        self._parts: Parts = load_parts(f"{_PAIR}/target", draft, self._options, "cpu", "float32")
        forms = [None if schema is None else Structured(json_schema=schema) for _, schema in prompts]
        self._prompts = [ids for ids, _ in prompts]
        self._params = [SamplingParams(structured=form, temperature=0.8, max_tokens=100) for form in forms]

    def begin(self, seed: int) -> None:
        """Begin a repeat with a fresh engine, which has learned nothing of earlier ones."""
        pairs = enumerate(zip(self._prompts, self._params, strict=True))
        self._rows = [Sequence.create(prompt, params, run_seed=seed, row=row) for row, (prompt, params) in pairs]
        self._engine = Engine.over(self._parts, self._options)
        self._engine.submit(self._rows)

    def turn(self, seconds: float) -> dict[str, Any]:
        """Generate for some seconds. Return what it took; once all is done, also how many tokens, and their digest."""
        started = now = time.perf_counter()
        while self._engine.has_work and now - started < seconds:
            self._engine.step()
            now = time.perf_counter()
        if self._engine.has_work:
            return {"seconds": now - started}
        tokens = [row.output_token_ids for row in self._rows]
        digest = hashlib.sha256(repr(tokens).encode()).hexdigest()
        return {"seconds": now - started, "num_tokens": sum(map(len, tokens)), "digest": digest}


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
