"""A row of a run as text for a terminal: its facts, its prompt, and its text with what the draft did to it."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from jobs.report_page.numbers import count, format_length, on_one_line
from jobs.report_page.rounds import Mark, Piece
from jobs.report_page.samples import Sample
from pipeline.inputs.values import visible

_MARKS: dict[Mark, tuple[str, str, str]] = {  # before, behind, style
    "accepted": ("[[", "]]", "green underline"),
    "rejected": ("[-", "-]", "red strike"),
    "corrected": ("{+", "+}", "bold yellow"),
    "own": ("", "", ""),
}
# What the place of a token in its round says of who drafted it, by the drafter that the part names.
_DRAFTED_BY = {
    "mtp": "Module (k - 1) mod n + 1 of the head's n modules drafted the k-th token of a round",
    "eagle3": "The k-th step of the head (P-EAGLE: the k-th place of its forward) drafted the k-th token of a round",
    "dflash": "The k-th place of the head's block drafted the k-th token of a round",
    "hybrid": "A round was drafted by the lookup, or by the model and then the lookup: which of them, is not recorded",
}


def row_text(sample: Sample, why_unmarked: str, *, has_column: bool) -> RenderableType:
    """Return a sample as text; `has_column` says whether its run has a column for rounds."""
    if sample.is_error:
        return Group(_title(sample, ""), _facts(_facts_of_error(sample)), Text())
    row = sample.row
    parts = [_title(sample, f", sample {row['sample']}"), _facts(_facts_of(sample))]
    parts += _section("Prompt", Text(visible(row["prompt"] or "")))
    if sample.pieces:
        heading = "Text: [[accepted]], [-rejected-], {+corrected+}, and the target's own"
        parts += [*_section(heading, _marked(sample.pieces)), *_section("Round by round", _rounds(sample))]
        if legend := _DRAFTED_BY.get(sample.drafter):
            parts.append(Text(f"{legend}; what a grammar forces is drafted by none.", style="dim"))
        return Group(*parts, Text())
    why = "the rounds of this row were not recorded (output.rounds: all records those of every row; vLLM has none)"
    if row["finish_reason"] == "scored":
        why = "the text was given, and nothing was drafted"
    elif not has_column:
        why = "the run was begun before rounds were recorded"
    parts += _section("Text", Text(visible(row["text"] or "")))
    return Group(*parts, Text(f"Not marked: {why_unmarked or why}.", style="dim"), Text())


def _title(sample: Sample, number: str) -> RenderableType:
    return Rule(Text(f"Row {sample.name}{number}"), align="left")


def _facts_of(sample: Sample) -> dict[str, str]:
    row, length = sample.row, sample.acceptance_length
    facts = {
        "row_id": str(sample.row_id),
        "tokens": f"{count(row['num_output_tokens'])}, after {count(row['num_prompt_tokens'])} of the prompt",
        "ended by": row["finish_reason"] + (f" ({visible(row['stop_reason'])})" if row["stop_reason"] else ""),
    }
    if length is not None:
        drafted = f"{count(row['num_accepted_tokens'])} of {count(row['num_draft_tokens'])} drafted tokens accepted"
        facts["rounds"] = f"{count(row['num_rounds'])}; {drafted}; {format_length(length)} tokens a round"
    if row.get("draft_version"):
        facts["draft version"] = str(row["draft_version"])
    if row.get("num_earlier_tokens") is not None:
        same, earlier = row["num_unchanged_tokens"], row["num_earlier_tokens"]
        facts["earlier text"] = f"{count(earlier)} tokens, of which the first {count(same)} are the same"
    if row.get("num_tries") is not None:
        facts["tries"] = f"{row['num_tries']} (run.validate)"
    if row.get("logprob") is not None:
        facts["log-probability"] = f"{row['logprob']:.4f}"
    return facts


def _facts_of_error(sample: Sample) -> dict[str, str]:
    row = sample.row
    refused = {"tries": str(row["num_tries"]), "last text": visible(row["text"])} if row.get("text") is not None else {}
    return {
        "row_id": str(sample.row_id),
        "failed at": f"{row['stage']}, {row['error_type']}",
        "message": visible(row["message"]),
        "input": f"{row['file']}#{row['row_number'] + 1}",
        "tried again": f"{row['attempt']} times (dray retry tries it again)",
        **refused,
    }


def _facts(facts: dict[str, str]) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        table.add_row(Text(name, style="dim"), Text(value))
    return table


def _section(heading: str, inside: RenderableType) -> list[RenderableType]:
    return [Text(f"\n{heading}", style="bold"), Padding(inside, (0, 0, 0, 2))]


def _marked(pieces: Sequence[Piece]) -> Text:
    text = Text()
    for piece in pieces:
        before, behind, style = _MARKS[piece.mark]
        shown = on_one_line(piece.text) if piece.mark == "rejected" else piece.text
        text.append(f"{before}{visible(shown)}{behind}", style)
    return text


def _rounds(sample: Sample) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("round", "drafted", "accepted"):
        table.add_column(heading, justify="right")
    for heading in ("the draft's", "rejected", "the target's own"):
        table.add_column(heading, overflow="fold")
    texts: dict[tuple[int, Mark], str] = {}
    for piece in sample.pieces:
        texts[piece.round, piece.mark] = visible(on_one_line(piece.text))
    for each in sample.rounds:
        accepted, rejected = (texts.get((each.number, mark), "") for mark in ("accepted", "rejected"))
        own = texts.get((each.number, "own")) or texts.get((each.number, "corrected"), "")
        table.add_row(
            str(each.number + 1),
            str(each.num_drafted),
            str(len(each.accepted)),
            Text(accepted, style="green"),
            Text(rejected, style="red"),
            Text(own if each.own is not None else "(the text had ended)", style="" if each.own is not None else "dim"),
        )
    return table
