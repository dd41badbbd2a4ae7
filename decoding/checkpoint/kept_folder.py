"""Folders of models that are made of other files: each is made once, and kept in Hugging Face's cache."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from huggingface_hub.constants import HF_HOME


def kept_folder(kind: str, name: str, make: Callable[[Path], None]) -> str:
    """Return the folder `$HF_HOME/dray/<kind>/<name>`; if it is not there, `make` writes it, whole or not at all."""
    place = Path(HF_HOME) / "dray" / kind / name
    if place.is_dir():
        return str(place)
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=place.parent) as scratch:
        made = Path(scratch) / "model"
        make(made)
        try:
            made.rename(place)
        except OSError:  # another process was faster
            if not place.is_dir():
                raise
    return str(place)
