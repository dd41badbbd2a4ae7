"""`python -m jobs.prove --config FILE`: prove that the drafter changes no token, with your models, machine, prompts."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Any

import ray
import torch
import transformers
from rich.console import Console
from rich.table import Table

from actors.engine.translation import encode_row
from actors.workers.loading import load_codec
from decoding.drafters import NEED_A_MODEL
from decoding.engine.engine import Engine
from decoding.engine.load import Parts, load_parts
from decoding.network.reference import Reference
from decoding.sequence import Sequence as Row
from jobs.config.prove import ProveConfig
from jobs.driver.outcome import Exit, run_command
from jobs.driver.placed import placed_engine
from jobs.driver.plan import Plan
from jobs.driver.proof import Difference, Finding, PlacedInput, Setting, compare, findings, rows_of, settings_to_try
from pipeline.errors import ErrorRow, RowError
from pipeline.inputs.rows import InputRow, read_unit


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if no token differs, 1 if one does where none may, 2 for a wrong configuration."""
    return run_command(ProveConfig, arguments, "python -m jobs.prove", lambda config, plan: Proof(config, plan).run)


class Proof:
    """The models, the prompts and the settings to compare."""

    def __init__(self, config: ProveConfig, plan: Plan) -> None:
        """Read the prompts and load the models. Raises ValueError or OSError for what cannot be compared."""
        if config.generator.engine.backend != "dray":
            raise ValueError(
                "engine.backend is 'vllm', whose texts nothing proves; `python -m benchmarks.engines` counts how many "
                "of them are the exact ones, and jobs.prove compares engine.backend 'dray'"
            )
        if config.generator.engine.verification == "rejection":
            raise ValueError(
                "engine.verification is 'rejection', which keeps the distribution of the target and not its tokens; "
                "only 'coupled' can be compared token by token"
            )
        self._config, self._console = config, Console()
        self._plan, self._codec = plan, load_codec(plan.settings)
        models, options = plan.settings.models, plan.settings.engine
        self._settings = settings_to_try(config.prove, options, models.draft is not None)
        needs_draft = any(setting.drafter in NEED_A_MODEL for setting in self._settings)
        loaded = replace(options, drafter="model" if needs_draft else "none")
        self._parts: Parts = load_parts(models.target, models.draft, loaded, models.device, models.dtype)
        self._plain = self._engine_without_draft()
        self._inputs = list(islice(self._good_rows(), config.prove.num_prompts))
        if not self._inputs:
            raise ValueError("no row of the input can be written, so there is nothing to compare")
        margin = self._parts.target.close_call
        self._reference = Reference.load(models.target, models.device, models.dtype, close_call=margin)

    def _engine_without_draft(self) -> Engine:
        options = replace(self._plan.settings.engine, drafter="none", draft_length="fixed", num_slots=1)
        return Engine.over(replace(self._parts, drafter_name="none", draft=None), options)

    def _good_rows(self) -> Iterator[PlacedInput]:
        """Yield the rows that an engine can write, with their places in the input; print why others are left out."""
        for unit in self._plan.new_units():
            for row in read_unit(unit, self._plan.input_options, self._plan.carried):
                ordinal = unit.first_ordinal + unit.row_index(row.row_id)
                problem = self._problem_with(row, ordinal)
                if problem is None and isinstance(row, InputRow):
                    yield row, ordinal
                else:
                    self._console.print(f"row {row.row_number} of {unit.file} is left out: {problem}", highlight=False)

    def _problem_with(self, row: InputRow | ErrorRow, ordinal: int) -> str | None:
        if isinstance(row, ErrorRow):
            return row.message
        try:
            sequences = encode_row(row, ordinal, self._codec, self._plan.settings).sequences
        except RowError as error:
            return str(error)
        return next(filter(None, map(self._plain.problem_with, sequences)), None)

    def run(self) -> Exit:
        """Compare, print and record."""
        started, models = time.monotonic(), self._plan.settings.models
        self._console.print(f"target {models.target}, {models.dtype} on {self._parts.target.runs_on}")
        found: list[Finding] = []
        with placed_engine(self._plan) as placed:
            for temperature in self._config.prove.temperatures or (self._plan.settings.sampling.temperature,):
                found += self._compared(temperature, placed)
        differences = [each for finding in found for each in finding.differences]
        num_tokens = sum(finding.num_tokens for finding in found)
        is_promised = models.dtype == "float32" or self._parts.target.is_batch_invariant
        self._console.print(_verdict(num_tokens, len(found), differences, is_promised), style="bold", highlight=False)
        self._record(found, num_tokens, differences, time.monotonic() - started)
        return Exit.FAILED if differences and is_promised else Exit.COMPLETE

    def _compared(self, temperature: float, placed: Any) -> list[Finding]:
        """Return what each setting wrote at this temperature, and the engine `placed` as in the run; print it."""
        sampling = replace(self._plan.settings.sampling, temperature=temperature)
        settings = replace(self._plan.settings, sampling=sampling)

        def make_rows() -> list[Row]:
            return rows_of(self._inputs, self._codec, settings, self._parts.max_model_len)

        alone = make_rows()
        if is_float32 := self._plan.settings.models.dtype == "float32":
            list(self._reference.write(alone))
        else:  # there transformers' code rounds otherwise than any other
            list(self._plain.stream(alone))
        expected = [row.output_token_ids for row in alone]
        whose = "transformers' own code" if is_float32 else "the engine, one row at a time and without a draft"
        num_tokens = sum(map(len, expected))
        table = Table(
            "drafter", "draft length", "slots", "order", "models in", "tokens", "accepted", "text",
            title_justify="left",
            title=f"temperature {temperature:g}: {len(expected)} rows, {num_tokens:,} tokens by {whose}",
        )  # fmt: skip
        found = []
        engine = self._plan.settings.engine
        for finding in findings(self._parts, engine, self._settings, make_rows, expected, self._reference):
            found.append(finding)
        if placed is not None:
            written = ray.get(placed.write.remote(self._inputs, temperature))
            found.append(compare(self._placed_setting(), written, expected, make_rows, self._reference))
        for finding in found:
            table.add_row(*_cells(finding))
        self._console.print(table)
        for finding in found:
            for difference in finding.differences[:1]:
                self._console.print(f"first difference of {finding.setting.drafter}: {_as_text(difference)}")
        return found

    def _placed_setting(self) -> Setting:
        settings = self._plan.settings
        options, stages = settings.engine, settings.stages
        ranks = f" of {stages.tensor_parallel} processes" if stages.tensor_parallel > 1 else ""
        where = f"{stages.count} stages{ranks}" if stages.is_apart else ""
        where = ", ".join(filter(None, (where, "draft actors" if settings.placement == "split" else "")))
        drafter = options.pick_drafter(settings.models.draft)
        length = options.num_speculative_tokens
        return Setting(drafter, options.draft_length, length, options.num_slots, is_shuffled=False, where=where)

    def _record(self, found: list[Finding], num_tokens: int, differences: list[Difference], seconds: float) -> None:
        """Write the result where the configuration says, and into the report of a run that exists."""
        result = {
            "num_prompts": len(self._inputs),
            "num_settings": len(found),
            "num_tokens": num_tokens,
            "num_different_rows": len(differences),
            "dtype": self._plan.settings.models.dtype,
            "device": self._parts.target.runs_on,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "seconds": round(seconds, 1),
        }
        if self._config.prove.json_path is not None:
            whole = {**result, "findings": [asdict(finding) for finding in found]}
            Path(self._config.prove.json_path).write_text(json.dumps(whole, indent=2) + "\n")
        if self._plan.run_directory is not None:
            self._plan.run_directory.add_to_report("proof", result)


def _cells(finding: Finding) -> tuple[str, ...]:
    setting = finding.setting
    length = "-" if setting.drafter == "none" else str(setting.num_speculative_tokens)
    accepted = f"{finding.num_accepted_tokens / finding.num_draft_tokens:.0%}" if finding.num_draft_tokens else "-"
    text = f"{len(finding.differences)} rows differ" if finding.differences else "identical"
    return (
        setting.drafter,
        f"up to {length}" if setting.draft_length == "adaptive" else length,
        str(setting.num_slots),
        "shuffled" if setting.is_shuffled else "input",
        setting.where,
        f"{finding.num_tokens:,}",
        accepted,
        text,
    )


def _as_text(difference: Difference) -> str:
    where = f"row {difference.row}, token {difference.position}"
    margin = "" if difference.margin is None else f"; the two best candidates are {difference.margin:.1e} logits apart"
    return f"{where}: {_token(difference.found)} for {_token(difference.expected)}{margin}"


def _token(token_id: int | None) -> str:
    return "the end" if token_id is None else str(token_id)


def _verdict(num_tokens: int, num_settings: int, differences: list[Difference], is_promised: bool) -> str:
    compared = f"{num_tokens:,} tokens in {num_settings} settings"
    if not differences:
        return f"identical: {compared}, 0 different"
    rate = f"{compared}, {len(differences)} rows differ, one in {num_tokens // len(differences):,} tokens"
    if is_promised:
        return f"NOT IDENTICAL: {rate}; please report this with the table above"
    return f"not identical, as this dtype rounds with the shape of the batch (docs/promise.md): {rate}"


if __name__ == "__main__":
    sys.exit(main())
