"""The bundled pair at work: its prompts, and what its target writes for some of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decoding.engine.engine import Engine
from decoding.engine.options import EngineOptions
from decoding.sampling_params import SamplingParams
from decoding.sequence import Sequence
from pipeline.text.codec import TextCodec
from tests.pipeline.made_up import input_row
from training.corpus.rows import Example

EXAMPLES = Path(__file__).parents[2] / "examples"
TARGET, DRAFT, HEAD = (str(EXAMPLES / "tiny_pair" / name) for name in ("target", "draft", "head"))


@dataclass(frozen=True)
class Prompt:
    """A bundled prompt, rendered."""

    kind: str
    text: str
    is_chat: bool
    token_ids: tuple[int, ...]


def prompts(number: int, first: int = 0) -> list[Prompt]:
    """Return some of the bundled prompts."""
    codec = TextCodec.load(TARGET)
    lines = (EXAMPLES / "prompts.jsonl").read_text().splitlines()[first : first + number]
    return [_prompt(codec, json.loads(line)) for line in lines]


def _prompt(codec: TextCodec, row: dict[str, Any]) -> Prompt:
    text, token_ids = codec.prompt(input_row(prompt=row.get("prompt"), messages=row.get("messages")))
    return Prompt(row["kind"], text, "messages" in row, tuple(token_ids))


def written(
    given: list[Prompt],
    params: list[SamplingParams],
    draft: str | None = None,
    num_draft_tokens: int = 4,
    close_call: float | None = None,
) -> list[Sequence]:
    """Return what the engine writes in float32, in order; prompt i has the parameters i, modulo their number.

    `close_call` replaces the target's margin of close calls.
    """
    options = EngineOptions(draft_length="fixed", num_speculative_tokens=num_draft_tokens, num_slots=8)
    engine = Engine.load(TARGET, draft, options, device="cpu", dtype="float32")
    if close_call is not None:
        engine.target.close_call = close_call
    rows = [
        Sequence.create(prompt.token_ids, params[index % len(params)], run_seed=3, row=index, tag=prompt.kind)
        for index, prompt in enumerate(given)
    ]
    assert len(list(engine.stream(rows))) == len(rows)
    return rows


def examples_of(rows: list[Sequence]) -> Iterator[Example]:
    """Yield finished rows as examples of a run."""
    for row in rows:
        yield Example(row.prompt_token_ids, tuple(row.output_token_ids), row.tag, row.noise_key, row.params)
