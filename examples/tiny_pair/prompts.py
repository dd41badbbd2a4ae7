"""Prints 300 prompts as JSON lines, 60 of each kind, half of them plain and half chat.

python -m examples.tiny_pair.prompts > examples/prompts.jsonl
"""

import json
import random

from examples.tiny_pair.corpus import KINDS, Piece, chat_messages

PROMPTS_PER_KIND = 60


def beginning(piece: Piece, rng: random.Random) -> str:
    """Return the first tenth to half of the piece's text, two words or more, cut before white space."""
    cuts = [i for i, character in enumerate(piece.text) if character.isspace() and not piece.text[i - 1].isspace()]
    share = rng.uniform(0.1, 0.5)
    return piece.text[: cuts[max(1, int(share * len(cuts)))]]


def prompt_rows(seed: str = "prompts") -> list[dict[str, object]]:
    """Return 300 rows of id, kind, and either prompt or messages, no two alike, in a shuffled order."""
    rng = random.Random(seed)
    rows: list[dict[str, object]] = []
    for kind, make in KINDS.items():
        seen: set[str] = set()
        while len(seen) < PROMPTS_PER_KIND:
            piece = make(rng)
            is_plain = len(seen) % 2 == 0
            content: dict[str, object] = (
                {"prompt": beginning(piece, rng)} if is_plain else {"messages": chat_messages(piece, rng)}
            )
            key = json.dumps(content)
            if key not in seen:
                rows.append({"id": f"{kind}-{len(seen):02}", "kind": kind, **content})
                seen.add(key)
    rng.shuffle(rows)
    return rows


def main() -> None:
    for row in prompt_rows():
        print(json.dumps(row, ensure_ascii=False))


if __name__ == "__main__":
    main()
