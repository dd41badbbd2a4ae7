"""BenchOptions: what to measure, checked before any work, and the command line that says it."""

# ruff: noqa: RUF009  _flag returns a field
import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from benchmarks.decoder.configurations import select
from benchmarks.harness import listed
from benchmarks.pair_factory import SHAPES, cached_pair
from decoding import SamplingParams
from decoding.checkpoint.supported import model_folder
from decoding.network.slot_network import Exact

CORPORA = ("auto", "random", "text", "templated")
DTYPES = ("float32", "bfloat16")
_GROUPS = {"pair": "models", "only": "what is measured", "corpus": "prompts and output"}  # by the first of each


def _flag(default: Any, help: str | None = None, **how: Any) -> Any:
    """Return a field that is a flag of the command line, which argparse reads like this."""
    return field(default=default, metadata={"help": help, **how})


def _count(default: int | None, help: str, **how: Any) -> Any:
    return _flag(default, help, type=int, **how)


def _range(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    if not first.isdecimal() or not (last or first).isdecimal():
        raise argparse.ArgumentTypeError(f"expected one number of tokens or two, such as 100-1900, got {text!r}")
    return int(first), int(last or first)


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """One run of the benchmark. An invalid value is a ValueError that says what is allowed."""

    pair: Path | None = _flag(
        None, "with target/ and draft/, or a GGUF file (default %(default)s: one is made)", type=Path, metavar="FOLDER"
    )
    size: str = _flag("medium", "size of the pair that is made (default %(default)s)", choices=SHAPES)
    acceptance: float = _flag(0.8, "its greedy acceptance rate", type=float, metavar="RATE")
    cache: Path = _flag(Path("out/pairs"), "where made pairs are kept", type=Path, metavar="FOLDER")
    device: Literal["cpu", "cuda"] = _flag("cpu", choices=("cpu", "cuda"))
    dtype: Literal["float32", "bfloat16"] = _flag("bfloat16", choices=DTYPES)
    exact: Exact = _flag("auto", "GPU products in which no row depends on the batch", choices=get_args(Exact))
    draft_window: int | None = _count(None, "positions that a draft model sees (default: the engine's choice; 0: all)")
    threads: int | None = _count(None, "CPU threads (default: torch's)")

    only: tuple[str, ...] = _flag((), "configurations, by name or glob, with commas", type=listed(str), metavar="NAMES")
    batches: tuple[int, ...] = _flag(
        (1, 4, 16, 32), "rows at a time (default %(default)s)", type=listed(int), metavar="SIZES"
    )
    repeats: int = _count(5, "timed passes over everything (default %(default)s)")
    seed: int = _count(0, "of prompts, noise and the order of a pass")
    raw: bool = _flag(True, "replay forwards, for ideal and efficiency", action=argparse.BooleanOptionalAction)
    memory: tuple[str, ...] = _flag(
        ("plain@*", "adaptive@*"), "name@batch, globs: measure peak memory", type=listed(str), metavar="LABELS"
    )
    reference: int = _count(8, "rows compared with transformers' greedy text", metavar="N")
    peers: Path = _flag(Path(), "where 'make peers' put its environments", type=Path, metavar="FOLDER")

    corpus: str = _flag("auto", "auto: text where the pair has a tokenizer and a file", choices=CORPORA)
    prompts: int = _count(64, "most rows of a configuration", metavar="N")
    few: int = _count(3, "rows at batch 1 (default %(default)s)", metavar="N")
    prompt_lengths: tuple[int, int] = _flag((32, 128), "in tokens (32-128)", type=_range, metavar="A-B")
    prefix: int = _count(128, "tokens that templated prompts share", metavar="N")
    prompts_file: Path | None = _flag(None, "for text: rows with 'prompt' or 'messages'", type=Path, metavar="JSONL")
    new_tokens: int = _count(64, "output tokens of every row", metavar="N")
    samples: int = _count(1, "samples of each prompt", metavar="N")
    temperature: float = _flag(0.0, "0 is greedy (default)", type=float)
    top_p: float = _flag(1.0, "sample from the likeliest tokens of this probability (1: all)", type=float)
    top_k: int = _count(0, "sample from this many likeliest tokens (0: all)", metavar="N")
    min_p: float = _flag(0.0, "sample from tokens this likely, relative to the likeliest (0: all)", type=float)

    def __post_init__(self) -> None:
        """Check every field that argparse does not."""
        is_pair = self.pair is None or self.file is not None or (self.pair / "target").is_dir()
        _require(is_pair, "pair", "a folder with target/, or a GGUF file", self.pair)
        _require(0 < self.acceptance < 1, "acceptance", "between 0 and 1", self.acceptance)
        require_at_least_1(self, "threads", "repeats", "prompts", "few", "new_tokens", "samples")
        _require(bool(self.batches) and min(self.batches) >= 1, "batches", "numbers from 1 up", self.batches)
        shortest, longest = self.prompt_lengths
        _require(1 <= shortest <= longest, "prompt-lengths", "two numbers, the shorter first", self.prompt_lengths)
        self._check_sampling()
        if self.samples > 1 and self.temperature == 0:
            raise ValueError(
                "--samples above 1 needs --temperature above 0: greedy samples of a prompt are all the same"
            )
        if self.corpus == "text" and self.prompts_file is None:
            raise ValueError("--corpus text needs --prompts-file, JSON lines with 'prompt' or 'messages'")
        _require(self.prompts_file is None or self.prompts_file.is_file(), "prompts-file", "a file", self.prompts_file)
        select(self.only)  # a ValueError if a pattern names nothing

    def _check_sampling(self) -> None:
        is_temperature = self.temperature == 0 or 0.01 <= self.temperature <= 100
        _require(is_temperature, "temperature", "0 or 0.01 to 100", self.temperature)
        _require(0 < self.top_p <= 1, "top-p", "above 0 and at most 1", self.top_p)
        _require(self.top_k >= 0, "top-k", "0 or more", self.top_k)
        _require(0 <= self.min_p <= 1, "min-p", "0 to 1", self.min_p)
        for name, keeps_all in (("top_p", 1.0), ("top_k", 0), ("min_p", 0.0)):
            if self.temperature == 0 and getattr(self, name) != keeps_all:
                raise ValueError(f"--{name.replace('_', '-')} needs --temperature above 0: greedy text has no choice")

    def sampling_params(self) -> SamplingParams:
        """Return how tokens are sampled; no row ends before it has all its tokens."""
        return SamplingParams(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            max_tokens=self.new_tokens,
            ignore_eos=True,
        )

    @classmethod
    def of(cls, given: argparse.Namespace, **changes: Any) -> "BenchOptions":
        """Return the options that a command line gave, those of them that it has; `changes` replaces some."""
        values = vars(given) | changes
        return cls(**{option.name: values[option.name] for option in fields(cls) if option.name in values})

    def num_rows(self, batch: int) -> int:
        """Return the rows at this batch: two for each slot, so that slots are refilled; few at batch 1."""
        rows = min(self.prompts, max(self.few, 2 * batch))
        return -(-rows // self.samples) * self.samples

    @property
    def file(self) -> Path | None:
        """The GGUF file that is measured in place of a pair."""
        return self.pair if self.pair is not None and self.pair.suffix == ".gguf" and self.pair.is_file() else None

    def pair_folder(self) -> Path:
        """Return the folder of the pair; make it if none was named. A GGUF file has no draft but itself."""
        if self.file is None:
            return self.pair or cached_pair(self.cache, self.size, self.acceptance, self.dtype, self.device)
        folder = self.cache / "files" / self.file.stem
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("target", "draft"):
            (folder / name).unlink(missing_ok=True)
            (folder / name).symlink_to(model_folder(str(self.file)))
        return folder


def add_flags(parser: argparse._ActionsContainer, *names: str, **defaults: Any) -> None:
    """Add these options as flags, some with a default of their own."""
    for option in fields(BenchOptions):
        if option.name in names or option.name in defaults:
            default = defaults.get(option.name, option.default)
            parser.add_argument(f"--{option.name.replace('_', '-')}", default=default, **option.metadata)


def require_at_least_1(given: object, *names: str) -> None:
    """Raise ValueError if one of these numbers is below 1; None is none."""
    for name in names:
        value = getattr(given, name)
        _require(value is None or value >= 1, name.replace("_", "-"), "at least 1", value)


def parse(arguments: Sequence[str] | None, prog: str) -> tuple[BenchOptions, argparse.Namespace]:
    """Return the options of a command line and where to write; end the process with a message if one is wrong."""
    parser = _make_parser(prog)
    given = parser.parse_args(arguments)
    try:
        return BenchOptions.of(given), given
    except ValueError as error:
        parser.error(str(error))


def _make_parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Measure plain and speculative decoding, transformers' own, and other systems, in one interleaved\n"
        "run: every repeat goes over all configurations in a new order; medians are reported.",
        epilog="examples:\n"
        f"  {prog} --pair examples/tiny_pair --dtype float32 --only 'plain,adaptive*' --batches 1,16\n"
        f"  {prog} --size medium --acceptance 0.8 --json out/medium.json\n"
        f"  {prog} --pair examples/tiny_pair --prompts-file examples/prompts.jsonl --corpus templated --samples 8 \\\n"
        "    --temperature 0.8 --only 'plain,adaptive*'\n"
        f"  {prog} --size medium --sweep 0.2,0.5,0.8,0.95",
    )
    parser.add_argument("--list", action="store_true", help="print the names of all configurations and stop")
    for option in fields(BenchOptions):
        if option.name in _GROUPS:
            group = parser.add_argument_group(_GROUPS[option.name])
        add_flags(group, option.name)
    out = parser.add_argument_group("results").add_argument
    out("--json", type=Path, metavar="FILE", help="write everything that was measured")
    out("--sweep", type=listed(float), metavar="RATES", help="adaptive against fixed lengths at these acceptance rates")
    return parser


def _require(holds: bool, name: str, allowed: str, value: object) -> None:
    if not holds:
        raise ValueError(f"--{name} must be {allowed}, got {value}")
