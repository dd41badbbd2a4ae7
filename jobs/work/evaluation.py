"""The work of `dray eval-draft`: how much of a draft a run would accept, by its texts."""

import json
from dataclasses import asdict
from itertools import islice
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table

from decoding.checkpoint.supported import model_folder
from decoding.device import to_device
from jobs.config.train import EvalConfig
from jobs.names import tell
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
        return _evaluate(config)
    except (ValueError, OSError) as error:
        tell(f"error: {error}")
        return 2


def _evaluate(config: EvalConfig) -> int:
    """Score the drafts on the rows, print and record it. Raises ValueError or OSError for what is wrong or refused."""
    console, models, settings = Console(), config.models, config.eval
    corpus = Corpus.open(config.corpus, models.target, models.tokenizer)
    if settings.json_path is not None and not Path(settings.json_path).expanduser().absolute().parent.is_dir():
        raise ValueError(f"eval.json_path is {settings.json_path!r}, whose folder is not there; make it first")
    is_held_out, share = settings.rows == "held_out", config.corpus.held_out_share
    examples = list(islice(corpus.examples(True if is_held_out else None), settings.max_rows))
    if not examples:
        raise ValueError(
            f"none of the corpus' rows is held out (corpus.held_out_share is {share}); raise that share, or set "
            "eval.rows to all"
        )
    assert models.draft is not None
    drafts = [models.draft, *([] if config.against is None else [config.against])]
    for draft in drafts if is_held_out else ():
        trained = held_out_when_trained(model_folder(draft))
        if trained is not None and trained < share:
            raise ValueError(
                f"{draft!r} was trained with corpus.held_out_share {trained:g}, so it has seen some of the rows that "
                f"{share:g} holds out; set corpus.held_out_share to {trained:g} or less, or eval.rows to all"
            )
    pairs: list[Pair] = []
    for draft in drafts:
        loaded = pairs[0].target if pairs else None
        pairs.append(Pair(draft, models.target, models.device, models.dtype, loaded))
    target = pairs[0].target
    check_is_targets_text(
        corpus,
        lambda token_ids, num_logits: target.plain(to_device(list(token_ids), target.device), num_logits),
        target.eos_token_ids,
        target.dtype,
    )
    found: list[tuple[DraftScore, RoundSeconds | None]] = []
    for pair in pairs:
        shown = track(examples, pair.draft_path, console=console, transient=True, disable=not console.is_terminal)
        of_pair = score(pair, shown, settings.num_draft_tokens)
        seconds = measure_rounds(pair, settings.num_draft_tokens, settings.num_slots) if settings.costs else None
        console.print(_table(of_pair, seconds))
        found.append((of_pair, seconds))
    own = found[0][0]
    said = f"{len(examples):,} {'held-out rows' if is_held_out else 'rows'}, {own.all.num_tokens:,} output tokens"
    if own.all.reproduced is None:
        said += "; without the rows' noise keys, acceptance is that of noise drawn for the texts"
    else:
        dtype = str(target.dtype).removeprefix("torch.")
        said += f"; the target, in {dtype}, reproduces {own.all.reproduced:.2%} of them"
    console.print(said, highlight=False, soft_wrap=True)
    console.print(_LEGEND, highlight=False, soft_wrap=True)
    if settings.costs:
        rows = f"rounds of {settings.num_slots} rows"
        console.print(f"speed: times as fast as plain decoding, by the costs of {rows} here", soft_wrap=True)
    verdict: GateVerdict | None = None
    if config.against is not None:
        verdict = judge(found[1][0], own, gain=settings.min_gain, loss=settings.max_loss)
        outcome = "passed" if verdict.passes else "not passed"
        console.print(f"gate: {outcome}: {verdict.reason}", style="bold", soft_wrap=True)
    if settings.json_path is not None:
        result = {
            "corpus": corpus.fingerprint(),
            "num_rows": len(examples),
            "drafts": [
                {**each.as_dict(), "round_seconds": None if seconds is None else asdict(seconds)}
                for each, seconds in found
            ],
            "gate": None if verdict is None else asdict(verdict),
        }
        Path(settings.json_path).expanduser().write_text(json.dumps(result, indent=2) + "\n")
    return int(verdict is not None and not verdict.passes)


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
