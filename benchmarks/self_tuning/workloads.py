"""Workloads: what eight runs of the bundled pair ask for, and which drafters they have."""

import json
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoTokenizer

from benchmarks.drafts import PAIR, PROMPTS, token_ids
from decoding import SamplingParams, Sequence
from decoding.checkpoint.loading import load_network
from decoding.choices import DrafterName, Turn
from examples.tiny_pair.prompts import prompt_rows

_NEW_TOKENS = 200
_NUM_MORE = 14  # times 300 prompts beside those of the demo
_SPREAD = 0.6  # of the noise on the bad draft's weights, over their own


@dataclass(frozen=True)
class Workload:
    """Rows that an engine writes, and the drafters that it may use."""

    name: str
    rows_at_once: int
    temperature: float
    is_bad: bool = False  # whether the draft is a bad one, and there is no head
    num_prompts: int | None = None  # that are asked again and again; all are asked once where it is None

    def turns(self, bad_draft: Path) -> list[Turn]:
        """Return its drafters, the likeliest first."""
        kinds: list[tuple[DrafterName, Path]] = [("model", bad_draft), ("hybrid", bad_draft)]
        if not self.is_bad:
            head, draft = PAIR / "head", PAIR / "draft"
            kinds = [("eagle3", head), ("hybrid", head), ("model", draft), ("hybrid", draft)]
        drafts: list[Turn] = [(kind, str(draft), f"{draft.name} ({kind})") for kind, draft in kinds]
        return [*drafts, ("suffix", None, "suffix"), ("ngram", None, "ngram"), ("none", None, "none")]

    def rows(self, prompts: Seq[list[int]], number: int) -> list[Sequence]:
        """Return this many rows."""
        asked = prompts[:: len(prompts) // self.num_prompts][: self.num_prompts] if self.num_prompts else prompts
        params = SamplingParams(temperature=self.temperature, max_tokens=_NEW_TOKENS)
        return [Sequence.create(asked[row % len(asked)], params, row=row) for row in range(number)]


WORKLOADS = (
    Workload("one row", 1, 0.8),
    Workload("16 rows", 16, 0.8),
    Workload("4 rows, greedy", 4, 0.0),
    Workload("16 rows, hot", 16, 1.3),
    Workload("one row, texts that come again", 1, 0.0, num_prompts=12),
    Workload("16 rows, prompts that come again", 16, 0.8, num_prompts=12),
    Workload("one row, a bad draft", 1, 0.8, is_bad=True),
    Workload("16 rows, a bad draft", 16, 0.8, is_bad=True),
)


def read_prompts() -> list[list[int]]:
    """Return the prompts of the demo and thousands of its kinds, no two alike, in an order that mixes the kinds."""
    tokenizer, asked = AutoTokenizer.from_pretrained(PAIR / "target"), dict[str, str]()
    more = [row for number in range(_NUM_MORE) for row in prompt_rows(f"more {number}")]
    for row in [*map(json.loads, PROMPTS.read_text().splitlines()), *more]:
        asked.setdefault(json.dumps(row.get("prompt") or row["messages"]), json.dumps(row))
    return [token_ids(tokenizer, line) for line in sorted(asked.values(), key=hash_of)]


def hash_of(line: str) -> int:
    """Return a number that is the same in every process."""
    return sum(number * ord(letter) for number, letter in enumerate(line)) % 9973


def make_bad_draft(folder: Path) -> Path:
    """Save the bundled draft with noise on its weights, and return its folder."""
    network, _ = load_network(str(PAIR / "draft"), "cpu", "float32")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in network.parameters():
            noise = torch.randn(weight.shape, generator=generator)
            weight.add_(noise, alpha=_SPREAD * float(weight.std(correction=0)))
    network.save_pretrained(folder)
    AutoTokenizer.from_pretrained(PAIR / "draft").save_pretrained(folder)
    return folder
