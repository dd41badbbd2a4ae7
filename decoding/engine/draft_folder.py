"""The folder of a draft that is to take the place of another one: it is compared with that one's, and read.

Weights alone may change. What is not a weight (sizes, positions, norms, the tokens that a head knows, the tokenizer)
was read once, when the engine was loaded, so it must be the same.
"""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import torch

from decoding.checkpoint.fp8_format import fp8_format
from decoding.checkpoint.loading import DType, load_network
from decoding.checkpoint.supported import check_same_vocabulary, load_config, model_folder
from decoding.choices import OWN_HEAD
from decoding.heads.fit import fitting_config
from decoding.heads.format.folder import is_head, read_head, read_head_config
from decoding.heads.format.tensors import OF_VOCABULARY

_NOT_COMPUTED = {
    "_name_or_path", "architectures", "auto_map", "bos_token_id", "dtype", "eos_token_id", "pad_token_id",
    "torch_dtype", "transformers_version", "use_cache",
}  # fmt: skip
_NOT_OF_HEADS = {
    "assumed", "format", "layer_config", "num_speculative_tokens", "num_target_layers", "target_architectures",
    "target_name",
}  # fmt: skip


def check_replacement(path: str, used: str, target: str | None = None) -> None:
    """Raise ValueError, in one line, unless the draft in `path` could take the place of the one in the folder `used`.

    No weight is read. A head may leave open which layers of its `target` it reads, and formats number them differently.
    """
    if OWN_HEAD in (path, used):
        raise ValueError(
            f"the head in a target's own files (models.draft {OWN_HEAD}) is replaced with its target alone"
        )
    path, used = model_folder(path), model_folder(used)
    if is_head(path) != is_head(used):
        words = {True: "a draft head", False: "a model"}
        raise ValueError(
            f"{path!r} is {words[is_head(path)]} and the draft in use ({used!r}) {words[is_head(used)]}; "
            "name a draft of the same kind"
        )
    here, there = _said(path, target), _said(used, target)
    for name in sorted(here.keys() | there.keys()):
        if here.get(name) != there.get(name):
            raise ValueError(
                f"{path!r} has {name} {here.get(name)!r} and the draft in use ({used!r}) {there.get(name)!r}; only a "
                "draft of the same architecture and vocabulary can take its place"
            )
    if not is_head(path):
        check_same_vocabulary(used, path, int(there["vocab_size"]), int(here["vocab_size"]))


def read_replacement(path: str, used: str, dtype: DType = "auto", target: str | None = None) -> dict[str, torch.Tensor]:
    """Return the weights of the draft in `path`, on the CPU; raise ValueError as `check_replacement` does.

    A model is read in float32 (in `dtype` if it has FP8 weights), a head in the type of its file; the engine rounds
    them. Raises ValueError for files that cannot be read, too.
    """
    check_replacement(path, used, target)
    path, used = model_folder(path), model_folder(used)
    if not is_head(path):
        # While transformers loads a model in a type that is not float32, that type is the default of torch in all
        # threads, the engine's among them.
        is_fp8 = fp8_format(load_config(path)) is not None
        network, _ = load_network(path, "cpu", dtype if is_fp8 else "float32")
        return dict(network.state_dict())
    tensors = read_head(path).tensors
    ours, theirs = tensors.get("d2t"), read_head(used).tensors.get("d2t")
    if (ours is None) != (theirs is None) or (ours is not None and theirs is not None and not ours.equal(theirs)):
        raise ValueError(f"{path!r} drafts other tokens of its target than the head in use ({used!r}), by d2t")
    return {name: tensor for name, tensor in tensors.items() if name not in OF_VOCABULARY}


def _said(path: str, target: str | None) -> Mapping[str, Any]:
    """Return what a configuration says that the forward depends on."""
    if not is_head(path):
        return {name: value for name, value in load_config(path).to_dict().items() if name not in _NOT_COMPUTED}
    config = read_head_config(path)
    if target is not None:
        target = model_folder(target)
        config = fitting_config(path, load_config(target), target)
    if config.layer_ids_are != "unknown":
        config = replace(config, layer_ids=config.layer_ids_as("inputs"), layer_ids_are="inputs")
    said = {name: value for name, value in asdict(config).items() if name not in _NOT_OF_HEADS}
    layers = config.layer_config.items()
    return {**said, **{f"layer_config.{name}": value for name, value in layers if name not in _NOT_COMPUTED}}
