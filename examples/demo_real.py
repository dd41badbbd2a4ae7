"""`make demo-real`: 40 answers to 40 questions by SmolLM2 135M, with the drafts that make it fastest here.

The target first answers lessons, questions about other things, and an EAGLE-3 head learns from the answers; both
together take at most ten minutes. Then `dray tune` lets the head and the drafts that need no model answer some of the
40 questions in turns with plain decoding, and the run takes the fastest. All of them write the same text.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import yaml

from decoding.checkpoint.supported import model_folder

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
_LEAST_MINUTES = 1.0  # of training, after lessons that took long
_STARTING_MINUTES = 0.5  # until a training takes its first step


def main() -> int:
    """Teach, compare, and answer; return the exit code of the run."""
    parser = argparse.ArgumentParser(prog="make demo-real", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/demo-real"), help="folder for lessons, head and answers")
    parser.add_argument("--minutes", type=float, default=10.0, help="time for lessons and training")
    parser.add_argument("--seconds", type=float, default=120.0, help="time for the comparison")
    options = parser.parse_args()
    head = options.out / "head"
    if not head.exists():
        teach(options.out, options.minutes)
    flags = fastest(CONFIG, head, options.out / "run.yaml", options.seconds)
    return _dray("generate", *flags, f"--output.path={options.out / 'answers'}")


def teach(out: Path, minutes: float) -> None:
    """Let the target answer lessons, and a head learn from the answers, within this time."""
    began = time.monotonic()
    lessons = out / "lessons.jsonl"
    out.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"id": f"lesson-{n}", "prompt": text}) for n, text in enumerate(lesson_texts())]
    lessons.write_text("\n".join(lines) + "\n")
    answers = [f"--input.path={lessons}", f"--output.path={out / 'lessons'}", "--run.show_texts=0"]
    _dray("generate", "--config", CONFIG, *answers)
    left = max(_LEAST_MINUTES, minutes - _STARTING_MINUTES - (time.monotonic() - began) / 60)
    target = model_folder(yaml.safe_load(Path(CONFIG).read_text())["models"]["target"])
    texts = [f"--corpus.path={out / 'lessons'}", f"--models.target={target}", f"--output.path={out / 'head'}"]
    learns = ["--train.what=eagle3", "--train.epochs=20", "--train.learning_rate=1e-3", "--train.steps_ahead=4"]
    sizes = ["--train.seq_len=512", "--train.tokens_per_step=1024", "--train.draft_vocab=4096", "--workers.num_cpus=2"]
    _dray("train-draft", *texts, *learns, *sizes, f"--train.max_hours={left / 60:.4f}")
    print(f"lessons and training took {(time.monotonic() - began) / 60:.1f} minutes", flush=True)


def lesson_texts() -> list[str]:
    """Return questions like the 40, about other things."""
    return [form.format(topic) for topic in TOPICS for form in FORMS]


def fastest(config: str, head: Path, file: Path, seconds: float) -> list[str]:
    """Write the fastest setting into a file; return the flags of a run with it. Where no draft pays it drafts suffixes.

    A head that agrees with the target in less than 15 % of positions is left out, with a line that says so.
    """
    file.unlink(missing_ok=True)
    tries = [f"--tune.drafts=[{head}]", f"--tune.seconds={seconds}", f"--tune.write={file}"]
    same = ["--tune.slots=16", "--tune.dtypes=float32"]  # in another type it would write other texts
    _dray("tune", "--config", config, *tries, *same)
    drafter = yaml.safe_load(file.read_text())["engine"]["drafter"]
    if drafter != "none":
        print(f"the run takes what was fastest: {drafter}", flush=True)
        return ["--config", str(file)]
    print("no draft was faster than none; the run takes suffix drafts, which rest where they do not pay", flush=True)
    return ["--config", str(file), "--engine.drafter=suffix"]


def _dray(command: str, *arguments: str) -> int:
    """Run a command of Dray; end with its exit code if it fails."""
    print(f"$ dray {command} {' '.join(arguments)}", flush=True)
    code = subprocess.run([sys.executable, "-m", "jobs", command, *arguments]).returncode
    if code:
        sys.exit(code)
    return code


if __name__ == "__main__":
    sys.exit(main())
