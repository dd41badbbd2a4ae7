"""Weights of mixtures of experts, of which a token reads a part."""

from math import prod
from pathlib import Path

from decoding.checkpoint.model_files import tensors_in, weight_files
from decoding.checkpoint.supported import read_config

_NUM_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")  # names of one field in configurations


def num_bytes_read(folder: Path) -> int:
    """Return the bytes of a model's weights that a token reads: of its experts those that work on it, else all."""
    text, files = read_config(str(folder)).get_text_config(), weight_files(folder)
    num_bytes = sum(file.stat().st_size for file in files)
    num_active = getattr(text, "num_experts_per_tok", None)
    num_experts = next((num for name in _NUM_EXPERTS if (num := getattr(text, name, None))), None)
    if not num_active or not num_experts:
        return num_bytes
    sizes = {name: prod(shape) for file in files for name, (_, shape) in tensors_in(file).items()}
    share = sum(size for name, size in sizes.items() if ".experts." in name) / sum(sizes.values())
    return round(num_bytes * (1 - share * (1 - num_active / num_experts)))
