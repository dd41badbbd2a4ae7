"""OwnHead: the MTP head in a target's own files, told by the names of its tensors before any number is read."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from decoding.checkpoint.layer_subset import num_layers
from decoding.checkpoint.loading import numbers_of_a_token
from decoding.checkpoint.model_files import read_json, tensors_in, weight_files
from decoding.checkpoint.quantized.words import without_format
from decoding.checkpoint.supported import load_config, model_folder
from decoding.choices import NEED_A_MODEL, OWN_HEAD, OWN_HEAD_IF_ANY, DrafterName
from decoding.heads.mtp.family import FAMILIES, Family

_READ = ("F32", "BF16", "F16")
_NO_HEAD = "name a draft, or leave models.draft out"


@dataclass(frozen=True)
class OwnHead:
    """A head, and where its tensors are."""

    path: str  # of the target
    family: Family
    config: Any  # of a model with the layers of one module, as transformers has it
    modules: list[dict[str, str]]  # of each: the published names by those of `Family.names`
    files: Mapping[str, Path]  # by published names
    num_weights: int

    def read(self, module: int) -> dict[str, torch.Tensor]:
        """Return a module's tensors, by the names of `Family.names`."""
        found = {}
        for name, published in self.modules[module].items():
            with safe_open(self.files[published], "pt") as tensors:
                found[name] = tensors.get_tensor(published)
        return found

    def numbers(self, *, is_apart: bool = False) -> tuple[int, int]:
        """Return how many numbers its weights are, and how many its slots hold of a token.

        Embedding, final norm and output layer are the target's. If `is_apart` from the target's layers, its process has
        copies of them.
        """
        num_weights, config = self.num_weights, self.config
        if is_apart:
            num_weights += config.hidden_size * (1 + config.vocab_size * (1 if config.tie_word_embeddings else 2))
        return num_weights, len(self.modules) * numbers_of_a_token(config)

    def __str__(self) -> str:
        return f"mtp head in the target's own files, modules: {len(self.modules)}"


def own_head(path: str) -> OwnHead:
    """Return the head in the files of the target at `path`, of which no weight is read.

    Raises ValueError, in one line that names the folder, if they carry none, or one that cannot be read.
    """
    path = model_folder(path)
    config = load_config(path)
    model_type: str = config.get_text_config().model_type
    family, of_module = family_of(path)
    begin = num_layers(config) if family.begins_behind_target else 0
    tensors = {
        name: (file, *said)
        for file in weight_files(Path(path))
        for name, said in tensors_in(file).items()
        if family.has(name, begin)
    }
    numbers = sorted({number for name in tensors if (number := family.number(name)) is not None})
    if not numbers:
        raise ValueError(f"{path!r} ({model_type}) carries no MTP head in its files; {_NO_HEAD}")
    for name, (_, dtype, _) in tensors.items():
        if dtype not in _READ:
            raise ValueError(
                f"{path!r} has {name!r} of its MTP head in {dtype}: it is quantized, and heads are read in "
                f"{', '.join(_READ)}; take a checkpoint whose head is not quantized, or {_NO_HEAD}"
            )
    size = num_layers(of_module)
    modules = [family.names(tensors, first, size) for first in range(begin, begin + len(numbers), size)]
    odd = sorted(tensors.keys() ^ {name for module in modules for name in module.values()})
    if odd:
        raise ValueError(
            f"the MTP head in {path!r} is not as heads of its family ({model_type}) are: {odd[0]!r} is lacking, or has "
            f"no place in it; {_NO_HEAD}"
        )
    files = {name: file for name, (file, _, _) in tensors.items()}
    return OwnHead(path, family, of_module, modules, files, sum(prod(shape) for _, _, shape in tensors.values()))


def family_of(path: str) -> tuple[Family, Any]:
    """Return the family of the target in a folder, and the configuration of a model with the layers of one module.

    Raises ValueError, in one line that names the folder, for a target whose family has no head that is known here.
    """
    config = without_format(load_config(path)).get_text_config()
    family = FAMILIES.get(config.model_type)
    if family is None:
        known = ", ".join(FAMILIES)
        raise ValueError(
            f"an MTP head of {path!r} ({config.model_type}) could not be read: known are {known}; {_NO_HEAD}"
        )
    fields = dict(family.layer_fields)
    if family.kinds_field is not None:
        fields["layer_types"] = list(getattr(config, family.kinds_field))
        if "linear_attention" in fields["layer_types"]:
            raise ValueError(f"the MTP head of a {config.model_type} has layers with states; {_NO_HEAD}")
    config.num_hidden_layers = len(fields.get("layer_types", "1"))
    for name, value in fields.items():
        setattr(config, name, value)
    return family, config


def save_beside(path: str, family: Family, tensors: Mapping[str, torch.Tensor], folder: str) -> None:
    """Write the target at `path` into a new folder, with these tensors as its head of one module.

    The head has a file of its own. That of an earlier head is left out.
    """
    source, out = Path(path), Path(folder)
    begin = num_layers(load_config(path)) if family.begins_behind_target else 0
    files, weight_map, num_bytes = weight_files(source), dict[str, str](), 0
    out.mkdir(parents=True, exist_ok=True)
    for number, file in enumerate([*files, None], 1):
        named = f"model-{number:05}-of-{len(files) + 1:05}.safetensors"
        stored = tensors if file is None else tensors_in(file)
        kept = [name for name in stored if file is None or not (family.has(name, begin) or name in tensors)]
        if file is not None and len(kept) == len(stored):
            shutil.copyfile(file, out / named)
        else:
            written = dict(tensors) if file is None else _tensors(file, kept)
            save_file(written, out / named, metadata={"format": "pt"})
        num_bytes += (out / named).stat().st_size
        weight_map |= dict.fromkeys(kept, named)
    for each in source.iterdir():
        if each not in files and not each.name.endswith(".safetensors.index.json"):
            copy = shutil.copytree if each.is_dir() else shutil.copyfile
            copy(each, out / each.name)
    index = {"metadata": {"total_size": num_bytes}, "weight_map": weight_map}
    (out / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
    said = read_json(source / "config.json")
    said.get("text_config", said)[family.count_field] = 1
    (out / "config.json").write_text(json.dumps(said, indent=2) + "\n")


def _tensors(file: Path, names: list[str]) -> dict[str, torch.Tensor]:
    with safe_open(file, "pt") as tensors:
        return {name: tensors.get_tensor(name) for name in names}


def settled_draft(draft: str | None, target: str, drafter: DrafterName | None = None) -> tuple[str | None, str]:
    """Return the draft that models.draft stands for, and why it is none where `auto` finds no head.

    Raises ValueError, with that reason, if engine.drafter is set to one that needs a draft.
    """
    if draft != OWN_HEAD_IF_ANY:
        return draft, ""
    try:
        own_head(target)
    except ValueError as error:
        if drafter in NEED_A_MODEL:
            raise ValueError(f"engine.drafter is {drafter!r}, and models.draft 'auto' found none: {error}") from error
        return None, str(error)
    return OWN_HEAD, ""
