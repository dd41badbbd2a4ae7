"""A writer with a checker: the model writes a sentence, and writes it again until it has all words, at most four times.

`dray generate --config examples/recipes/turns/run.yaml`
"""

import re
from typing import Any

MOST_TURNS = 4


def missing(text: str, words: list[str]) -> list[str]:
    """Return the words that a text lacks, whole words in any case."""
    found = set(re.findall(r"[a-z]+", text.lower()))
    return [word for word in words if word not in found]


async def write(generate: Any, row: dict[str, Any]) -> dict[str, Any]:
    """Return the last sentence, the words that it lacks, and how many turns it took."""

    wish = f"Write one short sentence about {row['scene']} with the words {' and '.join(row['words'])}."
    messages, num_turns, lacks = [{"role": "user", "content": wish}], 0, row["words"]
    while lacks and num_turns < MOST_TURNS:
        turn = await generate(messages)
        num_turns += 1
        lacks = await generate.call(missing, text=turn.text, words=row["words"])
        again = f"The sentence lacks {' and '.join(lacks)}. {wish}"
        messages += [turn.message, {"role": "user", "content": again}]
    return {"sentence": turn.text, "missing": lacks, "turns": num_turns}
