"""A head's folder: whether a folder is one, and how it is read and written. Code in it is never executed."""

import json
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import torch
from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from safetensors.torch import save_file

from decoding.checkpoint.model_files import ASSISTANTS, draft_head, read_json
from decoding.checkpoint.supported import model_folder
from decoding.choices import OWN_HEAD, OWN_HEAD_IF_ANY
from decoding.heads.format.eagle import read_eagle, write_eagle
from decoding.heads.format.head_config import Format, HeadConfig, Kind
from decoding.heads.format.speculators import read_speculators, write_speculators
from decoding.heads.format.tensors import (
    EAGLES_FIRST_LAYER,
    FIRST_LAYER,
    check_tensors,
    membership,
    read_tensors,
    target_ids,
)

_CONVERT = (
    'convert them: tensors = torch.load("pytorch_model.bin", weights_only=True), then '
    'safetensors.torch.save_file(tensors, "model.safetensors")'
)


@dataclass(frozen=True)
class Head:
    """A head's configuration and its tensors, by the names of `decoding/heads/format/tensors.py`."""

    config: HeadConfig
    tensors: dict[str, torch.Tensor]

    @property
    def target_ids(self) -> torch.Tensor | None:
        """The target's ids of the head's tokens; None if they are the same ids."""
        return target_ids(self.tensors["d2t"], self.config.vocab_size) if "d2t" in self.tensors else None


def is_head(path: str) -> bool:
    """Tell whether the folder or hub model `path` is a draft head, rather than a model of its own.

    Nothing is downloaded: what is not here is no head yet. Heads that Dray does not know count, so that `read_head`
    refuses them by name.
    """
    return path in (OWN_HEAD, OWN_HEAD_IF_ANY) or _fields_of_head(path) is not None


def is_assistant(path: str) -> bool:
    """Tell whether the folder or hub model `path` is an assistant of Gemma 4, without a download."""
    return kind_of_head(path) == "assistant"


def kind_of_head(path: str) -> Kind | Literal["mtp", "assistant"] | None:
    """Return the kind of the head in the folder or hub model `path`, without a download; None if there is none.

    That is also said of a head that `read_head_config` refuses. The head in its target's own files has no folder.
    """
    if path in (OWN_HEAD, OWN_HEAD_IF_ANY):
        return "mtp"
    fields = _fields_of_head(path)
    if fields is None:
        return None
    try:
        return "assistant" if fields.get("model_type") in ASSISTANTS else _config_of(fields).kind
    except ValueError:
        return None


def _fields_of_head(path: str) -> dict[str, Any] | None:
    try:
        folder = Path(path).expanduser()
        file = folder / "config.json" if folder.is_dir() else try_to_load_from_cache(path, "config.json")
    except HFValidationError:  # neither a folder nor a name
        return None
    if not isinstance(file, str | Path) or not Path(file).is_file():
        return None
    fields = read_json(Path(file))
    return None if draft_head(fields) is None else fields


def read_head_config(path: str) -> HeadConfig:
    """Return what the folder or hub model `path` says about the head in it, of which no weight is read.

    Raises ValueError, in one line that begins with the folder, if that is no head or one that Dray does not know.
    """
    folder = Path(model_folder(path))
    if not (folder / "config.json").is_file():
        raise ValueError(f"no head in {str(folder)!r}: it has no config.json")
    fields = read_json(folder / "config.json")
    try:
        if draft_head(fields) is None:
            raise ValueError("is not a draft head but a model of its own; name a head")
        return _config_of(fields)
    except ValueError as error:
        raise ValueError(f"{str(folder)!r} {error}") from error


def _config_of(fields: dict[str, Any]) -> HeadConfig:
    if fields.get("model_type") in ASSISTANTS:
        raise ValueError(
            "is an assistant of Gemma 4, which drafts beside its target as it is (models.draft), and is not converted "
            "or replaced here; name a head of another kind"
        )
    return read_speculators(fields) if "speculators_model_type" in fields else read_eagle(fields)


def read_head(path: str, config: HeadConfig | None = None) -> Head:
    """Return the head in the folder or hub model `path`, with every tensor checked.

    `config` replaces what its config.json says. Raises ValueError, in one line that names the folder, as
    `read_head_config` and `read_tensors` do, and for weights in files that can run code when loaded.
    """
    config = read_head_config(path) if config is None else config
    folder = Path(model_folder(path))
    if not list(folder.glob("*.safetensors")):
        others = sorted(file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in folder.glob(pattern))
        found = f" (found {', '.join(others[:3])}, which can run code when loaded)" if others else ""
        raise ValueError(f"no safetensors weights in {str(folder)!r}{found}: {_CONVERT}")
    try:
        return Head(config, read_tensors(folder, config))
    except ValueError as error:
        message = str(error)
        raise ValueError(message if str(folder) in message else f"{str(folder)!r} {message}") from error


def save_head(head: Head, path: str, form: Format) -> None:
    """Write a head into the new folder `path`, in a format.

    The folder appears whole or not at all. It holds the head's own tensors, bit for bit, and none of its target's; the
    marks of a reduced vocabulary (`t2d`) are added where they are missing. Raises ValueError if the folder is there and
    not empty, if the head's tensors are not those of its configuration, and for what the format cannot say.
    """
    folder = Path(path)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{path!r} is there already, and it is not an empty folder; name another one")
    try:
        check_tensors(head.tensors, head.config)
        if head.config.sliding_window and head.config.window_moves != replace(head.config, format=form).window_moves:
            raise ValueError(
                f"has windows of {head.config.sliding_window} positions, which the {head.config.format} format gives "
                f"{'each token of a block' if head.config.window_moves else 'a block'}, and the other one not; keep "
                "its format"
            )
        write = write_speculators if form == "speculators" else write_eagle
        fields = write(head.config, str(head.tensors["fc.weight"].dtype).removeprefix("torch."))
    except ValueError as error:
        raise ValueError(f"cannot write {path!r} in the {form} format: the head {error}") from error
    tensors = {name: each.contiguous() for name, each in head.tensors.items()}
    if head.config.draft_vocab_size < head.config.vocab_size and "t2d" not in tensors:
        vocab_size = head.config.vocab_size
        tensors["t2d"] = membership(target_ids(tensors["d2t"], vocab_size), vocab_size)
    if form == "eagle" and head.config.kind == "eagle3":
        tensors = {
            EAGLES_FIRST_LAYER + name.removeprefix(FIRST_LAYER) if name.startswith(FIRST_LAYER) else name: each
            for name, each in tensors.items()
        }
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = folder.parent / f".{folder.name}.{uuid4().hex}"
    try:
        unfinished.mkdir()
        save_file(tensors, unfinished / "model.safetensors", metadata={"format": "pt"})  # transformers asks for it
        (unfinished / "config.json").write_text(json.dumps(fields, indent=2) + "\n")
        os.replace(unfinished, folder)  # an empty folder is replaced, any other one is an error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
