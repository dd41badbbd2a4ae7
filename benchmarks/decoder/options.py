"""BenchOptions: what to measure, checked before any work, and the command line that says it."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks.decoder.configurations import select
from benchmarks.pair_factory import SHAPES

CORPORA = ("auto", "random", "text", "templated", "mixed")
DTYPES = ("float32", "bfloat16")
MIXED_LANGUAGES = (0.95, 0.7, 0.4)


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """One run of the benchmark. An invalid value is a ValueError that says what is allowed."""

    pair: Path | None = None  # folder with target/ and draft/; None: made by the pair factory
    size: str = "medium"
    acceptance: float = 0.8
    languages: tuple[float, ...] = ()  # acceptance by language, for the mixed corpus
    cache: Path = Path("out/pairs")
    device: Literal["cpu", "cuda"] = "cpu"
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    threads: int | None = None  # None: torch's own choice
    only: tuple[str, ...] = ()  # names or globs of configurations; empty: the default set
    batches: tuple[int, ...] = (1, 4, 16, 32)
    repeats: int = 5
    seed: int = 0
    corpus: str = "auto"
    prompts: int = 64  # most rows a configuration gets
    few: int = 3  # rows at batch 1
    prompt_lengths: tuple[int, int] = (32, 128)
    prefix: int = 128  # tokens that templated prompts share
    prompts_file: Path | None = None
    new_tokens: int = 64
    samples: int = 1
    temperature: float = 0.0
    reference: int = 8  # rows compared with transformers' greedy text
    memory: tuple[str, ...] = ("plain@*", "adaptive@*")  # labels whose peak memory is measured, in a process of its own
    raw: bool = True  # replay the forwards
    peers: Path = field(default_factory=Path)  # where .venv-openvino and .venv-vllm are

    def __post_init__(self) -> None:
        """Check every field."""
        _require(self.pair is None or (self.pair / "target").is_dir(), "pair", "a folder with target/", self.pair)
        _require(self.size in SHAPES, "size", f"one of {', '.join(SHAPES)}", self.size)
        for rate in (self.acceptance, *self.languages):
            _require(0 < rate < 1, "acceptance", "between 0 and 1", rate)
        _require(self.device in ("cpu", "cuda"), "device", "cpu or cuda", self.device)
        _require(self.dtype in DTYPES, "dtype", " or ".join(DTYPES), self.dtype)
        _require(self.threads is None or self.threads >= 1, "threads", "at least 1", self.threads)
        _require(bool(self.batches) and min(self.batches) >= 1, "batches", "numbers from 1 up", self.batches)
        _require(self.repeats >= 1, "repeats", "at least 1", self.repeats)
        _require(self.corpus in CORPORA, "corpus", f"one of {', '.join(CORPORA)}", self.corpus)
        for name in ("prompts", "few", "new_tokens", "samples"):
            _require(getattr(self, name) >= 1, name.replace("_", "-"), "at least 1", getattr(self, name))
        shortest, longest = self.prompt_lengths
        _require(1 <= shortest <= longest, "prompt-lengths", "two numbers, the shorter first", self.prompt_lengths)
        _require(
            self.temperature == 0 or 0.01 <= self.temperature <= 100,
            "temperature",
            "0 or 0.01 to 100",
            self.temperature,
        )
        if self.samples > 1 and self.temperature == 0:
            raise ValueError(
                "--samples above 1 needs --temperature above 0: greedy samples of a prompt are all the same"
            )
        if self.corpus == "text" and self.prompts_file is None:
            raise ValueError("--corpus text needs --prompts-file, JSON lines with 'prompt' or 'messages'")
        _require(self.prompts_file is None or self.prompts_file.is_file(), "prompts-file", "a file", self.prompts_file)
        select(self.only)  # a ValueError if a pattern names nothing

    def num_rows(self, batch: int) -> int:
        """Return the rows at this batch: two for each slot, so that slots are refilled; few at batch 1."""
        rows = min(self.prompts, max(self.few, 2 * batch))
        return -(-rows // self.samples) * self.samples

    def to_dict(self) -> dict[str, Any]:
        """Return the options as JSON can hold them."""
        return {
            name: str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
        }


def parse(arguments: Sequence[str] | None, prog: str) -> tuple[BenchOptions, argparse.Namespace]:
    """Return the options of a command line and where to write; end the process with a message if one is wrong."""
    parser = make_parser(prog)
    given = parser.parse_args(arguments)
    values = {name: value for name, value in vars(given).items() if name not in ("json", "chart", "list", "sweep")}
    if values["corpus"] == "mixed" and values["pair"] is None and not values["languages"]:
        values["languages"] = MIXED_LANGUAGES
    try:
        return BenchOptions(**values), given
    except ValueError as error:
        parser.error(str(error))


def make_parser(prog: str) -> argparse.ArgumentParser:
    """Return the parser of the benchmark's command line."""
    defaults = BenchOptions()
    parser = argparse.ArgumentParser(
        prog=prog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Measure plain and speculative decoding, transformers' own, and other systems, in one interleaved\n"
        "run: every repeat goes over all configurations in a new order; medians are reported.",
        epilog="examples:\n"
        f"  {prog} --pair examples/tiny_pair --dtype float32 --only 'plain,adaptive*' --batches 1,16\n"
        f"  {prog} --size medium --acceptance 0.8 --json out/medium.json --chart out/medium.png\n"
        f"  {prog} --corpus mixed --only 'plain,fixed-*,adaptive' --batches 16\n"
        f"  {prog} --pair examples/tiny_pair --prompts-file examples/prompts.jsonl --corpus templated --samples 8 \\\n"
        "    --temperature 0.8 --only 'plain,adaptive*'\n"
        f"  {prog} --size medium --sweep 0.2,0.5,0.8,0.95",
    )
    add = parser.add_argument
    add("--list", action="store_true", help="print the names of all configurations and stop")
    models = parser.add_argument_group("models").add_argument
    models("--pair", type=Path, metavar="FOLDER", help="folder with target/ and draft/; else one is made")
    models("--size", choices=SHAPES, default=defaults.size, help="size of the pair that is made (default %(default)s)")
    models("--acceptance", type=float, default=defaults.acceptance, metavar="RATE", help="its greedy acceptance rate")
    models("--languages", type=_numbers(float), default=(), metavar="RATES", help="a rate for each of its languages")
    models("--cache", type=Path, default=defaults.cache, metavar="FOLDER", help="where made pairs are kept")
    models("--device", choices=("cpu", "cuda"), default=defaults.device)
    models("--dtype", choices=DTYPES, default=defaults.dtype)
    models("--threads", type=int, help="CPU threads (default: torch's)")
    what = parser.add_argument_group("what is measured").add_argument
    what("--only", type=_names, default=(), metavar="NAMES", help="configurations, by name or glob, with commas")
    what("--batches", type=_numbers(int), default=defaults.batches, metavar="SIZES", help="rows at a time (1,4,16,32)")
    what("--repeats", type=int, default=defaults.repeats, help="timed passes over everything (default %(default)s)")
    what("--seed", type=int, default=defaults.seed, help="of prompts, noise and the order of a pass")
    what("--no-raw", dest="raw", action="store_false", help="do not replay forwards: no ideal, no efficiency")
    what(
        "--memory",
        type=_names,
        default=defaults.memory,
        metavar="LABELS",
        help="name@batch, globs: measure peak memory",
    )
    what("--reference", type=int, default=defaults.reference, metavar="N", help="rows compared with transformers")
    what("--peers", type=Path, default=defaults.peers, metavar="FOLDER", help="where 'make peers' put its environments")
    text = parser.add_argument_group("prompts and output").add_argument
    text(
        "--corpus",
        choices=CORPORA,
        default=defaults.corpus,
        help="auto: text where the pair has a tokenizer and a file",
    )
    text("--prompts", type=int, default=defaults.prompts, metavar="N", help="most rows of a configuration")
    text("--few", type=int, default=defaults.few, metavar="N", help="rows at batch 1 (default %(default)s)")
    text("--prompt-lengths", type=_range, default=defaults.prompt_lengths, metavar="A-B", help="in tokens (32-128)")
    text("--prefix", type=int, default=defaults.prefix, metavar="N", help="tokens that templated prompts share")
    text("--prompts-file", type=Path, metavar="JSONL", help="for text: rows with 'prompt' or 'messages'")
    text("--new-tokens", type=int, default=defaults.new_tokens, metavar="N", help="output tokens of every row")
    text("--samples", type=int, default=defaults.samples, metavar="N", help="samples of each prompt")
    text("--temperature", type=float, default=defaults.temperature, help="0 is greedy (default)")
    out = parser.add_argument_group("results").add_argument
    out("--json", type=Path, metavar="FILE", help="write everything that was measured")
    out("--chart", type=Path, metavar="PNG", help="draw tokens a second (needs matplotlib)")
    out(
        "--sweep",
        type=_numbers(float),
        metavar="RATES",
        help="adaptive against fixed lengths at these acceptance rates",
    )
    return parser


def _require(holds: bool, name: str, allowed: str, value: object) -> None:
    if not holds:
        raise ValueError(f"--{name} must be {allowed}, got {value}")


def _numbers(kind: type) -> Any:
    def numbers(text: str) -> tuple[Any, ...]:
        return tuple(kind(part) for part in text.split(","))

    numbers.__name__ = f"list of {kind.__name__}"  # what argparse calls it in its message
    return numbers


def _names(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(",") if part)


def _range(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    return int(first), int(last or first)
