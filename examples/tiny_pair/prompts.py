"""Prints prompts as JSON lines, equally many of each kind, half of them plain and half chat.

python -m examples.tiny_pair.prompts > examples/prompts.jsonl  # the 300 that are bundled
python -m examples.tiny_pair.prompts --seed more --per-kind 140 > more.jsonl  # others, with ids of their own
"""

import argparse
import json
import random

from examples.tiny_pair.corpus import KINDS, Piece, chat_messages

BUNDLED_SEED, PROMPTS_PER_KIND = "prompts", 60
_MOST_REPEATED = 2000  # tries in a row that give a prompt which is there already


def beginning(piece: Piece, rng: random.Random) -> str:
    """Return the first tenth to half of the piece's text, two words or more, cut before white space."""
    cuts = [i for i, character in enumerate(piece.text) if character.isspace() and not piece.text[i - 1].isspace()]
    share = rng.uniform(0.1, 0.5)
    return piece.text[: cuts[max(1, int(share * len(cuts)))]]


def prompt_rows(seed: str = BUNDLED_SEED, per_kind: int = PROMPTS_PER_KIND) -> list[dict[str, object]]:
    """Return rows of id, kind, and either prompt or messages, no two alike, in a shuffled order."""
    rng = random.Random(seed)
    mark = "" if seed == BUNDLED_SEED else f"{seed}-"
    rows: list[dict[str, object]] = []
    for kind, make in KINDS.items():
        seen: set[str] = set()
        num_repeated = 0
        while len(seen) < per_kind:
            piece = make(rng)
            is_plain = len(seen) % 2 == 0
            content: dict[str, object] = (
                {"prompt": beginning(piece, rng)} if is_plain else {"messages": chat_messages(piece, rng)}
            )
            key = json.dumps(content)
            num_repeated = num_repeated + 1 if key in seen else 0
            if num_repeated == _MOST_REPEATED:
                raise ValueError(f"there are hardly more than {len(seen)} prompts of the kind {kind!r}; ask for fewer")
            if key not in seen:
                rows.append({"id": f"{kind}-{mark}{len(seen):02}", "kind": kind, **content})
                seen.add(key)
    rng.shuffle(rows)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Print prompts.")
    parser.add_argument("--seed", default=BUNDLED_SEED, help="another one gives other prompts")
    parser.add_argument("--per-kind", type=int, default=PROMPTS_PER_KIND, help="prompts of each of the five kinds")
    options = parser.parse_args()
    for row in prompt_rows(options.seed, options.per_kind):
        print(json.dumps(row, ensure_ascii=False))


if __name__ == "__main__":
    main()
