"""What a form costs, and what forced tokens bring: `python -m benchmarks.forms`.

The bundled pair answers the bundled requests for a record in JSON: without a form, and held to the record's schema,
with free white space and with none. Forced tokens are drafted or not; all else is equal. The schemas are those of
`examples/tiny_pair/corpus.py`, so the target would mostly write such a record anyway.

The ways of one drafter take turns of a fraction of a second, so that other work on the machine meets each of them
alike. A speed is by the clock on the wall. The processor's time is told beside it: masks are computed beside the
forward, on another core if there is one. Each way has an engine of its own for all repeats, of which the first, in
which drafters settle and grammars are compiled, does not count. A ratio is the median of the repeats' own ratios.
Tokens and time count as long as there are rows for all slots: texts with a form have other lengths, and at the end of a
repeat fewer rows would share a round.

With `--grown 12` the target's feed-forward layers are 12 times as wide. It writes the same, in a round that is as long
as that of a larger model.
"""

import argparse
import json
import random
import tempfile
import time
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import AutoTokenizer

from benchmarks.grown_target import grow
from benchmarks.hardware import describe_machine, versions
from benchmarks.harness import listed, say, show, write_json
from benchmarks.sequence_counts import counts_of
from decoding import Engine, EngineOptions, SamplingParams, Sequence
from decoding.drafters import DrafterName
from decoding.engine.load import load_parts
from decoding.grammar.grammars import Grammars
from decoding.grammar.structured import Structured
from decoding.grammar.token_table import TokenTable
from pipeline.counts import Counts

PAIR = Path("examples/tiny_pair")
_TURN_SECONDS = 0.05
_TEXT, _INTEGER = {"type": "string"}, {"type": "integer"}
_SETTINGS = ("temperature", "draft_length", "num_draft_tokens", "new_tokens", "answers", "one_in", "repeats")
HEADINGS = (
    "target",
    "rows at once",
    "drafter",
    "output",
    "ms a round",
    "tokens a round",
    "times not forced",
    "tokens a second",
    "times no form",
    "least",
    "by CPU time",
    "times not forced",
)


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
_RATIOS = ("times_no_form", "least_times_no_form", "times_no_form_by_cpu_time", "times_not_forced")
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
    rows: list[Sequence] = field(default_factory=list)  # of this repeat
    num_left: int = 0  # of them, not finished
    seconds: list[float] = field(default_factory=list)  # of each repeat, as long as all slots were in use
    cpu_seconds: list[float] = field(default_factory=list)  # of all threads meanwhile
    tokens: list[int] = field(default_factory=list)  # that were written meanwhile
    num_rounds: list[int] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)  # of the repeats that count

    def begin(self, rows: list[Sequence]) -> None:
        """Begin a repeat with these rows."""
        self.rows, self.num_left = rows, len(rows)
        self.engine.submit(rows)
        self.seconds.append(0.0)
        self.cpu_seconds.append(0.0)
        self.num_rounds.append(0)

    @property
    def is_full(self) -> bool:
        """Whether there are rows for all slots."""
        return self.num_left >= self.engine.options.num_slots

    def take_turn(self) -> None:
        """Generate for a while, timed."""
        started = now = time.perf_counter()
        self.cpu_seconds[-1] -= time.process_time()
        while self.is_full and now - started < _TURN_SECONDS:
            self.num_left -= len(self.engine.step())
            self.num_rounds[-1] += 1
            now = time.perf_counter()
        self.seconds[-1] += now - started
        self.cpu_seconds[-1] += time.process_time()

    def end(self) -> None:
        """Write the last rows to their ends, which takes no part in the figures."""
        self.tokens.append(sum(len(row.output_token_ids) for row in self.rows))
        while self.engine.has_work:
            self.engine.step()
        failed = [row.error for row in self.rows if row.error]
        assert not failed, failed[0]

    @property
    def speeds(self) -> list[float]:
        """Tokens a second of each repeat that counts."""
        return [tokens / seconds for tokens, seconds in zip(self.tokens[1:], self.seconds[1:], strict=True)]

    @property
    def cpu_speeds(self) -> list[float]:
        """Tokens a second of the processor, of each repeat that counts."""
        return [tokens / seconds for tokens, seconds in zip(self.tokens[1:], self.cpu_seconds[1:], strict=True)]

    @property
    def milliseconds(self) -> float:
        """What a round takes."""
        return median(
            1000 * seconds / rounds for seconds, rounds in zip(self.seconds[1:], self.num_rounds[1:], strict=True)
        )


def main(arguments: Seq[str] | None = None) -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.forms", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--drafters", type=listed(str), default=("none", "suffix", "model"))
    parser.add_argument("--batches", type=listed(int), default=(1, 4, 16), help="rows at once")
    parser.add_argument(
        "--grown", type=listed(int), default=(1,), help="how wide feed-forward layers are, times their own"
    )
    parser.add_argument("--answers", type=int, default=3, help="to each request")
    parser.add_argument("--one-in", type=int, default=1, help="of the requests, those that are answered")
    parser.add_argument("--new-tokens", type=int, default=200, help="most output tokens of a row")
    parser.add_argument("--draft-length", choices=("adaptive", "fixed"), default="adaptive")
    parser.add_argument("--num-draft-tokens", type=int, default=8, help="most tokens that a row drafts in a round")
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    lines: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for times in options.grown:
            target = grow(PAIR / "target", Path(folder, str(times)), times) if times > 1 else PAIR / "target"
            for batch in options.batches:
                for drafter in options.drafters:
                    of_ways = _measure(options, target, batch, drafter)
                    lines += [{"grown": times, "rows_at_once": batch, **line} for line in of_ways]
    compiled = _compile_seconds()
    machine = describe_machine()
    title = f"{machine['processor']}, 1 thread, float32, temperature {options.temperature:g}"
    show(title, HEADINGS, [_cells(line) for line in lines])
    say(f"to compile a schema: {', '.join(f'{name} {1000 * seconds:.1f} ms' for name, seconds in compiled.items())}")
    if options.json:
        settings = {name: getattr(options, name) for name in _SETTINGS}
        date = datetime.now(UTC).strftime("%Y-%m-%d")
        facts = {"date": date, "machine": machine, "versions": versions(), "settings": settings}
        write_json(options.json, {**facts, "compile_seconds": compiled, "lines": lines})


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


def _compile_seconds() -> dict[str, float]:
    """Return what it takes to compile each schema, once, before any round."""
    tokenizer = AutoTokenizer.from_pretrained(PAIR / "target")
    table = TokenTable.of_tokenizer(tokenizer, len(tokenizer), frozenset({tokenizer.eos_token_id}))
    found = {}
    for name, schema in SCHEMAS.items():
        grammars, seconds = Grammars(lambda: table), -time.process_time()
        problem = grammars.problem_with(Structured(json_schema=schema))
        assert problem is None, problem
        found[name] = seconds + time.process_time()
    return found


def _measure(options: argparse.Namespace, target: Path, batch: int, drafter: DrafterName) -> list[dict[str, Any]]:
    """Return a line for each kind of output."""
    asked = requests()[:: options.one_in] * options.answers
    ways = _ways(options, target, batch, drafter)
    for repeat in range(1 + options.repeats):
        for way in ways:
            way.begin(_sequences(options, asked, way.output, repeat))
        turns = random.Random(repeat)
        while any(way.is_full for way in ways):
            for index in turns.sample(range(len(ways)), len(ways)):
                ways[index].take_turn()
        for way in ways:
            way.end()
            if repeat:
                way.counts = sum((counts_of(row) for row in way.rows), way.counts)
        _compare_texts({way.output: way.rows for way in ways}, drafter)
        say(f"{drafter}, {batch} rows at once: repeat {repeat} of {options.repeats}")
    return [_line(drafter, way, {way.output: way for way in ways}) for way in ways]


def _compare_texts(rows: dict[str, list[Sequence]], drafter: str) -> None:
    for output in ("schema", "tight schema"):
        texts = [
            [row.output_token_ids for row in rows[name]] for name in (output, f"{output}, not forced") if name in rows
        ]
        assert texts[0] == texts[-1], f"{drafter}, {output}: forced tokens changed a text"


def _ways(options: argparse.Namespace, target: Path, batch: int, drafter: DrafterName) -> list[Way]:
    engine_options = EngineOptions(
        drafter=drafter,
        num_slots=batch,
        max_model_len=512,
        num_speculative_tokens=options.num_draft_tokens,
        draft_length=options.draft_length,
    )
    draft = str(PAIR / "draft") if drafter in ("model", "hybrid") else None
    ways: list[Way] = []
    for output, (_, is_forced) in OUTPUTS.items():
        if drafter == "none" and not is_forced:  # plain decoding never drafts them
            continue
        shared = ways[0].engine.target.share() if ways else None  # the same weights, and a cache of its own
        parts = load_parts(str(target), draft, engine_options, "cpu", "float32", target_model=shared)
        way = Way(output, Engine.over(parts, engine_options))
        if not is_forced:
            for lane in way.engine.lanes:
                lane.host._forces = lambda rows: False  # type: ignore[method-assign]
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


def _line(drafter: str, way: Way, ways: dict[str, Way]) -> dict[str, Any]:
    """Return what is known of a way, also over the outputs of no form and without forced tokens."""
    plain, unforced = (_other(way, ways, output) for output in ("no form", f"{way.output}, not forced"))
    return {
        "drafter": drafter,
        "output": way.output,
        "milliseconds_a_round": way.milliseconds,
        "tokens_a_round": _tokens_a_round(way),
        "tokens_a_round_times_not_forced": _tokens_a_round(way) / _tokens_a_round(unforced) if unforced else None,
        "acceptance_rate": way.counts.acceptance_rate,
        "tokens_per_second": median(way.speeds),
        "times_no_form": median(_ratios(way.speeds, plain.speeds)) if plain else None,
        "least_times_no_form": min(_ratios(way.speeds, plain.speeds)) if plain else None,
        "times_no_form_by_cpu_time": median(_ratios(way.cpu_speeds, plain.cpu_speeds)) if plain else None,
        "times_not_forced": median(_ratios(way.speeds, unforced.speeds)) if unforced else None,
    }


def _other(way: Way, ways: dict[str, Way], output: str) -> Way | None:
    return ways.get(output) if output != way.output else None


def _tokens_a_round(way: Way) -> float:
    return way.counts.num_output_tokens / way.counts.num_rounds


def _ratios(speeds: list[float], others: list[float]) -> list[float]:
    return [own / its for own, its in zip(speeds, others, strict=True)]


def _cells(line: dict[str, Any]) -> list[str]:
    def ratio(name: str) -> str:
        return "-" if line[name] is None else f"{line[name]:.2f}"

    return [
        "bundled" if line["grown"] == 1 else f"grown {line['grown']} times",
        str(line["rows_at_once"]),
        line["drafter"],
        line["output"],
        f"{line['milliseconds_a_round']:.2f}",
        f"{line['tokens_a_round']:.2f}",
        ratio("tokens_a_round_times_not_forced"),
        f"{line['tokens_per_second']:,.0f}",
        *(ratio(name) for name in _RATIOS),
    ]


if __name__ == "__main__":
    main()
