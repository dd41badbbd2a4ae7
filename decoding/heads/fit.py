"""A head and its target: whether the two fit, and the memory that the head takes, by their configurations alone."""

from pathlib import Path

import torch
from transformers import PretrainedConfig

from decoding.checkpoint.layer_subset import num_layers
from decoding.checkpoint.model_files import tensors_in, weight_files
from decoding.checkpoint.supported import check_same_vocabulary, model_folder
from decoding.heads.format.folder import read_head_config
from decoding.heads.format.head_config import READ_PAIRS, HeadConfig
from decoding.heads.format.tensors import expected_tensors, our_name

LENT = ("embed_tokens.weight", "lm_head.weight")  # what a head takes from its target if its files lack it


def fitting_config(path: str, target_config: PretrainedConfig, target_path: str) -> HeadConfig:
    """Return the configuration of the head in `path`, with the layers of this target that it reads.

    Raises ValueError, in one line that names the folder, for a head that is none, or that belongs to a target
    of another size or vocabulary.
    """
    config = read_head_config(path)
    sizes = config.target_hidden_size, config.vocab_size
    check_sizes(path, sizes, target_config, target_path, config.target_name)
    try:
        return config.settle_layer_ids(num_layers(target_config))
    except ValueError as error:
        raise ValueError(f"{path!r} {error}") from error


def check_sizes(
    path: str, sizes: tuple[int, int], target_config: PretrainedConfig, target_path: str, named: str | None = None
) -> None:
    """Raise ValueError, in one line that names the draft in `path`, if a target has other sizes or other tokens.

    `sizes` are the hidden size and the vocabulary of the target that the draft was trained for, and maybe has `named`.
    """
    target = target_config.get_text_config()
    there = target.hidden_size, target.vocab_size
    for name, own, others in zip(("a hidden size", "a vocabulary"), sizes, there, strict=True):
        if own != others:
            raise ValueError(
                f"{path!r} was trained for a target with {name} of {own}, but {target_path!r} has {others}; name the "
                f"target that it was trained for{f' ({named})' if named else ''}"
            )
    check_same_vocabulary(target_path, path, target.vocab_size, sizes[1])


def head_numbers(path: str, config: HeadConfig, *, is_apart: bool = False) -> tuple[int, int]:
    """Return how many numbers the weights of the head in `path` are, and how many its slots hold of a token.

    What its files lack is its target's: if it `is_apart` from the target's layers, its process has copies, else they
    take no memory of its own. A head that fills in blocks holds the weights of keys and values twice: once more for the
    text before the block, side by side for all layers.
    """
    stored = {our_name(name) for file in weight_files(Path(model_folder(path))) for name in tensors_in(file)}
    stored |= set(LENT) if is_apart else set()
    shapes = [each.shape for name, each in expected_tensors(config).items() if name in stored and each.kind == "float"]
    layers = config.layer_config
    numbers_of_a_token = 2 * config.num_layers * int(layers["num_key_value_heads"]) * int(layers["head_dim"])
    num_weights = sum(torch.Size(shape).numel() for shape in shapes)
    if config.kind not in READ_PAIRS:
        num_weights += numbers_of_a_token * config.hidden_size
    return num_weights, numbers_of_a_token
