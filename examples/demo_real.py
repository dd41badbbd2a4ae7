"""`make demo-real`: 40 answers to 40 questions by SmolLM2 135M, with the draft that makes it fastest here.

The target first answers lessons, questions about other things, and an EAGLE-3 head learns from the answers, in at most
ten minutes. Then plain decoding, suffix drafts and the head answer the 40 questions in turns, and the fastest writes
the run. All of them write the same text.
"""

import argparse
import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from benchmarks.drafts import COLUMNS, token_ids
from benchmarks.engines_in_turns import load_beside, over_plain
from benchmarks.harness import show_lines
from benchmarks.roofline.hardware import describe_machine
from decoding import EngineOptions, SamplingParams, Sequence
from decoding.checkpoint.supported import model_folder

TARGET = ".real-models/SmolLM2-135M-Instruct.Q4_1.gguf"
CONFIG, QUESTIONS = "examples/configs/demo_real.yaml", Path("examples/questions.jsonl")
FORMS = (
    "What is {}?",
    "Why do people like {}?",
    "Give me three tips about {}.",
    "Write a short story about {}.",
    "Explain {} to a child.",
    "How do I learn more about {}?",
)
TOPICS = (
    "rain", "a river", "bread", "the moon", "a museum", "a horse", "music", "cheese", "a garden", "winter",
    "a ship", "history", "a kitchen", "running", "a forest", "paint", "a camera", "chess", "a castle", "tea",
    "a letter", "the sea", "a bridge", "friendship", "money", "a newspaper", "a bird", "mathematics", "a mountain",
    "sleep", "a clock", "football", "a map", "honesty", "an island", "a theatre", "electricity", "a wedding",
    "a farm", "poetry",
)  # fmt: skip
_HOURS_OF_TRAINING = 0.1  # six of the ten minutes; the lessons and the loading of models take the others
_ROWS_AT_ONCE, _REPEATS, _MOST_TOKENS, _NUM_DRAFT_TOKENS = 16, 3, 100, 4


def main() -> int:
    """Teach, compare, and answer; return the exit code of the run."""
    parser = argparse.ArgumentParser(prog="make demo-real", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/demo-real"), help="folder for lessons, head and answers")
    out: Path = parser.parse_args().out
    target, head, began = model_folder(TARGET), out / "head", time.monotonic()
    if not head.exists():
        _write_lessons(out / "lessons.jsonl")
        lessons = [
            "--input.path",
            str(out / "lessons.jsonl"),
            "--output.path",
            str(out / "lessons"),
            "--run.show_texts=0",
        ]
        _dray("generate", "--config", CONFIG, *lessons)
        rows = ["--train.seq_len=512", "--train.tokens_per_step=1024", "--train.draft_vocab=4096"]
        learns = ["--train.what=eagle3", "--train.epochs=20", "--train.learning_rate=1e-3", *rows]
        limits = [f"--train.max_hours={_HOURS_OF_TRAINING}", f"--train.steps_ahead={_NUM_DRAFT_TOKENS}"]
        texts = ["--corpus.path", str(out / "lessons"), "--models.target", target, "--workers.num_cpus=2"]
        _dray("train_draft", *texts, *learns, *limits, "--output.path", str(head))
        print(
            f"The head has learned, after {(time.monotonic() - began) / 60:.1f} minutes, lessons included.", flush=True
        )
    lines = compare(target, str(head))
    drafter = taken(lines)
    print(in_words(lines, drafter), flush=True)
    flags = ["--engine.drafter", drafter, *(["--models.draft", str(head)] if drafter == "eagle3" else [])]
    return _dray("generate", "--config", CONFIG, "--output.path", str(out / "answers"), *flags)


def _write_lessons(path: Path) -> None:
    """Write questions like the 40, about other things."""
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = [form.format(topic) for topic in TOPICS for form in FORMS]
    path.write_text("".join(json.dumps({"id": f"lesson-{n}", "prompt": text}) + "\n" for n, text in enumerate(texts)))


def compare(target: str, head: str) -> list[dict[str, Any]]:
    """Let plain decoding, suffix drafts and the head answer the questions in turns; print and return their speeds."""
    tokenizer = AutoTokenizer.from_pretrained(target)
    questions = [json.loads(line)["prompt"] for line in QUESTIONS.read_text().splitlines()]
    chats = [{"messages": [{"role": "user", "content": question}]} for question in questions]
    prompts = [token_ids(tokenizer, json.dumps(chat)) for chat in chats]
    params = SamplingParams(temperature=0.2, top_p=0.9, max_tokens=_MOST_TOKENS)
    lines: list[dict[str, Any]] = []
    for batch in (1, _ROWS_AT_ONCE):
        own = EngineOptions(num_slots=batch, max_model_len=512, num_speculative_tokens=_NUM_DRAFT_TOKENS)
        tried = {
            name: (head if name == "eagle3" else None, replace(own, drafter=name))
            for name in ("none", "suffix", "eagle3")
        }
        parts = dict(zip(tried, load_beside(target, tried.values(), "cpu"), strict=True))
        some = prompts if batch > 1 else prompts[::5]
        lines += over_plain(
            parts,
            [each for _, each in tried.values()],
            lambda some=some: [Sequence.create(prompt, params, row=row) for row, prompt in enumerate(some)],  # type: ignore[misc]
            _REPEATS,
        )
    machine = describe_machine()
    show_lines(f"{machine['processor']}, {machine['threads']} threads, float32", COLUMNS, lines)
    return lines


def taken(lines: list[dict[str, Any]]) -> str:
    """Return the drafter of the run: the head if nothing is faster with all rows at once, else suffix drafts."""
    speeds = _times_plain(lines)
    return "eagle3" if speeds["eagle3"] >= max(speeds.values()) else "suffix"


def in_words(lines: list[dict[str, Any]], drafter: str) -> str:
    """Say which drafter is taken and why."""
    speeds = _times_plain(lines)
    figures = f"{speeds['eagle3']:.2f} times plain decoding, suffix drafts {speeds['suffix']:.2f}"
    if drafter == "eagle3":
        return f"The head pays: {figures}. It drafts the answers."
    return f"The head does not pay ({figures}, {_ROWS_AT_ONCE} rows at once). Suffix drafts are taken."


def _times_plain(lines: list[dict[str, Any]]) -> dict[str, float]:
    return {line["draft"]: line["times_plain"] for line in lines if line["rows_at_once"] == _ROWS_AT_ONCE}


def _dray(command: str, *arguments: str) -> int:
    """Run a command of Dray; end with its exit code if it fails."""
    print(f"$ dray {command} {' '.join(arguments)}", flush=True)
    code = subprocess.run([sys.executable, "-m", f"jobs.{command}", *arguments]).returncode
    if code:
        sys.exit(code)
    return code


if __name__ == "__main__":
    sys.exit(main())
