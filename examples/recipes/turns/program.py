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

    def asked(words: list[str]) -> dict[str, str]:
        text = f"Write one short sentence about {row['scene']} with the words {' and '.join(words)}."
        return {"role": "user", "content": text}

    messages, num_turns, lacks = [asked(row["words"])], 0, row["words"]
    while lacks and num_turns < MOST_TURNS:
        turn = await generate(messages)
        num_turns += 1
        lacks = await generate.call(missing, text=turn.text, words=row["words"])
        messages += [turn.message, asked(lacks)]
    return {"sentence": turn.text, "missing": lacks, "turns": num_turns}
