"""Compare the speed of this checkout with that of another commit: `python -m benchmarks.pairs --base COMMIT`.

A worker runs the code of each commit. The two generate the same rows in turns of a fraction of a second, in a random
order, so that other work on the machine slows both alike. A pair is one repeat of both. The table shows the median of
the pairs' ratios (above 1: this checkout is faster) with its interval. A change is within 2 % if the interval holds
nothing below 0.98 and is at most 0.03 wide; pairs are added until it is as narrow, up to a limit.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence as Seq
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from transformers import AutoTokenizer

from benchmarks.drafts import token_ids
from benchmarks.forms import requests
from benchmarks.hardware import describe_machine, versions
from benchmarks.harness import listed, say, show, write_json
from benchmarks.pairs.interval import Interval

_TURN_SECONDS = 0.1
WAYS = {  # the drafter, and whether rows have a form
    "plain": ("none", False),
    "model": ("model", False),
    "suffix": ("suffix", False),
    "schema": ("none", True),
    "schema, suffix": ("suffix", True),
}
HEADINGS = ("way", "rows at once", "pairs", "base tokens/s", "tokens/s", "times base", "interval", "verdict", "texts")


class Commit:
    """A worker with the code of one commit."""

    def __init__(self, folder: Path) -> None:
        environment = os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(Path(__file__).with_name("worker.py"))]
        self._process = subprocess.Popen(
            command, cwd=folder, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.speeds: list[float] = []
        self.digests: list[str] = []
        self._seconds = 0.0

    def ask(self, name: str, **arguments: Any) -> Any:
        """Let the worker do something, and return what it answers. Raises RuntimeError if it has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([name, arguments]), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the worker ended with code {self._process.wait()}; its error is above")
        return json.loads(answer)

    def take_turn(self) -> bool:
        """Generate for a moment; return whether rows are left, and otherwise keep the speed and the text."""
        done = self.ask("turn", seconds=_TURN_SECONDS)
        self._seconds += done["seconds"]
        if "digest" in done:
            self.speeds.append(done["num_tokens"] / self._seconds)
            self.digests.append(done["digest"])
            self._seconds = 0.0
        return "digest" not in done

    def close(self) -> None:
        """End the worker."""
        self._process.communicate()


def main(arguments: Seq[str] | None = None) -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pairs", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--base", required=True, help="the commit to compare with")
    parser.add_argument("--ways", type=lambda text: text.split(";"), default=list(WAYS), help=f"of {'; '.join(WAYS)}")
    parser.add_argument("--batches", type=listed(int), default=(1, 16), help="rows at once")
    parser.add_argument("--pairs", type=int, default=9, help="fewest pairs of each way")
    parser.add_argument("--most-pairs", type=int, default=27)
    parser.add_argument("--json", type=Path)
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
    show(f"{commits}, {machine['processor']}, 1 thread, float32, temperature 0.8", HEADINGS, map(_cells, lines))
    if options.json:
        date = datetime.now(UTC).strftime("%Y-%m-%d")
        facts = {"date": date, "commits": commits, "machine": machine, "versions": versions()}
        write_json(options.json, {**facts, "lines": lines})


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
    commits = [Commit(base), Commit(Path.cwd())]
    try:
        for commit in commits:
            commit.ask("load", drafter=drafter, num_slots=batch, prompts=prompts)
        _take_pair(commits, seed=0)  # the first one warms up
        for commit in commits:
            commit.speeds.clear()
        found = None
        while found is None or (not found.is_narrow and len(commits[0].speeds) < options.most_pairs):
            _take_pair(commits, seed=1 + len(commits[0].speeds))
            if len(commits[0].speeds) >= options.pairs:
                of_base, own = (commit.speeds for commit in commits)
                found = Interval.of([mine / its for its, mine in zip(of_base, own, strict=True)])
    finally:
        for commit in commits:
            commit.close()
    say(f"{way}, {batch} rows at once: {found}")
    return {
        "way": way,
        "rows_at_once": batch,
        "pairs": len(of_base),
        "base_tokens_per_second": median(of_base),
        "tokens_per_second": median(own),
        "interval": found,
        "verdict": found.verdict,
        "same_texts": commits[0].digests == commits[1].digests,
    }


def _take_pair(commits: list[Commit], seed: int) -> None:
    for commit in commits:
        commit.ask("begin", seed=seed)
    turns, left = random.Random(seed), list(commits)
    while left:
        left = [commit for commit in turns.sample(left, len(left)) if commit.take_turn()]


def _cells(line: dict[str, Any]) -> list[str]:
    interval = line["interval"]
    return [
        line["way"],
        str(line["rows_at_once"]),
        str(line["pairs"]),
        f"{line['base_tokens_per_second']:,.0f}",
        f"{line['tokens_per_second']:,.0f}",
        f"{interval.median:.3f}",
        f"{interval.low:.3f} to {interval.high:.3f}",
        line["verdict"],
        "the same" if line["same_texts"] else "others",
    ]


if __name__ == "__main__":
    main()
