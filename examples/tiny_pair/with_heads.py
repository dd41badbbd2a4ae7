"""Trains small heads of other kinds than the bundled one, on the texts of the bundled pair.

    python -m examples.tiny_pair.with_heads [mtp,assistant,dflash2] --out out/heads

`mtp` is a head in the files of a target of Qwen 3.5's form, `assistant` one beside a target of Gemma 4's form, and both
targets are trained, too, unless they are there; `dflash2` is a head of the bundled target. Each takes some minutes on
two cores. `python -m benchmarks.drafts --heads out/heads` says what they are worth.
"""

import argparse
import shutil
import time
from pathlib import Path

import torch
from transformers import AutoTokenizer

from examples.tiny_pair import with_states
from examples.tiny_pair.train import batches
from examples.tiny_pair.train_head import frequent_tokens
from training.learners.ahead import AheadLearner
from training.learners.assistant_learner import AssistantLearner
from training.learners.head_learner import HeadLearner
from training.learners.mtp_learner import MtpLearner
from training.learners.packing import Document, PackedRow, PackedRows
from training.learners.teacher import Teacher
from training.trainer.optimizer import Optimizer

_BUNDLED = Path("examples/tiny_pair/target")
_TARGETS = {"mtp": "qwen3_5", "assistant": "gemma4"}  # families; of the other kinds the target is the bundled one
_KINDS = ("mtp", "assistant", "dflash2")
_STEPS, _LEARNING_RATE, _STEPS_AHEAD, _TEMPERATURE = 600, 4e-3, 4, 0.8


def learner_of(kind: str, target: Path) -> AheadLearner:
    """Return a new head of a kind that is to learn beside a target."""
    teacher = Teacher.load(str(target), "cpu", "float32")
    if kind == "mtp":
        return MtpLearner.new(teacher, _STEPS_AHEAD)
    if kind == "assistant":
        return AssistantLearner.new(teacher, _STEPS_AHEAD)
    known_ids = frequent_tokens(AutoTokenizer.from_pretrained(target), teacher.vocab_size).tolist()
    return HeadLearner.new(teacher, known_ids, _STEPS_AHEAD, kind="dflash2")


def learn(learner: AheadLearner, kind: str, num_steps: int) -> None:
    """Teach a head by its target's distributions on texts of the corpus."""
    optimizer = Optimizer(learner.network, _LEARNING_RATE, warmup=0.05, clip=1.0)
    started, recent = time.perf_counter(), 0.0
    data = batches(AutoTokenizer.from_pretrained(_BUNDLED), kind, num_steps)
    for step, (ids_BT, is_real_BT) in enumerate(data, 1):
        texts = [tuple(ids_T[is_real_T].tolist()) for ids_T, is_real_T in zip(ids_BT, is_real_BT, strict=True)]
        rows = PackedRows.of([PackedRow([Document((), text, _TEMPERATURE)], len(text)) for text in texts])
        loss = learner.step(rows, step / num_steps).loss / learner.num_predictions(rows)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step((step - 0.5) / num_steps)
        recent += loss.item()
        if step % 100 == 0:
            print(f"  step {step}: loss {recent / 100:.4f}, {time.perf_counter() - started:.0f} s", flush=True)
            recent = 0.0


def main(arguments: list[str] | None = None) -> None:
    """Train and write heads, and targets for them, under --out."""
    parser = argparse.ArgumentParser(description="Train heads of several kinds.")
    parser.add_argument("kinds", nargs="?", default=",".join(_KINDS), help="of mtp, assistant, dflash2")
    parser.add_argument("--out", type=Path, required=True, help="folder for the targets and the heads")
    parser.add_argument("--steps", type=int, default=_STEPS, help="of a target; a head takes half as many")
    asked = parser.parse_args(arguments)
    torch.manual_seed(0)
    for kind in asked.kinds.split(","):
        family = _TARGETS.get(kind)
        target = _BUNDLED if family is None else asked.out / family
        if family is not None and not (target / "model.safetensors").is_file():
            with_states.train(family, "target", target, asked.steps)
        print(kind, flush=True)
        learner = learner_of(kind, target)
        learn(learner, kind, asked.steps // 2)
        shutil.rmtree(asked.out / kind, ignore_errors=True)
        learner.save(str(asked.out / kind))


if __name__ == "__main__":
    main()
