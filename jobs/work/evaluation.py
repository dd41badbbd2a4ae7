"""The work of `jobs.eval_draft`: how much of a draft a run would accept, by its texts."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from itertools import islice
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table

from decoding.checkpoint.supported import model_folder
from decoding.device import to_device
from decoding.network.language_model import LanguageModel
from jobs.config.train import EvalConfig
from jobs.report_page.numbers import format_length, format_rate
from training.corpus.corpus import Corpus
from training.corpus.on_policy import check_is_targets_text
from training.evaluation.kind_score import DraftScore, GateVerdict, KindScore, judge
from training.evaluation.pair import Pair, RoundSeconds, measure_rounds
from training.evaluation.score import score
from training.trainer.output import held_out_when_trained

_LEGEND = (
    "agree: the same likeliest token; match: the same pick under the row's noise; rate: accepted / drafted tokens, a "
    "little below a run's, which drafts less at the end of a text; length: tokens a round"
)


def evaluate(config: EvalConfig) -> int:
    """Return 0, 1 if the gate is not passed, or 2 for a wrong corpus or draft."""
    try:
        return Evaluation(config).run()
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


class Evaluation:
    """The rows, and the drafts that are scored on them."""

    def __init__(self, config: EvalConfig) -> None:
        """Open the corpus and read the rows. Raises ValueError or OSError for what is wrong."""
        self._config, self._console = config, Console()
        self._corpus = Corpus.open(config.corpus, config.models.target, config.models.tokenizer)
        held_out = True if config.eval.rows == "held_out" else None
        json_path = config.eval.json_path
        if json_path is not None and not Path(json_path).expanduser().absolute().parent.is_dir():
            raise ValueError(f"eval.json_path is {json_path!r}, whose folder is not there; make it first")
        self._examples = list(islice(self._corpus.examples(held_out), config.eval.max_rows))
        if not self._examples:
            raise ValueError(
                f"none of the corpus' rows is held out (corpus.held_out_share is {config.corpus.held_out_share}); "
                "raise that share, or set eval.rows to all"
            )

    def run(self) -> int:
        """Score, print and record; return the exit code. Raises ValueError for a draft or texts that are refused."""
        config, models = self._config, self._config.models
        assert models.draft is not None
        drafts = [models.draft, *([] if config.against is None else [config.against])]
        share = config.corpus.held_out_share
        for draft in drafts if config.eval.rows == "held_out" else ():
            trained = held_out_when_trained(model_folder(draft))
            if trained is not None and trained < share:
                raise ValueError(
                    f"{draft!r} was trained with corpus.held_out_share {trained:g}, so it has seen some of the rows "
                    f"that {share:g} holds out; set corpus.held_out_share to {trained:g} or less, or eval.rows to all"
                )
        pairs: list[Pair] = []
        for draft in drafts:
            loaded = pairs[0].target if pairs else None
            pairs.append(Pair(draft, models.target, models.device, models.dtype, loaded))
        target = pairs[0].target
        check_is_targets_text(
            self._corpus,
            lambda token_ids, num_logits: target.plain(to_device(list(token_ids), target.device), num_logits),
            target.eos_token_ids,
            target.dtype,
        )
        found = [self._scored(pair) for pair in pairs]
        self._print_reproduced(found[0][0], target)
        verdict: GateVerdict | None = None
        if config.against is not None:
            verdict = judge(found[1][0], found[0][0], gain=config.eval.min_gain, loss=config.eval.max_loss)
            self._console.print(
                f"gate: {'passed' if verdict.passes else 'not passed'}: {verdict.reason}", style="bold", soft_wrap=True
            )
        self._record(found, verdict)
        return int(verdict is not None and not verdict.passes)

    def _scored(self, pair: Pair) -> tuple[DraftScore, RoundSeconds | None]:
        """Return a draft's score and what its rounds take, if that is asked for; print both."""
        settings = self._config.eval
        is_hidden = not self._console.is_terminal
        examples = track(self._examples, pair.draft_path, console=self._console, transient=True, disable=is_hidden)
        found = score(pair, examples, settings.num_draft_tokens)
        seconds = measure_rounds(pair, settings.num_draft_tokens, settings.num_slots) if settings.costs else None
        self._console.print(_table(found, seconds))
        return found, seconds

    def _print_reproduced(self, found: DraftScore, target: LanguageModel) -> None:
        what = "held-out rows" if self._config.eval.rows == "held_out" else "rows"
        said = f"{len(self._examples):,} {what}, {found.all.num_tokens:,} output tokens"
        if found.all.reproduced is None:
            said += "; without the rows' noise keys, acceptance is that of noise drawn for the texts"
        else:
            dtype = str(target.dtype).removeprefix("torch.")
            said += f"; the target, in {dtype}, reproduces {found.all.reproduced:.2%} of them"
        self._console.print(said, highlight=False, soft_wrap=True)
        self._console.print(_LEGEND, highlight=False, soft_wrap=True)
        if self._config.eval.costs:
            slots = self._config.eval.num_slots
            self._console.print(
                f"speed: times as fast as plain decoding, by the costs of rounds of {slots} rows here", soft_wrap=True
            )

    def _record(self, found: list[tuple[DraftScore, RoundSeconds | None]], verdict: GateVerdict | None) -> None:
        if self._config.eval.json_path is None:
            return
        result = {
            "corpus": self._corpus.fingerprint(),
            "num_rows": len(self._examples),
            "drafts": [
                {**each.as_dict(), "round_seconds": None if seconds is None else asdict(seconds)}
                for each, seconds in found
            ],
            "gate": None if verdict is None else asdict(verdict),
        }
        Path(self._config.eval.json_path).expanduser().write_text(json.dumps(result, indent=2) + "\n")


def _table(found: DraftScore, seconds: RoundSeconds | None) -> Table:
    """Return the score of a draft as a table, a line for each kind."""
    title = f"{found.draft}, {found.num_draft_tokens} draft tokens"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("kind", no_wrap=True)
    for heading in ("rows", "tokens", "agree", "1 - TV", "match", "rate", "length"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("by draft position")
    if seconds is not None:
        table.add_column("speed", justify="right", no_wrap=True)
    for kind, each in found.by_kind.items():
        table.add_row(kind, *_cells(each, seconds))
    table.add_row("all", *_cells(found.all, seconds), style="bold")
    return table


def _cells(found: KindScore, seconds: RoundSeconds | None) -> list[str]:
    return [
        f"{found.num_rows:,}",
        f"{found.num_tokens:,}",
        *map(format_rate, (found.agreement, found.overlap, found.match_rate, found.acceptance_rate)),
        format_length(found.tokens_a_round),
        " ".join(f"{share:.2f}".removeprefix("0") for share in found.acceptance_per_position),
        *([f"{seconds.speed_up(found.tokens_a_round):.2f}"] if seconds else []),
    ]
