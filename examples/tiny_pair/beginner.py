"""Trains a draft that knows little, for `make demo-learn`: the bundled draft after some of its first steps.

python -m examples.tiny_pair.beginner --out DIR
"""

import argparse
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from examples.tiny_pair.train import save, train_draft

HERE = Path(__file__).parent
NUM_STEPS = 40  # of the 1,800 that the bundled draft had


def main() -> None:
    """Train and write the draft, unless it is there."""
    parser = argparse.ArgumentParser(description="Train a draft that knows little.")
    parser.add_argument("--out", type=Path, required=True, help="folder of the draft")
    out: Path = parser.parse_args().out
    if (out / "model.safetensors").is_file():
        return
    torch.use_deterministic_algorithms(True)
    tokenizer = AutoTokenizer.from_pretrained(HERE / "target")
    target = AutoModelForCausalLM.from_pretrained(HERE / "target", dtype=torch.float32).eval()
    save(train_draft(tokenizer, target, NUM_STEPS), tokenizer, out)


if __name__ == "__main__":
    main()
