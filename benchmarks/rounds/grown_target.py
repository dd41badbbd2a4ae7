"""A target that writes what another one writes and takes longer: its feed-forward layers have more neurons.

The new neurons are random, and what they give is multiplied by zero. So a measurement of what the host does in a round
can be made beside a forward of any length, with the texts of a model that has learned something.
"""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

_INNER, _OUTER = ("gate_proj", "up_proj"), "down_proj"


def grow(target: Path, folder: Path, times: int) -> Path:
    """Write a target with `times` as many neurons in each feed-forward layer to `folder`, and return that.

    `target` is a folder with one file of weights, of a family whose layers have the names of Llama's.
    """
    config = json.loads((target / "config.json").read_text())
    shutil.copytree(target, folder, dirs_exist_ok=True)
    weights = load_file(target / "model.safetensors")
    generator = torch.Generator().manual_seed(0)
    for name, weight in weights.items():
        layer = name.removesuffix(".weight").rpartition(".")[2]
        if layer in _INNER:
            new = torch.randn((times - 1) * len(weight), weight.shape[1], generator=generator) * weight.float().std()
            weights[name] = torch.cat([weight, new.to(weight.dtype)]).contiguous()
        elif layer == _OUTER:
            new = torch.zeros(len(weight), (times - 1) * weight.shape[1], dtype=weight.dtype)
            weights[name] = torch.cat([weight, new], dim=1).contiguous()
    config["intermediate_size"] *= times
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
