"""Model folders of full size that take no disk: the heads of their files are real, and what follows is a hole."""

import json
from math import prod
from pathlib import Path
from typing import Any

_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "I64": 8, "BOOL": 1}
Headers = dict[str, tuple[str, tuple[int, ...]]]  # dtype in the words of safetensors, and shape


def write_sparse_folder(folder: Path, config: dict[str, Any], tensors: Headers) -> Path:
    """Write a folder with this config.json and these tensors, all zeros, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in tensors.items():
        start, end = end, end + prod(shape) * _BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    return folder
