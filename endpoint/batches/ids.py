"""Ids of files and batches. They sort by the time at which they were made, and are safe as names of files."""

from __future__ import annotations

import re
import secrets
import time
from hashlib import sha256
from typing import Literal

from endpoint.http.origin import Origin

Kind = Literal["file", "batch"]
_SEPARATOR = {"file": "-", "batch": "_"}
_BODY = re.compile(r"[0-9a-f]{24}")


def new_id(kind: Kind) -> str:
    """Return an id that no other process returns: nanoseconds since 1970, and random digits."""
    return f"{kind}{_SEPARATOR[kind]}{time.time_ns():016x}{secrets.token_hex(4)}"


def batch_id(origin: Origin) -> str:
    """Return the id of the batch that a request makes, the same whichever process is asked to make it."""
    return f"batch_{origin.created_ns:016x}{origin.draw('batch', 2**32):08x}"


def result_id(batch_id: str, name: Literal["output", "errors"]) -> str:
    """Return the id of a result of a batch, which is the same whenever it is made: a kill may repeat that."""
    body = batch_id.removeprefix("batch_")
    return f"file-{body[:16]}{sha256(f'{batch_id} {name}'.encode()).hexdigest()[:8]}"


def is_id(kind: Kind, text: str) -> bool:
    """Tell whether this text can be an id; any other names nothing."""
    prefix = kind + _SEPARATOR[kind]
    return text.startswith(prefix) and _BODY.fullmatch(text[len(prefix) :]) is not None


def made_at(id_: str) -> float:
    """Return the time at which the thing of an id was made, in seconds since 1970."""
    return int(id_[-24:-8], 16) / 1e9
