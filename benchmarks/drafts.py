"""What a draft is worth on a pair: `python -m benchmarks.drafts`, plain decoding and adaptive drafts in turn.

Each repeat generates the same prompts plainly and with every draft. They take turns of a fraction of a second, so that
other work on the machine slows all alike; a speed-up is the median of the repeats' own ratios. All must write the same
text.
"""

import json
from collections.abc import Sequence as Seq
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from benchmarks.engines_in_turns import load_beside, over_plain
from benchmarks.harness import listed, parser_of, show_lines
from benchmarks.roofline.hardware import describe_machine, record
from decoding import EngineOptions, SamplingParams, Sequence

PAIR = Path("examples/tiny_pair")
_MAX_MODEL_LEN = 512
COLUMNS = (
    ("draft", "draft", ""),
    ("rows at once", "rows_at_once", ""),
    ("tokens a round", "tokens_a_round", ".2f"),
    ("acceptance rate", "acceptance_rate", ".3f"),
    ("tokens/s", "tokens_per_second", ",.0f"),
    ("times plain", "times_plain", ".2f"),
    ("least", "least_times_plain", ".2f"),
)


def main(arguments: Seq[str] | None = None) -> None:
    """Measure, and print a table."""
    parser = parser_of("drafts", __doc__)
    flag = parser.add_argument
    flag("--target", default=str(PAIR / "target"))
    flag("--drafts", type=listed(str), default=(str(PAIR / "draft"), str(PAIR / "head")))
    flag("--prompts", type=Path, default=Path("examples/prompts.jsonl"), help="lines as of the demo")
    flag("--one-in", type=int, default=1, help="of the prompts, those that are generated")
    flag("--batches", type=listed(int), default=(1, 16), help="rows at once")
    flag("--num-draft-tokens", type=int, default=8, help="most tokens that a row drafts in a round")
    flag("--new-tokens", type=int, default=200, help="most output tokens of a row")
    flag("--temperature", type=float, default=0.8)
    flag("--device", default="cpu")
    flag("--dtype", default="float32")
    flag("--threads", type=int, default=1, help="of the processor, as an actor with one CPU has them")
    flag("--repeats", type=int, default=7)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    tokenizer = AutoTokenizer.from_pretrained(options.target)
    prompts = [token_ids(tokenizer, line) for line in options.prompts.read_text().splitlines()[:: options.one_in]]
    params = SamplingParams(temperature=options.temperature, max_tokens=options.new_tokens)
    lines: list[dict[str, Any]] = []
    for batch in options.batches:
        some = prompts if batch > 1 else prompts[:: len(prompts) // 24 or 1]
        own = EngineOptions(
            num_slots=batch, max_model_len=_MAX_MODEL_LEN, num_speculative_tokens=options.num_draft_tokens
        )
        tried: list[tuple[str | None, EngineOptions]] = [(None, replace(own, drafter="none"))]
        tried += [(draft, each) for draft in options.drafts for each in (own, replace(own, drafter="hybrid"))]
        parts = load_beside(options.target, tried, options.device, options.dtype)
        names = [
            "none" if draft is None else f"{Path(draft).name} ({each.drafter_name})"
            for (draft, _), each in zip(tried, parts, strict=True)
        ]
        lines += over_plain(
            dict(zip(names, parts, strict=True)),
            [each for _, each in tried],
            lambda some=some: [Sequence.create(prompt, params, row=row) for row, prompt in enumerate(some)],  # type: ignore[misc]
            options.repeats,
        )
    machine = describe_machine()
    show_lines(
        f"{machine['processor']}, {machine['threads']} threads, {options.dtype}, temperature {options.temperature:g}",
        COLUMNS,
        lines,
    )
    settings = {name: getattr(options, name) for name in ("dtype", "temperature", "num_draft_tokens", "repeats")}
    record(options.json, settings=settings, lines=lines)


def token_ids(tokenizer: Any, line: str) -> list[int]:
    """Return the token ids of a prompt, given as a line of the demo's input."""
    row = json.loads(line)
    if "messages" in row:
        rendered = tokenizer.apply_chat_template(row["messages"], tokenize=False, add_generation_prompt=True)
        return list(tokenizer(rendered, add_special_tokens=False)["input_ids"])
    return list(tokenizer(row["prompt"])["input_ids"])


if __name__ == "__main__":
    main()
