"""The work of `dray prove`: what every drafter writes is compared with what the target writes alone."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import TypeVar

import torch
import transformers
from rich.console import Console
from rich.progress import track
from rich.table import Table

from actors.engines import backend_of
from actors.engines.footprint import made_of_in_words
from jobs.config.prove import AskedName, ProveConfig
from jobs.driver.outcome import run_command
from jobs.driver.plan import Plan
from jobs.driver.stopping import Exit
from jobs.proving.asked import PlacedInput, asking, good_inputs
from jobs.proving.comparison import Difference, Finding, Setting, some_of
from jobs.proving.dray_texts import DrayTexts
from jobs.proving.vllm_texts import VllmTexts
from jobs.work.plan_text import print_plan

_TEXTS: dict[str, type[DrayTexts | VllmTexts]] = {"dray": DrayTexts, "vllm": VllmTexts}
_Step = TypeVar("_Step")


def prove(config: ProveConfig) -> Exit:
    """Return 0 if no token differs, 1 if one does where none may, 2 for a wrong configuration."""
    return run_command(config, _begin, "nothing was written")


def _begin(config: ProveConfig, plan: Plan) -> Callable[[], Exit]:
    if config.dry_run:
        print_plan(plan)
        drafters = ", ".join(config.prove.drafters) or "each drafter that the models allow"
        print(
            f"would write the first {config.prove.num_prompts} rows with the target alone, then with {drafters} in "
            f"{', '.join(map(str, config.prove.num_slots))} slots, and compare them"
        )
        return lambda: Exit.COMPLETE
    return Proof(config, plan).run


class Proof:
    """The prompts and the settings to compare."""

    def __init__(self, config: ProveConfig, plan: Plan) -> None:
        """Load what runs in this process, and read the prompts. Raises ValueError or OSError for what is wrong."""
        self._config, self._plan, self._console = config, plan, Console()
        self._texts = _TEXTS[plan.settings.engine.backend](plan, config.prove)
        good = good_inputs(plan, plan.new_units(), self._texts.problem_with, self._leave_out)
        rows = list(islice(good, config.prove.num_prompts))
        if not rows:
            raise ValueError("no row of the input can be written, so there is nothing to compare")
        names = config.prove.asked or self._texts.asked_by_default
        self._inputs = {name: self._asking(rows, name) for name in names}

    def run(self) -> Exit:
        """Compare, print and record. Raises ValueError if an engine cannot be loaded where the run puts it."""
        started, models, prove = time.monotonic(), self._plan.settings.models, self._config.prove
        texts = self._texts
        with ExitStack() as resources:
            texts.place(resources)
            made_of = made_of_in_words(self._plan.settings, models.target)
            self._console.print(
                f"target {self._config.generator.models.target}, {models.dtype} on {texts.runs_on}{made_of}"
            )
            found: list[Finding] = []
            for temperature in prove.temperatures or (self._plan.settings.sampling.temperature,):
                for number, name in enumerate(self._inputs):
                    is_every = prove.every_setting or number == 0
                    settings = texts.settings if is_every else some_of(texts.settings, number)
                    found += self._compared(temperature, name, settings)
        differences = [each for finding in found for each in finding.differences]
        num_tokens = sum(finding.num_tokens for finding in found)
        verdict = _verdict(num_tokens, len(found), differences, texts.is_promised)
        self._console.print(verdict, style="bold", highlight=False)
        for asked, number in Counter(each.asked for each in differences).most_common():
            self._console.print(f"rows that differ with {asked} asked of them: {number}", highlight=False)
        self._record(found, num_tokens, time.monotonic() - started)
        return Exit.FAILED if differences and texts.is_promised else Exit.COMPLETE

    def _leave_out(self, line: str) -> None:
        self._console.print(line, highlight=False)

    def _asking(self, rows: list[PlacedInput], name: AskedName) -> list[PlacedInput]:
        """Return the rows with this asked of them; print which cannot be written so. Raises ValueError if none can."""
        found = []
        for placed in asking(rows, name):
            problem = self._texts.problem_with(placed)
            if problem is None:
                found.append(placed)
            else:
                where = f"row {placed.ordinal + 1} of the input, with {placed.asked} asked of it,"
                self._console.print(f"{where} is left out: {problem}", highlight=False)
        if not found:
            raise ValueError(f"prove.asked has {name!r}, and no row of the input can be written with it")
        return found

    def _compared(self, temperature: float, name: AskedName, settings: list[Setting]) -> list[Finding]:
        """Return what each setting wrote at this temperature, with this asked of the rows; print it."""
        texts, inputs, what = self._texts, self._inputs[name], f"temperature {temperature:g}, asked: {name}"
        num_rows = len(inputs) * self._plan.settings.sampling.n
        expected = list(self._shown(texts.alone(inputs, temperature), num_rows, f"{what}: one row at a time"))
        failed = [row.error for row in expected if row.finish_reason == "error"]
        if len(failed) == len(expected):
            raise ValueError(f"none of the prompts can be written ({what}): {failed[0]}")
        findings = texts.findings(inputs, temperature, expected, settings)
        found = [replace(finding, asked=name) for finding in self._shown(findings, len(settings), f"{what}: settings")]
        columns = ["drafter", "draft length", "slots", "order", "tokens", "accepted", "text"]
        if len({setting.where for setting in settings}) > 1:
            columns.insert(4, "models in")
        num_tokens = sum(len(row.output_token_ids) for row in expected)
        errors = f" ({len(failed)} of them errors)" if failed else ""
        title = f"{what}: {len(expected)} rows{errors}, {num_tokens:,} tokens by {texts.written_alone_by}"
        table = Table(*columns, title_justify="left", title=title)
        for finding in found:
            cells = _cells(finding)
            table.add_row(*(cells[column] for column in columns))
        self._console.print(table)
        for finding in found:
            for difference in finding.differences[:1]:
                self._console.print(f"first difference of {finding.setting.drafter}: {_as_text(difference)}")
        return found

    def _shown(self, steps: Iterator[_Step], total: int, what: str) -> Iterable[_Step]:
        """Yield the steps, and show on a terminal how many of `total` are done."""
        return track(steps, what, total, console=self._console, transient=True, disable=not self._console.is_terminal)

    def _record(self, found: list[Finding], num_tokens: int, seconds: float) -> None:
        """Write the result where the configuration says, and into the report of a run that exists."""
        result = {
            "engine": backend_of(self._plan.settings).describe(),
            "num_prompts": max(map(len, self._inputs.values())),
            "asked": list(self._inputs),
            "num_settings": len(found),
            "num_tokens": num_tokens,
            "num_different_rows": sum(len(finding.differences) for finding in found),
            "dtype": self._plan.settings.models.dtype,
            "device": self._texts.runs_on,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "seconds": round(seconds, 1),
        }
        if self._config.prove.json_path is not None:
            whole = {**result, "findings": [asdict(finding) for finding in found]}
            Path(self._config.prove.json_path).expanduser().write_text(json.dumps(whole, indent=2) + "\n")
        if self._plan.run_directory is not None:
            self._plan.run_directory.add_to_report("proof", result)


def _cells(finding: Finding) -> dict[str, str]:
    """Return the cells of a setting's line, by the names of their columns."""
    setting = finding.setting
    length = "-" if setting.drafter == "none" else str(setting.num_speculative_tokens)
    drafted, accepted = finding.num_draft_tokens, finding.num_accepted_tokens
    return {
        "drafter": setting.drafter,
        "draft length": f"up to {length}" if setting.draft_length == "adaptive" else length,
        "slots": str(setting.num_slots),
        "order": "shuffled" if setting.is_shuffled else "input",
        "models in": setting.where,
        "tokens": f"{finding.num_tokens:,}",
        "accepted": f"{accepted / drafted:.0%}" if drafted else "-",
        "text": f"{len(finding.differences)} rows differ" if finding.differences else "identical",
    }


def _as_text(difference: Difference) -> str:
    where = f"row {difference.row}, token {difference.position}, asked: {difference.asked}"
    margin = "" if difference.margin is None else f"; the two best candidates are {difference.margin:.1e} logits apart"
    return f"{where}: {difference.found} for {difference.expected}{margin}"


def _verdict(num_tokens: int, num_settings: int, differences: list[Difference], is_promised: bool) -> str:
    compared = f"{num_tokens:,} tokens in {num_settings} settings"
    if not differences:
        return f"identical: {compared}, 0 different"
    rate = f"{compared}, {len(differences)} rows differ, one in {num_tokens // len(differences):,} tokens"
    if is_promised:
        return f"NOT IDENTICAL: {rate}; please report this with the table above"
    return f"not identical, and not promised to be (docs/promise.md): {rate}"
