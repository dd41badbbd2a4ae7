"""The rows that measurements of scoring score: prompts, and choices behind them, as texts of their own."""

import json
from collections.abc import Sequence as Seq
from pathlib import Path

CHOICES = (" Yes, of course.", " No, not at all.", " Perhaps, some day.", " That is not known.")
_NUM_EXAMPLES = 5


def prompts_of(path: Path) -> list[str]:
    """Return the prompts of a file in the form of the demo's: a line of JSON each, with a prompt or messages."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [str(row["messages"][-1]["content"] if "messages" in row else row["prompt"]) for row in rows]


def kinds_of_rows(prompts: Seq[str]) -> dict[str, list[list[str]]]:
    """Return for each kind its rows, and of each row its texts.

    Prompts that share nothing; choices, as a harness asks for them, each behind the same prompt as a text of its own;
    and choices behind examples that all rows share.
    """
    examples = "".join(f"{prompt}{CHOICES[number % 4]}\n" for number, prompt in enumerate(prompts[:_NUM_EXAMPLES]))
    return {
        "prompts": [[prompt] for prompt in prompts],
        "choices": [[prompt + choice for choice in CHOICES] for prompt in prompts],
        "choices behind examples": [[examples + prompt + choice for choice in CHOICES] for prompt in prompts],
    }
