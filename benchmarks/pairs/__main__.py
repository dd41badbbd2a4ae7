"""Compare the speed of this checkout with that of another commit: `python -m benchmarks.pairs --base COMMIT`.

A worker runs the code of each commit. The two generate the same rows in turns of a fraction of a second, in a random
order, so that other work on the machine slows both alike. A pair is one repeat of both. Where the system puts the
memory of a process makes it some percent faster or slower for its whole life, so each pair has new workers: several
pairs of the same ones would not be independent. The table shows the median of the pairs' ratios (above 1: this checkout
is faster) with its interval. A change is within 2 % if the interval holds nothing below 0.98 and is at most 0.03 wide;
pairs are added until it is as narrow, up to a limit.
"""

import argparse
import shutil
import subprocess
import tempfile
from collections.abc import Generator
from collections.abc import Sequence as Seq
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from transformers import AutoTokenizer

from benchmarks.drafts import token_ids
from benchmarks.forms import requests
from benchmarks.harness import listed, paired_ratios, parser_of, say, show_lines
from benchmarks.pairs.commit import Commit
from benchmarks.pairs.interval import Interval
from benchmarks.roofline.hardware import describe_machine, record
from decoding.turns import Pass, Way, one_repeat

_TURN_SECONDS = 0.1
WAYS = {  # the drafter, and whether rows have a form
    "plain": ("none", False),
    "model": ("model", False),
    "suffix": ("suffix", False),
    "schema": ("none", True),
    "schema, suffix": ("suffix", True),
}
COLUMNS = (
    ("way", "way", ""),
    ("rows at once", "rows_at_once", ""),
    ("pairs", "pairs", ""),
    ("base tokens/s", "base_tokens_per_second", ",.0f"),
    ("tokens/s", "tokens_per_second", ",.0f"),
    ("times base: low, median, high", "interval", ""),
    ("verdict", "verdict", ""),
    ("same texts", "same_texts", ""),
)


@dataclass(frozen=True, kw_only=True)
class CommitPass(Pass):
    """One repeat of one commit's code."""

    digest: str  # of the texts


def main(arguments: Seq[str] | None = None) -> None:
    """Measure, and print a table."""
    parser = parser_of("pairs", __doc__)
    parser.add_argument("--base", required=True, help="the commit to compare with")
    parser.add_argument("--ways", type=lambda text: text.split(";"), default=list(WAYS), help=f"of {'; '.join(WAYS)}")
    parser.add_argument("--batches", type=listed(int), default=(1, 16), help="rows at once")
    parser.add_argument("--pairs", type=int, default=9, help="fewest pairs of each way")
    parser.add_argument("--most-pairs", type=int, default=27)
    options = parser.parse_args(arguments)
    if unknown := [way for way in options.ways if way not in WAYS]:
        parser.error(f"there is no way {unknown[0]!r}; there are {'; '.join(WAYS)}")
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        try:
            _git("archive", "--output", str(base / "base.tar"), options.base)
        except subprocess.CalledProcessError as error:
            parser.error(f"--base {options.base!r} cannot be checked out: {error.stderr.strip()}")
        shutil.unpack_archive(base / "base.tar", base)
        for batch in options.batches:
            lines += [_measure(options, base, way, batch) for way in options.ways]
    machine = describe_machine()
    commits = f"{_git('rev-parse', '--short', 'HEAD')} against {_git('rev-parse', '--short', options.base)}"
    show_lines(f"{commits}, {machine['processor']}, 1 thread, float32, temperature 0.8", COLUMNS, lines)
    record(options.json, commits=commits, lines=lines)


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout.strip()


def _prompts(has_form: bool) -> list[tuple[list[int], dict[str, Any] | None]]:
    """Return the token ids of the bundled prompts, or those of records with their schemas."""
    if has_form:
        return [(request.prompt, request.schema) for request in requests() * 3]
    tokenizer = AutoTokenizer.from_pretrained("examples/tiny_pair/target")
    return [(token_ids(tokenizer, line), None) for line in Path("examples/prompts.jsonl").read_text().splitlines()]


def _measure(options: argparse.Namespace, base: Path, way: str, batch: int) -> dict[str, Any]:
    """Return the line of one way."""
    drafter, has_form = WAYS[way]
    prompts = _prompts(has_form)
    if batch == 1:
        prompts = prompts[:: len(prompts) // 12 or 1]
    pairs: list[dict[str, CommitPass]] = []
    found = None
    while found is None or (not found.is_narrow and len(pairs) < options.most_pairs):
        with ExitStack() as stack:
            folders = {"base": base, "own": Path.cwd()}
            commits = {name: stack.enter_context(closing(Commit(folder))) for name, folder in folders.items()}
            for commit in commits.values():
                commit.ask("load", drafter=drafter, num_slots=batch, prompts=prompts)
            ways = {name: _way_of(commit) for name, commit in commits.items()}
            one_repeat(ways, 0)  # the first one warms up
            pairs.append(one_repeat(ways, 1 + len(pairs)))
        of_base, own = ([each[name].done / each[name].seconds for each in pairs] for name in ways)
        if len(pairs) >= options.pairs:
            found = Interval.of(paired_ratios(own, of_base))
    say(f"{way}, {batch} rows at once: {found}")
    return {
        "way": way,
        "rows_at_once": batch,
        "pairs": len(pairs),
        "base_tokens_per_second": median(of_base),
        "tokens_per_second": median(of_base) * found.median,
        "interval": found,
        "verdict": found.verdict,
        "same_texts": all(each["base"].digest == each["own"].digest for each in pairs),
    }


def _way_of(commit: Commit) -> Way[CommitPass]:
    def way(repeat: int) -> Generator[None, None, CommitPass]:
        commit.ask("begin", seed=repeat)
        seconds, answer = 0.0, {}
        while "digest" not in answer:
            answer = commit.ask("turn", seconds=_TURN_SECONDS)
            seconds += answer["seconds"]
            yield
        return CommitPass(seconds=seconds, done=answer["num_tokens"], digest=answer["digest"])

    return way


if __name__ == "__main__":
    main()
