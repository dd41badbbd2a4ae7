"""Tokens a round and a second of each source of drafts, on n samples of every prompt.

`python -m benchmarks.draft_sources TARGET DRAFT --prompts examples/prompts.jsonl --n 8 --temperature 0.8`

All ways write the same tokens (checked); runs are interleaved, and the figures are medians over repeats. Without
--prompts the prompts are random token ids after a common template, for pairs without a tokenizer.
"""

import argparse
import json
import time
from pathlib import Path
from statistics import median

import torch
from transformers import AutoTokenizer

from decoding import Engine, EngineOptions, SamplingParams
from decoding.drafters import DrafterName
from decoding.drafters.hybrid import HybridDrafter
from decoding.engine.options import DraftLength

_WAYS: list[tuple[DrafterName, DraftLength]] = [
    ("none", "fixed"),
    ("ngram", "adaptive"),
    ("suffix", "adaptive"),
    ("model", "fixed"),
    ("hybrid", "fixed"),
    ("model", "adaptive"),
    ("hybrid", "adaptive"),
]


def read_prompts(path: Path, target: str) -> list[list[int]]:
    """Return the token ids of every prompt of a JSONL file, as `jobs.generate` makes them."""
    tokenizer = AutoTokenizer.from_pretrained(target)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    texts = [
        row["prompt"]
        if "prompt" in row
        else tokenizer.apply_chat_template(row["messages"], add_generation_prompt=True, tokenize=False)
        for row in rows
    ]
    return [tokenizer(text)["input_ids"] for text in texts]


def templated_prompts(num_prompts: int, vocab_size: int) -> list[list[int]]:
    """Return prompts that share 48 random tokens and end with 16 of their own."""
    generator = torch.Generator().manual_seed(0)
    head = torch.randint(vocab_size, (48,), generator=generator).tolist()
    return [head + torch.randint(vocab_size, (16,), generator=generator).tolist() for _ in range(num_prompts)]


def main() -> None:
    """Print one line a way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target")
    parser.add_argument("draft")
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--num-prompts", type=int, default=20)
    parser.add_argument("--n", type=int, default=8)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--num-slots", type=int, default=16)
    parser.add_argument("--num-speculative-tokens", type=int, default=8)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--ways", nargs="*", default=[f"{name}/{length}" for name, length in _WAYS])
    options = parser.parse_args()

    found: dict[str, list[tuple[float, float, float]]] = {way: [] for way in options.ways}
    sources: dict[str, str] = {}
    texts = None
    for _ in range(options.repeats):
        for way in options.ways:
            name, length = way.split("/")
            engine = Engine.load(
                options.target,
                options.draft if name in ("model", "hybrid") else None,
                EngineOptions(
                    drafter=name,
                    draft_length=length,
                    num_slots=options.num_slots,
                    num_speculative_tokens=options.num_speculative_tokens,
                ),
                dtype=options.dtype,
            )
            if options.prompts:
                prompts = read_prompts(options.prompts, options.target)
                prompts = prompts[:: max(1, len(prompts) // options.num_prompts)]
            else:
                prompts = templated_prompts(options.num_prompts, engine.target.vocab_size)
            params = SamplingParams(temperature=options.temperature, max_tokens=options.max_tokens, n=options.n)
            started = time.perf_counter()
            sequences = engine.generate(prompts, params, seed=1)
            seconds = time.perf_counter() - started
            num_tokens = sum(len(s.output_token_ids) for s in sequences)
            num_rounds = sum(s.num_rounds for s in sequences)
            num_drafted = sum(s.num_draft_tokens for s in sequences)
            found[way].append((num_tokens / num_rounds, num_drafted / num_rounds, num_tokens / seconds))
            if isinstance(engine.lanes[0].drafter, HybridDrafter):
                sources[way] = "; ".join(
                    f"{source}: {c.num_drafts} drafts, {c.num_accepted_tokens} of {c.num_draft_tokens} stood"
                    for source, c in engine.lanes[0].drafter.counts.items()
                )
            outputs = [s.output_token_ids for s in sequences]
            texts = texts or outputs
            if outputs != texts and options.dtype == "float32":
                raise SystemExit(f"{way} wrote other tokens")
    print(f"{'drafter/length':18} {'tokens/round':>12} {'drafted':>8} {'tokens/s':>9}")
    for way, runs in found.items():
        per_round, drafted, speed = (median(column) for column in zip(*runs, strict=True))
        print(f"{way:18} {per_round:12.2f} {drafted:8.2f} {speed:9.0f}  {sources.get(way, '')}")


if __name__ == "__main__":
    main()
