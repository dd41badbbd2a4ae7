"""What recorded figures must show, as the documents promise it: facts of a measurement, and not of the code."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def misses(speed: Path, learned: Path, forms: list[Path]) -> list[str]:
    """Return a line for each recorded figure that is not what the documents promise."""
    lines = json.loads(speed.read_text())["lines"]
    slow = [f"{each['draft']} at {each['rows_at_once']} rows" for each in lines if each["times_plain"] < 0.97]
    found = [f"{name} was slower than 0.97 of plain decoding" for name in slow]
    return [*found, *_of_learning(json.loads(learned.read_text())["lines"]), *_of_forms(forms)]


def _of_learning(lines: list[dict[str, Any]]) -> Iterator[str]:
    lengths = {(line["draft"], line["kind"]): line["live_length"] for line in lines}
    for kind in sorted({line["kind"] for line in lines}):
        if lengths["draft", kind] < 1.25 * lengths["before", kind]:
            yield f"a draft that learned wrote less than a quarter more tokens a round of {kind}"
        if lengths["head", kind] < 0.8 * lengths["draft", kind]:
            yield f"a head stayed more than a fifth behind the draft that learned from the same texts of {kind}"
    for line in lines:
        rates, sizes = (line[f"predicted_{what}"] - line[f"live_{what}"] for what in ("rate", "length"))
        if abs(rates) > 0.05 or abs(sizes) > 0.1:
            yield f"what was predicted of {line['draft']} on {line['kind']} did not come true"


def _of_forms(paths: list[Path]) -> Iterator[str]:
    bundled, fixed, grown = (json.loads(path.read_text())["lines"] for path in paths)
    plain = [line for line in (*bundled, *grown) if line["drafter"] == "none" and line["output"] == "schema"]
    for line in plain:
        if line["times_no_form"] < 0.95:
            yield f"a schema cost more than a twentieth of the speed at {line['rows_at_once']} rows"
    tight = [line for line in bundled if line["drafter"] in ("suffix", "model") and line["output"] == "tight schema"]
    looked_up = [line for line in fixed if line["drafter"] == "ngram" and line["output"] in ("schema", "tight schema")]
    for line in (*(each for each in tight if each["rows_at_once"] == 4), *looked_up):
        if line["tokens_a_round_times_not_forced"] < 1.2 or line["times_not_forced"] <= 1:
            where = f"{line['rows_at_once']} rows of {line['output']}"
            yield f"forced tokens brought the drafter {line['drafter']} too little at {where}"
