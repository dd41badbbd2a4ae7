"""What a form costs, and what forced tokens bring: `python -m benchmarks.forms`.

The bundled pair answers the bundled requests for a record in JSON: without a form, and held to the record's schema,
with free white space and with none. Forced tokens are drafted or not; all else is equal. The schemas are those of
`examples/tiny_pair/corpus.py`, so the target would mostly write such a record anyway.

The ways of one drafter take turns of a fraction of a second, so that other work on the machine meets each of them
alike, and their time is the processor's. Each way has an engine of its own for all repeats, of which the first, in
which drafters settle, does not count. A ratio is the median of the repeats' own ratios.
"""

import argparse
import json
import random
import time
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import AutoTokenizer

from benchmarks.hardware import describe_machine, versions
from benchmarks.harness import listed, say, show, write_json
from benchmarks.sequence_counts import counts_of
from decoding import Engine, EngineOptions, SamplingParams, Sequence
from decoding.drafters import DrafterName
from decoding.engine.load import load_parts
from decoding.grammar.structured import Structured
from pipeline.counts import Counts

PAIR = Path("examples/tiny_pair")
_TURN_SECONDS = 0.05
_TEXT, _INTEGER = {"type": "string"}, {"type": "integer"}
HEADINGS = ("drafter", "output", "tokens a round", "tokens a CPU second", "times no form", "times not forced")


def _record(**properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


SCHEMAS = {
    "person": _record(
        id=_INTEGER, name=_TEXT, age=_INTEGER, city=_TEXT, email=_TEXT, active={"type": "boolean"}, likes=_list(_TEXT)
    ),
    "order": _record(
        order=_TEXT,
        customer=_TEXT,
        lines=_list(_record(item=_TEXT, quantity=_INTEGER, price={"type": "number"})),
        ship_to=_TEXT,
        status={"enum": ["new", "paid", "packed", "sent", "returned"]},
    ),
    "sensor reading": _record(
        sensor=_TEXT, date=_TEXT, unit=_TEXT, values=_list(_INTEGER), alarm={"enum": [None, "low", "high"]}
    ),
}
OUTPUTS = {  # what is asked for, and whether forced tokens are drafted
    "no form": (None, True),
    "schema": ("free", True),
    "schema, not forced": ("free", False),
    "tight schema": ("tight", True),
    "tight schema, not forced": ("tight", False),
}


@dataclass(frozen=True)
class Request:
    """A prompt for a record, and the schema of such records."""

    prompt: list[int]
    schema: dict[str, Any]


@dataclass
class Way:
    """One drafter's engine for one kind of output."""

    output: str
    engine: Engine
    seconds: list[float] = field(default_factory=list)  # of each repeat
    tokens: list[int] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)  # of the repeats that count

    def take_turn(self) -> None:
        """Generate for a while, timed."""
        started = now = time.process_time()
        while self.engine.has_work and now - started < _TURN_SECONDS:
            self.engine.step()
            now = time.process_time()
        self.seconds[-1] += now - started

    @property
    def speeds(self) -> list[float]:
        """Tokens a second of each repeat that counts."""
        return [tokens / seconds for tokens, seconds in zip(self.tokens[1:], self.seconds[1:], strict=True)]


def main(arguments: Seq[str] | None = None) -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.forms", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--drafters", type=listed(str), default=("none", "suffix", "model", "hybrid"))
    parser.add_argument("--batch", type=int, default=16, help="rows at once")
    parser.add_argument("--answers", type=int, default=3, help="to each request")
    parser.add_argument("--one-in", type=int, default=1, help="of the requests, those that are answered")
    parser.add_argument("--new-tokens", type=int, default=200, help="most output tokens of a row")
    parser.add_argument("--num-draft-tokens", type=int, default=8, help="most tokens that a row drafts in a round")
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    lines = [line for drafter in options.drafters for line in _measure(options, drafter)]
    machine = describe_machine()
    title = f"{machine['processor']}, 1 thread, {options.batch} rows at once, temperature {options.temperature:g}"
    show(title, HEADINGS, [_cells(line) for line in lines])
    if options.json:
        settings = {name: getattr(options, name) for name in ("batch", "temperature", "num_draft_tokens", "repeats")}
        date = datetime.now(UTC).strftime("%Y-%m-%d")
        facts = {"date": date, "machine": machine, "versions": versions(), "settings": settings, "lines": lines}
        write_json(options.json, facts)


def requests() -> list[Request]:
    """Return the bundled requests for one record."""
    tokenizer = AutoTokenizer.from_pretrained(PAIR / "target")
    found = []
    for line in Path("examples/prompts.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row["kind"] == "json" and "messages" in row and " two " not in row["messages"][-1]["content"]:
            (schema,) = (schema for noun, schema in SCHEMAS.items() if noun in row["messages"][-1]["content"])
            prompt = tokenizer.apply_chat_template(row["messages"], add_generation_prompt=True, return_dict=False)
            found.append(Request(prompt, schema))
    return found


def _measure(options: argparse.Namespace, drafter: DrafterName) -> list[dict[str, Any]]:
    """Return a line for each kind of output."""
    asked = requests()[:: options.one_in] * options.answers
    ways = _ways(options, drafter)
    for repeat in range(1 + options.repeats):
        made = {way.output: _sequences(options, asked, way.output, repeat) for way in ways}
        for way in ways:
            way.engine.submit(made[way.output])
            way.seconds.append(0.0)
        turns = random.Random(repeat)
        while any(way.engine.has_work for way in ways):
            for index in turns.sample(range(len(ways)), len(ways)):
                ways[index].take_turn()
        for way in ways:
            rows = made[way.output]
            failed = [row.error for row in rows if row.error]
            assert not failed, failed[0]
            way.tokens.append(sum(len(row.output_token_ids) for row in rows))
            if repeat:
                way.counts = sum((counts_of(row) for row in rows), way.counts)
        for output in ("schema", "tight schema"):
            texts = [[row.output_token_ids for row in made[name]] for name in (output, f"{output}, not forced")]
            assert texts[0] == texts[1], f"{drafter}, {output}: forced tokens changed a text"
        say(f"{drafter}: repeat {repeat} of {options.repeats}")
    speeds = {way.output: way.speeds for way in ways}
    return [_line(drafter, way, speeds) for way in ways]


def _ways(options: argparse.Namespace, drafter: DrafterName) -> list[Way]:
    engine_options = EngineOptions(
        drafter=drafter, num_slots=options.batch, max_model_len=512, num_speculative_tokens=options.num_draft_tokens
    )
    draft = str(PAIR / "draft") if drafter in ("model", "hybrid") else None
    ways: list[Way] = []
    for output, (_, is_forced) in OUTPUTS.items():
        shared = ways[0].engine.target.share() if ways else None  # the same weights, and a cache of its own
        parts = load_parts(str(PAIR / "target"), draft, engine_options, "cpu", "float32", target_model=shared)
        way = Way(output, Engine.over(parts, engine_options))
        if not is_forced:
            for lane in way.engine.lanes:
                lane._forces = lambda rows: False  # type: ignore[method-assign]
        ways.append(way)
    return ways


def _sequences(options: argparse.Namespace, asked: list[Request], output: str, repeat: int) -> list[Sequence]:
    space, _ = OUTPUTS[output]
    made = []
    for row, request in enumerate(asked):
        form = Structured(json_schema=request.schema, disable_any_whitespace=space == "tight") if space else None
        params = SamplingParams(structured=form, temperature=options.temperature, max_tokens=options.new_tokens)
        made.append(Sequence.create(request.prompt, params, run_seed=repeat, row=row))
    return made


def _line(drafter: str, way: Way, speeds: dict[str, list[float]]) -> dict[str, Any]:
    """Return what is known of a way, also over the outputs of no form and without forced tokens."""

    def times(output: str) -> float | None:
        if output not in speeds or output == way.output:
            return None
        return median(own / other for own, other in zip(way.speeds, speeds[output], strict=True))

    return {
        "drafter": drafter,
        "output": way.output,
        "tokens_a_round": way.counts.num_output_tokens / way.counts.num_rounds,
        "acceptance_rate": way.counts.acceptance_rate,
        "tokens_per_second": median(way.speeds),
        "times_no_form": times("no form"),
        "times_not_forced": times(f"{way.output}, not forced"),
    }


def _cells(line: dict[str, Any]) -> list[str]:
    ratios = ("-" if line[name] is None else f"{line[name]:.2f}" for name in ("times_no_form", "times_not_forced"))
    speed = f"{line['tokens_per_second']:,.0f}"
    return [line["drafter"], line["output"], f"{line['tokens_a_round']:.2f}", speed, *ratios]


if __name__ == "__main__":
    main()
