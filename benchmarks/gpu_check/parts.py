"""The parts of the check-up, in order: each is one command, which `--list` prints as it can be typed."""

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from benchmarks.gpu_check import findings
from benchmarks.gpu_check.findings import Judge
from benchmarks.gpu_check.progress import counts_so_far, facts_so_far

Read = Callable[[Path, Path], Mapping[str, Any] | None]


@dataclass(frozen=True, kw_only=True)
class Part:
    """A command in a process of its own, and how to read what it has measured."""

    name: str
    asks: str
    line: str  # what stands behind `python -m`; {measured} is the file that it writes, {pairs} a folder
    environment: Mapping[str, str] = field(default_factory=dict)
    needs_gpu: bool = True
    judge: Judge
    read: Read = facts_so_far  # from the file and the log, which may both be incomplete

    def command(self, measured: Path, pairs: Path) -> list[str]:
        """Return the command, for this file and this folder of pairs."""
        return [sys.executable, "-m", *(word.format(measured=measured, pairs=pairs) for word in shlex.split(self.line))]


def select(parts: Sequence[Part], patterns: Sequence[str]) -> list[Part]:
    """Return the parts with these names or globs, all without any; raise ValueError if a pattern names none."""
    for pattern in patterns:
        if not any(fnmatchcase(part.name, pattern) for part in parts):
            raise ValueError(f"--part: no part is called {pattern!r}; the names are {', '.join(p.name for p in parts)}")
    return [part for part in parts if not patterns or any(fnmatchcase(part.name, pattern) for pattern in patterns)]


_ENVIRONMENT = Part(
    name="environment",
    asks="which GPU, driver and versions",
    line="benchmarks.gpu_check.environment --json {measured}",
    needs_gpu=False,
    judge=findings.of_environment,
)


def _tests(name: str, asks: str, chosen: str, **environment: str) -> Part:
    pytest = "pytest -p no:cacheprovider --confcutdir=tests/gpu -m gpu -vv -rN --durations 10 tests/gpu -k"
    return Part(
        name=name,
        asks=f"tests/gpu: {asks}",
        line=f"{pytest} '{chosen}'",
        environment=environment,
        needs_gpu=not environment,
        judge=findings.of_tests,
        read=counts_so_far,
    )


def _correctness(**environment: str) -> tuple[Part, ...]:
    return (
        _tests("tests-bfloat16", "bfloat16, our kernels alone", "bfloat16", **environment),
        _tests("tests-float32", "float32 as it runs by default", "float32-auto", **environment),
        _tests("tests-float32-exact", "float32, our kernels alone", "float32-on", **environment),
        _tests("tests-others", "captures that fail, two threads", "not bfloat16 and not float32", **environment),
    )


def _equality(name: str, asks: str, words: str, *, pair: str = "--size small", **environment: str) -> Part:
    """Compare texts of a small pair with plain text and, greedy and in float32, with transformers'."""
    decoder = f"benchmarks.decoder --device cuda {pair} --cache {{pairs}} --batches 16 --prompts 32 --new-tokens 64"
    line = f"{decoder} --repeats 1 --no-raw --memory none --json {{measured}} {words}"
    return Part(name=name, asks=asks, line=line, environment=environment, judge=findings.of_texts)


_ALL_DRAFTS = "--only plain,fixed-1,fixed-4,adaptive,adaptive-hybrid,adaptive-suffix"
_EQUALITY = (
    _equality("equal-bfloat16", "bfloat16, greedy", f"--dtype bfloat16 --reference 0 {_ALL_DRAFTS}"),
    _equality(
        "equal-bfloat16-sampled",
        "bfloat16, temperature 0.8, top_p 0.95",
        f"--dtype bfloat16 --temperature 0.8 --top-p 0.95 {_ALL_DRAFTS}",
    ),
    _equality(
        "equal-bfloat16-unrecorded",
        "bfloat16, greedy, without CUDA graphs",
        "--dtype bfloat16 --reference 0 --only plain,fixed-4",
        DRAY_GRAPHS="off",
    ),
    _equality("equal-float32", "float32, greedy", f"--dtype float32 --reference 16 {_ALL_DRAFTS}"),
    _equality("equal-float32-sampled", "float32, temperature 0.8", f"--dtype float32 --temperature 0.8 {_ALL_DRAFTS}"),
    _equality(
        "equal-bundled",
        "float32, greedy, the bundled pair",
        "--dtype float32 --reference 16 --only plain,fixed-4,adaptive,adaptive-hybrid",
        pair="--pair examples/tiny_pair --prompts-file examples/prompts.jsonl",
    ),
)
_PAIR = Part(
    name="pair-8b",
    asks="make a pair of the sizes of Qwen3-8B and 0.6B",
    line="benchmarks.gpu_check.pair --cache {pairs} --json {measured}",
    judge=findings.of_pair,
)
_EQUAL_PROMPTS = "--prompt-lengths 1024-1024"


def _speed(
    name: str, asks: str, batch: int, words: str, judge: Judge = findings.of_speed, prompts: str = _EQUAL_PROMPTS
) -> Part:
    # Random weights look at every position alike, so a draft that sees a window of them agrees with no target.
    decoder = (
        "benchmarks.decoder --device cuda --size 8b --acceptance 0.8 --draft-window 0 --cache {pairs} "
        f"--batches {batch}"
    )
    line = f"{decoder} --prompts {2 * batch} {prompts} --new-tokens 128 --reference 0 --memory none {words}"
    return Part(name=name, asks=asks, line=f"{line} --json {{measured}}", judge=judge)


_FEW = "--only plain,fixed-2 --repeats 2 --no-raw"
_SPEEDS = (
    _speed("speed-64", "8B, 64 rows, greedy", 64, "--only plain,fixed-2,adaptive --repeats 2"),
    _speed("speed-128", "8B, 128 rows, greedy", 128, "--only plain,fixed-2,adaptive --repeats 1"),
    _speed("speed-32", "8B, 32 rows, greedy", 32, "--only plain,fixed-4,adaptive --repeats 2"),
    _speed(
        "speed-64-ragged",
        "8B, 64 rows, prompts of 100 to 1,900 tokens",
        64,
        _FEW,
        findings.of_speed_beside("speed-64", "equal prompts", findings.RAGGED_OF_EQUAL),
        prompts="--prompt-lengths 100-1900",
    ),
    _speed(
        "speed-64-top-p",
        "8B, 64 rows, temperature 0.8, top_p 0.95",
        64,
        f"{_FEW} --temperature 0.8 --top-p 0.95",
        findings.of_speed_beside("speed-64", "greedy", findings.TOP_P_OF_GREEDY),
    ),
    _speed(
        "speed-64-temperature",
        "8B, 64 rows, temperature 0.8",
        64,
        f"{_FEW} --temperature 0.8",
        findings.of_speed_beside("speed-64", "greedy", None),
    ),
    _speed(
        "speed-64-library",
        "8B, 64 rows, greedy, products of the library",
        64,
        f"{_FEW} --exact off",
        findings.of_speed_beside("speed-64", "our products", None),
    ),
)
_KERNELS = Part(
    name="kernels",
    asks="products and attention alone, with every tile",
    line="benchmarks.gpu_check.kernels --json {measured}",
    judge=findings.of_kernels,
)
_PROFILE = Part(
    name="profile-64",
    asks="20 rounds of 64 rows, plain and 2 drafted, top_p 0.95",
    line="benchmarks.gpu_check.round_profile --cache {pairs} --json {measured}",
    judge=findings.of_profile,
)

PARTS: tuple[Part, ...] = (_ENVIRONMENT, *_correctness(), *_EQUALITY, _KERNELS, _PAIR, _PROFILE, *_SPEEDS)

_INTERPRETED = {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
_TINY_EQUALITY = Part(
    name="equal-miniature",
    asks="float32, greedy, a tiny pair, interpreted",
    line="benchmarks.decoder --device cpu --dtype float32 --size nested-tiny --cache {pairs} --batches 2 --prompts 3 "
    "--prompt-lengths 3-9 --new-tokens 6 --repeats 1 --no-raw --memory none --reference 3 --only plain,fixed-2 "
    "--json {measured}",
    environment=_INTERPRETED,
    needs_gpu=False,
    judge=findings.of_texts,
)


def _losslessness(name: str, asks: str, chosen: str) -> Part:
    """Run the tests of losslessness, which are written for any processor, with attention and picks interpreted."""
    pytest = "pytest -p no:cacheprovider --confcutdir=tests/decoding -vv -rN --durations 10"
    return Part(
        name=name,
        asks=f"every text, with {asks}, interpreted",
        line=f"{pytest} tests/decoding/engine/test_losslessness.py -k '{chosen}'",
        environment=_INTERPRETED,
        needs_gpu=False,
        judge=findings.of_tests,
        read=counts_so_far,
    )


# Together they choose every test of the suite, and none twice.
_OTHER = "unrelated_draft or perfect_draft"
_LOSSLESSNESS = (
    _losslessness("lossless-lookups", "no draft and lookups", f"not (good_draft or hybrid or {_OTHER})"),
    _losslessness("lossless-good-draft", "a draft that often agrees", "good_draft"),
    _losslessness("lossless-hybrid", "lookups and a draft", "hybrid"),
    _losslessness("lossless-other-drafts", "drafts that seldom or always agree", _OTHER),
)
_COMPILED = Part(
    name="kernels-compiled",
    asks="programs for every kind of GPU",
    line="pytest -p no:cacheprovider --confcutdir=tests/decoding -vv -rN --durations 10 "
    "tests/decoding/gpu/test_compile.py tests/decoding/gpu/test_fp8_kernels.py tests/decoding/gpu/test_pick_kernels.py",
    needs_gpu=False,
    judge=findings.of_tests,
    read=counts_so_far,
)
# The parts that can run without a GPU, in Triton's interpreter; the others stay, and are not measured.
MINIATURE: tuple[Part, ...] = (
    _ENVIRONMENT,
    *_correctness(**_INTERPRETED),
    _TINY_EQUALITY,
    *_LOSSLESSNESS,
    _COMPILED,
    *(part for part in PARTS if part not in (_ENVIRONMENT, *_correctness())),
)
