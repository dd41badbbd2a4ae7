"""The tokenizer of a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

# Every tokenizer folder has one of these files.
_TOKENIZER_FILES: tuple[str, ...] = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")
_TOKENIZER_FILES += ("vocab.txt", "merges.txt", "spiece.model", "sentencepiece.bpe.model", "tekken.json")


def load_tokenizer(path: str) -> Any:
    """Return the tokenizer of a folder. Raises ValueError if none loads without running code of its own."""
    folder = Path(path)
    if folder.is_dir() and not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        raise ValueError(f"no tokenizer in {path} (looked for {', '.join(_TOKENIZER_FILES)}); set models.tokenizer")
    from transformers import AutoTokenizer  # here, because the import takes seconds and planning does not need it

    try:
        return AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except Exception as error:
        raise ValueError(f"cannot load a tokenizer from {path}: {_load_failure(error)}") from error


def _load_failure(error: Exception) -> str:
    """Return in one line why a tokenizer does not load; transformers' own text may advise to run foreign code."""
    text = " ".join(str(error).split())
    if "trust_remote_code" in text:
        return (
            "it has code of its own (auto_map), which Dray never runs; set models.tokenizer to a folder whose "
            "tokenizer transformers itself has"
        )
    return text if isinstance(error, OSError | ValueError | ImportError) else f"{type(error).__name__}: {text}"
