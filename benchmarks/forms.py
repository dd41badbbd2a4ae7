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
import shutil
import tempfile
import time
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from benchmarks.engines_in_turns import load_beside, require_same_text
from benchmarks.harness import Table, interleaved, listed, parser_of, say, show_lines
from benchmarks.roofline.hardware import describe_machine, record
from decoding import Engine, EngineOptions, SamplingParams, Sequence
from decoding.choices import DrafterName
from decoding.grammar.grammars import Grammars
from decoding.grammar.structured import Structured
from decoding.grammar.token_table import TokenTable
from jobs.work.tuning.engine_turns import EnginePass, engine_way

PAIR = Path("examples/tiny_pair")
_TEXT, _INTEGER = {"type": "string"}, {"type": "integer"}
_SETTINGS = ("temperature", "draft_length", "num_draft_tokens", "new_tokens", "answers", "one_in", "repeats")
COLUMNS = (
    ("grown", "grown", ""),
    ("rows at once", "rows_at_once", ""),
    ("drafter", "drafter", ""),
    ("output", "output", ""),
    ("ms a round", "milliseconds_a_round", ".2f"),
    ("tokens a round", "tokens_a_round", ".2f"),
    ("times not forced", "tokens_a_round_times_not_forced", ".2f"),
    ("tokens a second", "tokens_per_second", ",.0f"),
    ("times no form", "times_no_form", ".2f"),
    ("least", "least_times_no_form", ".2f"),
    ("by CPU time", "times_no_form_by_cpu_time", ".2f"),
    ("times not forced", "times_not_forced", ".2f"),
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


def main(arguments: Seq[str] | None = None) -> None:
    """Measure, and print a table."""
    parser = parser_of("forms", __doc__)
    flag = parser.add_argument
    flag("--drafters", type=listed(str), default=("none", "suffix", "model"))
    flag("--batches", type=listed(int), default=(1, 4, 16), help="rows at once")
    flag("--grown", type=listed(int), default=(1,), help="how wide feed-forward layers are, times their own")
    flag("--answers", type=int, default=3, help="to each request")
    flag("--one-in", type=int, default=1, help="of the requests, those that are answered")
    flag("--new-tokens", type=int, default=200, help="most output tokens of a row")
    flag("--draft-length", choices=("adaptive", "fixed"), default="adaptive")
    flag("--num-draft-tokens", type=int, default=8, help="most tokens that a row drafts in a round")
    flag("--temperature", type=float, default=0.8)
    flag("--repeats", type=int, default=7)
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
    title = f"{describe_machine()['processor']}, 1 thread, float32, temperature {options.temperature:g}"
    show_lines(title, COLUMNS, lines)
    say(f"to compile a schema: {', '.join(f'{name} {1000 * seconds:.1f} ms' for name, seconds in compiled.items())}")
    settings = {name: getattr(options, name) for name in _SETTINGS}
    record(options.json, settings=settings, compile_seconds=compiled, lines=lines)


def grow(target: Path, folder: Path, times: int) -> Path:
    """Write a target with `times` as many neurons in each feed-forward layer to `folder`, and return that.

    The new neurons are random, and what they give is multiplied by zero: the texts stay those of a model that has
    learned something, and the forward lasts longer. `target` is a folder with one file of weights, of a family whose
    layers have the names of Llama's.
    """
    config = json.loads((target / "config.json").read_text())
    shutil.copytree(target, folder, dirs_exist_ok=True)
    weights = load_file(target / "model.safetensors")
    generator = torch.Generator().manual_seed(0)
    for name, weight in weights.items():
        layer = name.removesuffix(".weight").rpartition(".")[2]
        if layer in ("gate_proj", "up_proj"):
            new = torch.randn((times - 1) * len(weight), weight.shape[1], generator=generator) * weight.float().std()
            weights[name] = torch.cat([weight, new.to(weight.dtype)]).contiguous()
        elif layer == "down_proj":
            new = torch.zeros(len(weight), (times - 1) * weight.shape[1], dtype=weight.dtype)
            weights[name] = torch.cat([weight, new], dim=1).contiguous()
    config["intermediate_size"] *= times
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


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
    own = EngineOptions(
        drafter=drafter,
        num_slots=batch,
        max_model_len=512,
        num_speculative_tokens=options.num_draft_tokens,
        draft_length=options.draft_length,
    )
    draft = str(PAIR / "draft") if drafter in ("model", "hybrid") else None
    # Plain decoding never drafts forced tokens.
    outputs = [output for output, (_, is_forced) in OUTPUTS.items() if is_forced or drafter != "none"]
    engines = [Engine.over(parts, own) for parts in load_beside(str(target), [(draft, own)] * len(outputs))]
    for output, engine in zip(outputs, engines, strict=True):
        for lane in () if OUTPUTS[output][1] else engine.lanes:
            lane.host._forces = lambda rows: False  # type: ignore[method-assign]
    ways = {
        output: engine_way(lambda engine=engine: engine, partial(_sequences, options, asked, output), batch)  # type: ignore[misc]
        for output, engine in zip(outputs, engines, strict=True)
    }
    table = interleaved(ways, options.repeats, f"{drafter}, {batch} rows at once")
    for output in ways:
        require_same_text(table, output, output.removesuffix(", not forced"))
    return [{"drafter": drafter, "output": output, **_figures(table, output)} for output in ways]


def _sequences(options: argparse.Namespace, asked: list[Request], output: str, repeat: int) -> list[Sequence]:
    space, _ = OUTPUTS[output]
    made = []
    for row, request in enumerate(asked):
        form = Structured(json_schema=request.schema, disable_any_whitespace=space == "tight") if space else None
        params = SamplingParams(structured=form, temperature=options.temperature, max_tokens=options.new_tokens)
        made.append(Sequence.create(request.prompt, params, run_seed=repeat, row=row))
    return made


def _figures(table: Table[EnginePass], output: str) -> dict[str, Any]:
    """Return what is known of a way, also over the outputs of no form and without forced tokens."""
    plain, unforced = (
        other if other != output and other in table.passes else None for other in ("no form", f"{output}, not forced")
    )
    passes = table.passes[output]
    tokens_a_round = _tokens_a_round(passes)
    return {
        "milliseconds_a_round": median(1000 * each.seconds / each.num_rounds for each in passes),
        "tokens_a_round": tokens_a_round,
        "tokens_a_round_times_not_forced": unforced and tokens_a_round / _tokens_a_round(table.passes[unforced]),
        "acceptance_rate": sum((each.counts for each in passes[1:]), passes[0].counts).acceptance_rate,
        "tokens_per_second": table.speed(output),
        "times_no_form": plain and median(table.ratios(output, plain)),
        "least_times_no_form": plain and min(table.ratios(output, plain)),
        "times_no_form_by_cpu_time": plain and median(table.ratios(output, plain, "cpu_seconds")),
        "times_not_forced": unforced and median(table.ratios(output, unforced)),
    }


def _tokens_a_round(passes: list[EnginePass]) -> float:
    tokens = sum(each.counts.num_output_tokens for each in passes)
    return tokens / sum(each.counts.num_rounds for each in passes)


if __name__ == "__main__":
    main()
