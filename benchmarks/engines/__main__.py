"""`python -m benchmarks.engines --config run.yaml --rows 200`: Dray's engine and vLLM's on your models.

Each engine is in a process of its own, plain and with the configuration's drafts. They write the same prompts in turn,
in an order of its own each time, and medians are reported. On GPUs, where they do not fit side by side, each is loaded
for its own passes. Beside the speed stand the share of rows whose greedy text is the exact one (Dray's, in float32),
and how much likelier the exact token is where a text first differs.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from itertools import islice
from statistics import median
from typing import Any

from actors.engine.translation import encode_row
from actors.engines.loading import load_codec
from actors.settings import GeneratorSettings
from actors.vllm.arguments import without_drafts
from benchmarks.engines.contender import Contender, How, Prompt, Written
from benchmarks.harness import Table, interleaved, parser_of, say, show, whole
from benchmarks.roofline.hardware import describe_machine, record
from decoding.sampling_params import SamplingParams
from decoding.turns import Way
from jobs.config.loading import load
from jobs.config.run import RunConfig
from jobs.driver.plan import Plan, make_plan
from jobs.proving.comparison import first_difference
from pipeline.errors import RowError
from pipeline.inputs.rows import InputRow, read_unit

_HEADINGS = ["engine", "tokens/s", "x plain", "accepted", "by draft position", "= exact", "margin of first difference"]


_COUNTS = ("num_drafted", "accepted_per_position", "num_rounds")


@dataclass
class Entry:
    """An engine and what it has shown."""

    name: str
    how: How
    settings: GeneratorSettings
    share_exact: float | None = None  # of greedy rows
    margins: list[float] = field(default_factory=list)  # of the exact token over the one that was written, where
    # a greedy text first differs; natural logarithms


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and return 0, or 2 if something cannot be measured."""
    parser = parser_of("engines", __doc__)
    parser.add_argument("--rows", type=int, default=200, help="first rows of the input that are written")
    parser.add_argument("--repeats", type=int, default=3, help="passes of each engine that are timed")
    parser.add_argument("rest", nargs=argparse.REMAINDER, help="fields of the run's configuration, --config first")
    options, rest = parser.parse_known_args(arguments)
    try:
        plan = make_plan(load(RunConfig, [*rest, *options.rest, "--output.path=unused"], parser.prog))
        entries = list(entries_of(plan))
        prompts = list(islice(prompts_of(plan), options.rows))
        measure = _measure_together if plan.settings.models.device == "cpu" else _measure_one_by_one
        table = measure(entries, prompts, plan, options.repeats)
    except (ValueError, OSError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    _print(entries, table, plan)
    record(options.json, engines=_facts(entries, table))
    return 0


def entries_of(plan: Plan) -> Iterator[Entry]:
    """Yield the engines to compare: both, plain and with drafts where there are any, and vLLM as its users call it."""
    own = plan.settings.engine
    dray = replace(plan.settings, engine=replace(own, backend="dray", vllm={}, vllm_env={}))
    vllm = replace(plan.settings, engine=replace(own, backend="vllm", names_given=None))
    yield Entry("dray, plain", "dray", without_drafts(dray))
    yield Entry("vllm, plain", "vllm", without_drafts(vllm))
    yield Entry("LLM.generate, plain", "LLM.generate", without_drafts(vllm))
    drafter = own.pick_drafter(plan.settings.models.draft)
    if drafter != "none":
        yield Entry(f"dray, {drafter}", "dray", dray)
        yield Entry(f"vllm, {drafter}", "vllm", vllm)
        yield Entry(f"LLM.generate, {drafter}", "LLM.generate", vllm)


def prompts_of(plan: Plan) -> Iterator[Prompt]:
    """Yield the tokens of the input's rows that can be written."""
    codec = load_codec(plan.settings)
    for unit in plan.new_units():
        for row in read_unit(unit, plan.input_options, plan.carried):
            if isinstance(row, InputRow):
                ordinal = unit.first_ordinal + unit.row_index(row.row_id)
                try:
                    yield ordinal, encode_row(row, ordinal, codec, plan.settings).sequences[0].prompt_token_ids
                except RowError as error:
                    say(f"row {row.row_number} of {unit.file} is left out: {error}")


def _measure_together(entries: list[Entry], prompts: list[Prompt], plan: Plan, repeats: int) -> Table[Written]:
    with ExitStack() as stack:
        contenders = {}
        for entry in entries:
            say(f"loading {entry.name}")
            contenders[entry.name] = stack.enter_context(closing(Contender(entry.name, entry.how, entry.settings)))
        judge = contenders[entries[0].name]
        exact = judge.write(prompts, _greedy(plan)).outputs
        for entry in entries:
            _judge(entry, contenders[entry.name].write(prompts, _greedy(plan)).outputs, judge, prompts, exact)
        return interleaved(
            {name: _way(contender, prompts, plan) for name, contender in contenders.items()}, repeats, "engines"
        )


def _measure_one_by_one(entries: list[Entry], prompts: list[Prompt], plan: Plan, repeats: int) -> Table[Written]:
    greedy, passes = {}, dict[str, list[Written]]()
    for entry in entries:
        say(f"loading {entry.name}")
        with closing(Contender(entry.name, entry.how, entry.settings)) as contender:
            greedy[entry.name] = contender.write(prompts, _greedy(plan)).outputs
            alone = {entry.name: _way(contender, prompts, plan)}
            passes |= interleaved(alone, repeats, entry.name).passes
    exact = greedy[entries[0].name]
    with closing(Contender(entries[0].name, entries[0].how, entries[0].settings)) as judge:
        for entry in entries:
            _judge(entry, greedy[entry.name], judge, prompts, exact)
    return Table(passes)


def _way(contender: Contender, prompts: list[Prompt], plan: Plan) -> Way[Written]:
    return whole(lambda _: contender.write(prompts, plan.settings.sampling))


def _greedy(plan: Plan) -> SamplingParams:
    return replace(plan.settings.sampling, temperature=0.0)


def _judge(
    entry: Entry, outputs: list[list[int]], judge: Contender, prompts: list[Prompt], exact: list[list[int]]
) -> None:
    """Count the rows whose text is the exact one; at the first difference of the others, ask for the margin."""
    same = 0
    for (_, prompt), wanted, found in zip(prompts, exact, outputs, strict=True):
        at = first_difference(found, wanted)
        same += at is None
        if at is not None and at < min(len(found), len(wanted)):  # where one ends, it has no other token
            entry.margins.append(judge.score([*prompt, *wanted[: at + 1]], found[at]))
    entry.share_exact = same / len(prompts)


def _print(entries: list[Entry], table: Table[Written], plan: Plan) -> None:
    plain = table.speed(entries[0].name)
    rows = []
    for entry in entries:
        last = table.passes[entry.name][-1]
        accepted = last.accepted_per_position
        rate = f"{sum(accepted) / last.num_drafted:.2f}" if last.num_drafted else "-"
        positions = " ".join(f"{number / last.num_rounds:.2f}" for number in accepted) if last.num_drafted else "-"
        margins = f"median {median(entry.margins):.2g}, most {max(entry.margins):.2g}" if entry.margins else "-"
        share = "-" if entry.share_exact is None else f"{entry.share_exact:.1%}"
        speed = table.speed(entry.name)
        rows.append([entry.name, f"{speed:,.0f}", f"{speed / plain:.2f}", rate, positions, share, margins])
    show(f"{describe_machine()}; {plan.settings.models.dtype}, {plan.settings.engine.slots} slots", _HEADINGS, rows)


def _facts(entries: list[Entry], table: Table[Written]) -> list[dict[str, Any]]:
    return [
        {
            "name": entry.name,
            "tokens_per_second": [written.done / written.seconds for written in table.passes[entry.name]],
            **{name: getattr(table.passes[entry.name][-1], name) for name in _COUNTS},
            "share_exact": entry.share_exact,
            "margins": entry.margins,
        }
        for entry in entries
    ]


if __name__ == "__main__":
    sys.exit(main())
