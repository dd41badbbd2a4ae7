"""Fingerprints: what a run depends on, and what it wrote, as sha256 hex digests; and what of it others may be told."""

import hashlib
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.inputs.units import WorkUnit
from pipeline.run.directory import RunDirectory
from pipeline.run.unit_rows import each_unit
from pipeline.storage.location import Location

HASHED_COLUMNS = ("row_id", "sample", "token_ids", "finish_reason")  # of a content hash

_TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tokenizer.model"),
    *("vocab.json", "vocab.txt", "merges.txt", "chat_template.jinja", "chat_template.json"),
)
_MODEL_CONFIGS = ("config.json", "generation_config.json")
_SAMPLED_PARTS, _SAMPLED_BYTES = 64, 4096  # of each file of weights
_ON_THE_HUB = re.compile(r"models--(?P<owner>.+?)--(?P<name>.+?)/snapshots/(?P<revision>[0-9a-f]+)$")
_DECIDING: Mapping[str, tuple[str, ...]] = {
    "engine": ("exact", "max_model_len", "num_slots", "num_speculative_tokens"),
    "run": ("seed", "validate"),
}


def model_fingerprint(path: str | Path) -> str:
    """Return the digest of a model folder: its config, its generation config and every byte of its safetensors.

    Raises ValueError if the folder has no config.json or no *.safetensors.
    """
    configs, weights = _model_files(Path(path))
    return files_digest([*configs, *weights])


def quick_model_fingerprint(path: str | Path) -> str:
    """Return a digest of a model folder at once: its configs, and a sample of the bytes of each of its safetensors.

    In practice different models have different digests, but only `model_fingerprint` reads every byte. Raises
    ValueError as `model_fingerprint` does.
    """
    configs, weights = _model_files(Path(path))
    digest = hashlib.sha256(b"".join(config.read_bytes() for config in configs))
    for file in weights:
        size = file.stat().st_size
        digest.update(f"{file.name} {size}\n".encode())
        with file.open("rb") as stream:
            for part in range(_SAMPLED_PARTS):
                stream.seek(size * part // _SAMPLED_PARTS)
                digest.update(stream.read(_SAMPLED_BYTES))
    return digest.hexdigest()


def tokenizer_fingerprint(path: str | Path) -> str:
    """Return the digest of a folder's tokenizer files, chat template included.

    Raises ValueError if the folder has none of them.
    """
    folder = Path(path)
    if not (files := tokenizer_files(folder)):
        raise ValueError(f"{folder}: no tokenizer here (such as tokenizer.json); found {_names(folder)}")
    return files_digest(files)


def tokenizer_files(folder: Path) -> list[Path]:
    """Return the files of a folder's tokenizer, chat templates included."""
    files = [folder / name for name in _TOKENIZER_FILES if (folder / name).is_file()]
    return files + sorted(folder.glob("*chat_templates/*.jinja"))  # the named templates beside the default


def text_fingerprint(text: str) -> str:
    """Return the digest of a text, such as a chat template."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


class ContentHash:
    """The hash of a corpus: equal for two with the same tokens, however they were made and are cut into files.

    It is over every generation's row, sample, tokens and finish reason, not over its counts and text.
    """

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def add(self, generations: pa.Table) -> None:
        """Add these rows, in their order, which come after all that were added before."""
        columns = (generations[name].to_pylist() for name in HASHED_COLUMNS)
        for row_id, sample, token_ids, finish_reason in zip(*columns, strict=True):
            reason = finish_reason.encode()
            self._digest.update(struct.pack("<qiii", row_id, sample, len(token_ids), len(reason)))
            self._digest.update(struct.pack(f"<{len(token_ids)}i", *token_ids) + reason)

    def hexdigest(self) -> str:
        """Return the hash of the rows so far."""
        return self._digest.hexdigest()


def content_hash(run_directory: RunDirectory) -> str:
    """Return the `ContentHash` of all generations of a run. Raises FileNotFoundError if a unit is missing."""
    content = ContentHash()
    for rows in each_unit(run_directory, run_directory.units(), HASHED_COLUMNS):
        content.add(rows.generations)
    return content.hexdigest()


def deciding(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections of a run's configuration that decide its texts, without the draft, which does not."""
    kept = {section: dict(settings.get(section, {})) for section in ("input", "models", "chat", "sampling")}
    for name in ("draft", "candidates", "draft_vocabulary"):
        kept["models"].pop(name, None)
    for section, names in _DECIDING.items():
        kept[section] = {name: value for name, value in settings.get(section, {}).items() if name in names}
    return kept


def model_name(path: str | None) -> str | None:
    """Return how others know a model: its name and revision on the hub, or the name of its folder, without the path."""
    if not path:
        return None
    found = _ON_THE_HUB.search(path.rstrip("/"))
    if found:
        return f"{found['owner']}/{found['name']}@{found['revision'][:12]}"
    return path.rstrip("/").rpartition("/")[2]


def without_paths(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of run.json with the names of models in place of their folders."""
    kept = {name: value for name, value in run.items() if name not in ("manifest", "settings", "models")}
    models = {name: model_name(run.get("models", {}).get(name)) for name in ("target", "tokenizer")}
    settings = deciding(run.get("settings", {}))
    settings["input"]["path"], settings["models"] = "", {**settings["models"], **models}
    return {**kept, "models": models, "settings": settings}


def provenance(run_directory: RunDirectory, unit: WorkUnit) -> dict[str, Any]:
    """Return what a part's footer says of its run, and of its unit, so that its rows can be made again from it alone.

    Models and input files have names and digests, and no paths. What vLLM was told may name hosts, and is left out:
    what it wrote is not made again.
    """
    run = without_paths(run_directory.run)
    identity = {name: value for name, value in run["identity"].items() if name != "engine"}
    file = Location.parse(unit.file).short_name
    return {"run": {**run, "identity": identity}, "unit": {**asdict(unit), "file": file, "file_version": ""}}


def _model_files(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the configs of a model folder, and its weights. Raises ValueError if one of the two is not there."""
    configs = [file for name in _MODEL_CONFIGS if (file := folder / name).is_file()]
    weights = sorted(folder.glob("*.safetensors"))
    if folder / "config.json" not in configs or not weights:
        raise ValueError(
            f"{folder}: a model folder holds config.json and *.safetensors; found {_names(folder)}. "
            "Download the model first, or convert its weights to safetensors"
        )
    return configs, weights


def files_digest(files: Iterable[Path]) -> str:
    """Return the digest of files by their names and all their bytes."""
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            content = hashlib.file_digest(stream, "sha256").hexdigest()
        digest.update(f"{file.name}\0{content}\n".encode())
    return digest.hexdigest()


def _names(folder: Path) -> str:
    if not folder.is_dir():
        return "no such folder"
    return ", ".join(sorted(file.name for file in folder.iterdir())[:12]) or "an empty folder"
