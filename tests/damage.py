"""Damage to the bytes of a file, drawn from a seed."""

import random
from pathlib import Path


def damage(path: Path, how: str, rng: random.Random) -> None:
    """Cut the file ("truncate"), change a bit ("flip"), remove its content ("empty") or the file ("delete")."""
    content = path.read_bytes()
    if how == "truncate":
        path.write_bytes(content[: rng.randrange(len(content))])
    elif how == "flip":
        position = rng.randrange(len(content))
        flipped = bytes([content[position] ^ 1 << rng.randrange(8)])
        path.write_bytes(content[:position] + flipped + content[position + 1 :])
    elif how == "empty":
        path.write_bytes(b"")
    else:
        assert how == "delete", how
        path.unlink()
