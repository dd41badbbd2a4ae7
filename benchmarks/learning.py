"""What a draft learns from a corpus of its target: `python -m benchmarks.learning`, before and after, by kind.

The bundled target writes texts alone; a draft that knows little is distilled on them, and a head is trained from
scratch (`dray train-draft`). On held-out prompts both are scored by the rows' noise keys (`dray eval-draft`), then they
draft live, and speeds are measured in turns. Folders and runs are in --out, and are used again by the next call.
"""

import json
import subprocess
import sys
from collections.abc import Sequence as Seq
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.engines_in_turns import load_beside, over_plain
from benchmarks.harness import parser_of, say, show_lines
from benchmarks.roofline.hardware import record
from decoding import Engine, EngineOptions, Sequence
from jobs.work.tuning.engine_turns import counts_of
from pipeline.counts import Counts
from training.corpus.corpus import Corpus
from training.corpus.options import CorpusOptions
from training.corpus.rows import Example

TARGET = "examples/tiny_pair/target"
_MAX_MODEL_LEN, _SLOTS, _NUM_DRAFT_TOKENS = 512, 16, 4
_SAMPLES = 6  # of each prompt, where many rows are timed at once: drafters rest and wake, which takes rounds to show
COLUMNS = (
    ("draft", "draft", ""),
    ("kind", "kind", ""),
    ("match rate", "match_rate", ".3f"),
    ("predicted rate", "predicted_rate", ".3f"),
    ("live rate", "live_rate", ".3f"),
    ("predicted length", "predicted_length", ".2f"),
    ("live length", "live_length", ".2f"),
)
SPEEDS = (
    ("draft", "draft", ""),
    ("rows at once", "rows_at_once", ""),
    ("tokens/s", "tokens_per_second", ",.0f"),
    ("times plain", "times_plain", ".2f"),
)


def main(arguments: Seq[str] | None = None) -> None:
    """Generate, train, score and measure; print tables."""
    parser = parser_of("learning", __doc__)
    flag = parser.add_argument
    flag("--out", type=Path, default=Path("out/learning"), help="folder for the corpus and the drafts")
    flag("--per-kind", type=int, default=140, help="prompts of each of five kinds, beside the bundled 300")
    flag("--train-draft", default="--train.epochs 6 --train.learning_rate 4e-3", help="of the draft")
    flag("--train-head", default="--train.epochs 6 --train.learning_rate 4e-3", help="of the head")
    flag("--threads", type=int, default=1, help="of the processor, as an actor with one CPU has them")
    flag("--repeats", type=int, default=5, help="of the speeds")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    corpus = _corpus(out, options.per_kind)
    _run("examples.tiny_pair.beginner", "--out", str(out / "beginner"))
    drafts = {"before": str(out / "beginner"), "draft": str(out / "draft"), "head": str(out / "head")}
    _train(corpus, drafts["draft"], ["--models.draft", drafts["before"], *options.train_draft.split()])
    _train(corpus, drafts["head"], ["--train.what", "eagle3", *options.train_head.split()])
    held_out = list(Corpus.open(CorpusOptions(path=corpus, kind_column="kind"), TARGET).examples(held_out=True))
    lines = [line for name, path in drafts.items() for line in _lines(name, path, corpus, held_out, out)]
    show_lines(f"On {len(held_out)} held-out rows, {_NUM_DRAFT_TOKENS} draft tokens", COLUMNS, lines)
    speeds = _speeds(drafts, held_out, options.repeats)
    show_lines("Speed", SPEEDS, speeds)
    record(
        options.json,
        settings={name: getattr(options, name) for name in ("per_kind", "train_draft", "train_head", "repeats")},
        trained={name: _trained(drafts[name]) for name in ("draft", "head")},
        num_held_out_rows=len(held_out),
        lines=lines,
        speeds=speeds,
    )


def _corpus(out: Path, per_kind: int) -> str:
    """Return the run directory of texts that the target wrote alone; the bundled prompts come first."""
    prompts = out / "more-prompts.jsonl"
    text = _run("examples.tiny_pair.prompts", "--seed", "more", "--per-kind", str(per_kind))
    if not prompts.exists() or prompts.read_text() != text:  # a run goes on only with the very file that it began with
        prompts.write_text(text)
    inputs = ["--input.path", "examples/prompts.jsonl", "--input.path", str(prompts)]
    corpus = str(out / "corpus")
    demo = ["--config", "examples/configs/demo.yaml", "--engine.drafter", "none", "--output.path", corpus]
    _run("jobs.generate", *demo, *inputs)
    return corpus


def _train(corpus: str, output: str, arguments: list[str]) -> None:
    """Train a draft, unless it is there."""
    texts = ["--corpus.path", corpus, "--corpus.kind_column", "kind", "--models.target", TARGET]
    rows = ["--train.seq_len", "512", "--train.tokens_per_step", "2048", "--train.draft_vocab", "1024"]
    _run("jobs.train_draft", *texts, *rows, "--output.path", output, *arguments)


def _trained(path: str) -> dict[str, Any]:
    said = json.loads((Path(path) / "provenance.json").read_text())
    return {name: said[name] for name in ("steps", "num_tokens", "seconds")} | {"rows": said["corpus"]["num_rows"]}


def _run(module: str, *arguments: str) -> str:
    """Run a command of the repository, and return what it printed."""
    say(f"python -m {module} {' '.join(arguments)}")
    done = subprocess.run([sys.executable, "-m", module, *arguments], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def _lines(name: str, path: str, corpus: str, held_out: list[Example], out: Path) -> list[dict[str, Any]]:
    """Return for each kind, and for all, what was predicted of a draft and how it drafted."""
    scores = out / f"{name}.json"
    texts = ["--corpus.path", corpus, "--corpus.kind_column", "kind", "--models.target", TARGET, "--models.draft", path]
    _run("jobs.eval_draft", *texts, "--eval.num_draft_tokens", str(_NUM_DRAFT_TOKENS), "--eval.json_path", str(scores))
    (found,) = json.loads(scores.read_text())["drafts"]
    live = _live(path, held_out)
    predicted = {**found["by_kind"], "all": found["all"]}
    return [
        {
            "draft": name,
            "kind": kind,
            "match_rate": each["match_rate"],
            "predicted_rate": each["acceptance_rate"],
            "live_rate": live[kind].acceptance_rate,
            "predicted_length": each["tokens_a_round"],
            "live_length": live[kind].mean_acceptance_length,
        }
        for kind, each in predicted.items()
    ]


def _live(path: str, held_out: list[Example]) -> dict[str, Counts]:
    """Return how a draft did when the held-out rows were written anew, by kind."""
    options = EngineOptions(num_slots=_SLOTS, max_model_len=_MAX_MODEL_LEN, draft_length="fixed",
                            num_speculative_tokens=_NUM_DRAFT_TOKENS)  # fmt: skip
    rows = _rows(held_out)
    list(Engine.load(TARGET, path, options, device="cpu", dtype="float32").stream(rows))
    counts: dict[str, Counts] = {}
    for example, row in zip(held_out, rows, strict=True):
        assert tuple(row.output_token_ids) == example.output_token_ids, "a row was not written as the target alone did"
        for kind in (example.kind, "all"):
            counts[kind] = counts.get(kind, Counts()) + counts_of(row)
    return counts


def _rows(examples: list[Example], num_samples: int = 1) -> list[Sequence]:
    """Return the rows as the corpus has them, and then other samples of the same prompts."""
    return [
        Sequence(example.prompt_token_ids, example.params, (example.noise_key or 0) ^ sample)
        for sample in range(num_samples)
        for example in examples
    ]


def _speeds(drafts: dict[str, str], held_out: list[Example], repeats: int) -> list[dict[str, Any]]:
    """Return the speed of plain decoding and of each draft, with one row and with many at once."""
    speeds: list[dict[str, Any]] = []
    for batch in (1, _SLOTS):
        base = EngineOptions(num_slots=batch, max_model_len=_MAX_MODEL_LEN, num_speculative_tokens=8)
        loaded = load_beside(TARGET, [(path, base) for path in (None, *drafts.values())])
        rows = partial(_rows, held_out, _SAMPLES) if batch > 1 else partial(_rows, held_out[::4])
        speeds += over_plain(dict(zip(("none", *drafts), loaded, strict=True)), [base] * len(loaded), rows, repeats)
    return speeds


if __name__ == "__main__":
    main()
