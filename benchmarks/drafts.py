"""What a draft is worth on a pair: `python -m benchmarks.drafts`, plain decoding and adaptive drafts in turn.

Each repeat generates the same prompts plainly and with every draft. They take turns of a fraction of a second, so that
other work on the machine slows all alike; a speed-up is the median of the repeats' own ratios. Fresh engines are made
for each repeat, untimed, so that nothing learned from finished texts helps the next. All must write the same text.
"""

import argparse
import json
import random
import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import AutoTokenizer

from benchmarks.hardware import describe_machine, versions
from benchmarks.harness import listed, say, seconds_of, show, write_json
from benchmarks.sequence_counts import counts_of
from decoding import Engine, SamplingParams, Sequence
from decoding.drafters import DrafterName
from decoding.engine.load import Parts, load_parts
from decoding.engine.options import EngineOptions
from decoding.network.target import Target
from pipeline.counts import Counts

PAIR = Path("examples/tiny_pair")
_MAX_MODEL_LEN = 512
_TURN_SECONDS = 0.1
HEADINGS = ("draft", "rows at once", "tokens a round", "acceptance rate", "tokens/s", "times plain", "least")


@dataclass
class Way:
    """One way to generate, at one number of rows at once."""

    name: str
    parts: Parts
    options: EngineOptions
    seconds: list[float] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)

    def begin(self, sequences: Seq[Sequence]) -> Engine:
        """Return a fresh engine that has these sequences to generate."""
        engine = Engine.over(self.parts, self.options)
        engine.submit(sequences)
        self.seconds.append(0.0)
        self.counts = Counts()
        return engine

    def take_turn(self, engine: Engine) -> None:
        """Generate for a while, timed."""

        def work() -> None:
            until = time.perf_counter() + _TURN_SECONDS
            while engine.has_work and time.perf_counter() < until:
                self.counts = sum((counts_of(sequence) for sequence in engine.step()), self.counts)

        self.seconds[-1] += seconds_of(work, engine.target.device)


def main(arguments: Seq[str] | None = None) -> None:
    """Measure, and print a table."""
    options = _parse(arguments)
    torch.set_num_threads(options.threads)
    tokenizer = AutoTokenizer.from_pretrained(options.target)
    prompts = [token_ids(tokenizer, line) for line in options.prompts.read_text().splitlines()[:: options.one_in]]
    lines: list[dict[str, Any]] = []
    for batch in options.batches:
        lines += _measure(options, batch, prompts if batch > 1 else prompts[:: len(prompts) // 24 or 1])
    machine = describe_machine()
    show(
        f"{machine['processor']}, {machine['threads']} threads, {options.dtype}, temperature {options.temperature:g}",
        HEADINGS,
        [cells(line) for line in lines],
    )
    if options.json:
        date = datetime.now(UTC).strftime("%Y-%m-%d")
        settings = {name: getattr(options, name) for name in ("dtype", "temperature", "num_draft_tokens", "repeats")}
        write_json(
            options.json,
            {"date": date, "machine": machine, "versions": versions(), "settings": settings, "lines": lines},
        )


def cells(line: dict[str, Any]) -> list[str]:
    """Return the cells of a line, as `HEADINGS` names them."""
    rate = line["acceptance_rate"]
    return [
        line["draft"],
        str(line["rows_at_once"]),
        f"{line['tokens_a_round']:.2f}",
        "-" if rate is None else f"{rate:.3f}",
        f"{line['tokens_per_second']:,.0f}",
        f"{line['times_plain']:.2f}",
        f"{line['least_times_plain']:.2f}",
    ]


def _parse(arguments: Seq[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drafts", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", default=str(PAIR / "target"))
    parser.add_argument("--drafts", type=listed(str), default=(str(PAIR / "draft"), str(PAIR / "head")))
    parser.add_argument("--prompts", type=Path, default=Path("examples/prompts.jsonl"), help="lines as of the demo")
    parser.add_argument("--one-in", type=int, default=1, help="of the prompts, those that are generated")
    parser.add_argument("--batches", type=listed(int), default=(1, 16), help="rows at once")
    parser.add_argument("--num-draft-tokens", type=int, default=8, help="most tokens that a row drafts in a round")
    parser.add_argument("--new-tokens", type=int, default=200, help="most output tokens of a row")
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=1, help="of the processor, as an actor with one CPU has them")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=Path)
    return parser.parse_args(arguments)


def token_ids(tokenizer: Any, line: str) -> list[int]:
    """Return the token ids of a prompt, given as a line of the demo's input."""
    row = json.loads(line)
    if "messages" in row:
        rendered = tokenizer.apply_chat_template(row["messages"], tokenize=False, add_generation_prompt=True)
        return list(tokenizer(rendered, add_special_tokens=False)["input_ids"])
    return list(tokenizer(row["prompt"])["input_ids"])


def _measure(options: argparse.Namespace, batch: int, prompts: list[list[int]]) -> list[dict[str, Any]]:
    """Return a line for each way to generate these prompts."""
    params = SamplingParams(temperature=options.temperature, max_tokens=options.new_tokens)

    def rows() -> list[Sequence]:
        return [Sequence.create(prompt, params, row=row) for row, prompt in enumerate(prompts)]

    return in_turns(_ways(options, batch), rows, options.repeats, batch)


def in_turns(ways: list[Way], rows: Callable[[], list[Sequence]], repeats: int, batch: int) -> list[dict[str, Any]]:
    """Return a line for each way to generate `rows`, `batch` of them at once, over the first way's speed."""
    text: list[list[int]] = []
    for repeat in range(1 + repeats):  # the first one warms up
        rows_of = [rows() for _ in ways]
        engines = [way.begin(sequences) for way, sequences in zip(ways, rows_of, strict=True)]
        turns = random.Random(repeat)
        while any(engine.has_work for engine in engines):
            for index in turns.sample(range(len(ways)), len(ways)):
                ways[index].take_turn(engines[index])
        for way, sequences in zip(ways, rows_of, strict=True):
            found = [sequence.output_token_ids for sequence in sequences]
            text = text or found
            assert found == text, f"{way.name} wrote another text than {ways[0].name}"
        say(f"{batch} rows at once: repeat {repeat} of {repeats}")
    first = ways[0].seconds[1:]
    return [_line(way, batch, [one / own for one, own in zip(first, way.seconds[1:], strict=True)]) for way in ways]


def _ways(options: argparse.Namespace, batch: int) -> list[Way]:
    base = EngineOptions(num_slots=batch, max_model_len=_MAX_MODEL_LEN, num_speculative_tokens=options.num_draft_tokens)
    target: Target | None = None
    ways: list[Way] = []
    kinds: tuple[DrafterName | None, ...] = (None, "hybrid")
    tried: list[tuple[str | None, DrafterName | None]] = [(None, "none")]
    for draft, drafter in [*tried, *((each, kind) for each in options.drafts for kind in kinds)]:
        own = replace(base, drafter=drafter)
        shared = target and target.share()  # the same weights, and a cache of its own
        parts = load_parts(options.target, draft, own, options.device, options.dtype, target_model=shared)
        target = parts.target
        name = "none" if draft is None else f"{Path(draft).name} ({parts.drafter_name})"
        ways.append(Way(name, parts, own))
    return ways


def _line(way: Way, batch: int, ratios: list[float]) -> dict[str, Any]:
    seconds = median(way.seconds[1:])
    return {
        "draft": way.name,
        "rows_at_once": batch,
        "tokens_a_round": way.counts.mean_acceptance_length or 1.0,
        "acceptance_rate": way.counts.acceptance_rate,
        "tokens_per_second": way.counts.num_output_tokens / seconds,
        "times_plain": median(ratios),
        "least_times_plain": min(ratios),
    }


if __name__ == "__main__":
    main()
