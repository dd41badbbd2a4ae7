"""OwnHead: the MTP head in a target's own files, told by the names of its tensors before any number is read."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from decoding.checkpoint.fp8_format import without_format
from decoding.checkpoint.layer_subset import num_layers
from decoding.checkpoint.loading import Footprint, cache_of
from decoding.checkpoint.model_files import tensors_in, weight_files
from decoding.checkpoint.supported import load_config, model_folder
from decoding.choices import OWN_HEAD, OWN_HEAD_IF_ANY
from decoding.heads.mtp.family import FAMILIES, Family

_READ = ("F32", "BF16", "F16")
_NO_HEAD = "name a draft, or leave models.draft out"


@dataclass(frozen=True)
class OwnHead:
    """A head, and where its tensors are."""

    path: str  # of the target
    family: Family
    config: Any  # of the layers of one module, as transformers has it
    num_modules: int
    first: int  # number of its first layer
    tensors: Mapping[str, tuple[Path, tuple[int, ...]]]  # by published names: file and shape

    @cached_property
    def layers_per_module(self) -> int:
        """The number of layers of a module."""
        return num_layers(self.config)

    def names(self, module: int) -> dict[str, str]:
        """Return the published names of a module's tensors, by those of transformers and of `Family`."""
        family, first = self.family, self.first + module * self.layers_per_module
        at = {"first": first, "last": first + self.layers_per_module - 1}
        ends = {name: getattr(family, name).format(**at) + ".weight" for name in _ENDS}
        found = {name: published for name, published in ends.items() if name != "final_norm"}
        found[f"model.{family.norm_of_model}.weight"] = ends["final_norm"]
        for place in range(self.layers_per_module):
            prefix = family.layer.format(first + place)
            for name in self.tensors:
                part = name.removeprefix(prefix)
                if part == name or name in ends.values() or part.startswith(family.copies):
                    continue
                for theirs, ours in family.renamed.items():
                    part = part.replace(theirs, ours)
                found[f"model.layers.{place}.{part}"] = name
        return found

    def read(self, module: int) -> dict[str, torch.Tensor]:
        """Return a module's tensors, by the names that `names` gives them."""
        found = {}
        for name, published in self.names(module).items():
            with safe_open(self.tensors[published][0], "pt") as tensors:
                found[name] = tensors.get_tensor(published)
        return found

    def footprint(self, dtype: str, num_slots: int, max_model_len: int) -> Footprint:
        """Return the memory of the head. Embedding and output layer are the target's."""
        names = {name for module in range(self.num_modules) for name in self.names(module).values()}
        num_weights = sum(prod(self.tensors[name][1]) for name in names)
        per_token = self.num_modules * cache_of(self.config, dtype, num_slots=1, max_model_len=0)
        weights = num_weights * getattr(torch, dtype).itemsize
        return Footprint(weights, per_token, num_slots, max_model_len)

    def __str__(self) -> str:
        modules = f"{self.num_modules} module{'s' * (self.num_modules > 1)}"
        return f"mtp head of the target's own files, {modules} of {self.layers_per_module} layers"


_ENDS = ("embedding_norm", "hidden_norm", "projection", "final_norm")


def own_head(path: str) -> OwnHead:
    """Return the head in the files of the target at `path`, of which no weight is read.

    Raises ValueError, in one line that names the folder, if they carry none, or one that cannot be read.
    """
    path = model_folder(path)
    config = load_config(path)
    model_type: str = config.get_text_config().model_type
    family = FAMILIES.get(model_type)
    if family is None:
        known = ", ".join(FAMILIES)
        raise ValueError(f"an MTP head of {path!r} ({model_type}) could not be read: known are {known}; {_NO_HEAD}")
    begin = num_layers(config) if family.begins_behind_target else 0
    tensors = {
        name: (file, shape, dtype)
        for file in weight_files(Path(path))
        for name, (dtype, shape) in tensors_in(file).items()
        if family.has(name, begin)
    }
    numbers = sorted({number for name in tensors if (number := family.layer_of(name)) is not None})
    if not numbers:
        raise ValueError(f"{path!r} ({model_type}) carries no MTP head in its files; {_NO_HEAD}")
    for name, (_, _, dtype) in tensors.items():
        if dtype not in _READ:
            raise ValueError(
                f"{path!r} has {name!r} of its MTP head in {dtype}: it is quantized, and heads are read in "
                f"{', '.join(_READ)}; take a checkpoint whose head is not quantized, or {_NO_HEAD}"
            )
    layers = _config_of_module(config, family)
    per_module = num_layers(layers)
    places = {name: (file, shape) for name, (file, shape, _) in tensors.items()}
    head = OwnHead(path, family, layers, len(numbers) // per_module, begin, places)
    named = {name for module in range(head.num_modules) for name in head.names(module).values()}
    copies = {name for name in tensors if any(f".{each}." in name for each in family.copies)}
    foreign, lacking = sorted(tensors.keys() - named - copies), sorted(named - tensors.keys())
    if foreign or lacking or numbers != list(range(begin, begin + head.num_modules * per_module)):
        what = f"lacks {lacking[0]!r}" if lacking else f"has {foreign[0]!r}" if foreign else f"has layers {numbers}"
        raise ValueError(
            f"the MTP head in {path!r} is not as heads of its family ({model_type}) are: it {what}; {_NO_HEAD}"
        )
    return head


def _config_of_module(config: Any, family: Family) -> Any:
    """Return the configuration of a model that has the layers of one module."""
    config = without_format(config).get_text_config()
    fields = dict(family.layer_fields)
    if family.kinds_field is not None:
        fields["layer_types"] = list(getattr(config, family.kinds_field))
        if "linear_attention" in fields["layer_types"]:
            raise ValueError(f"the MTP head of a {config.model_type} has layers with states; {_NO_HEAD}")
    config.num_hidden_layers = len(fields.get("layer_types", "1"))
    for name, value in fields.items():
        setattr(config, name, value)
    return config


def settled_draft(draft: str | None, target: str) -> tuple[str | None, str]:
    """Return the draft that models.draft stands for, with why there is none where `auto` finds no head."""
    if draft != OWN_HEAD_IF_ANY:
        return draft, ""
    try:
        own_head(target)
    except ValueError as error:
        return None, str(error)
    return OWN_HEAD, ""
