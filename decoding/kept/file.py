"""Files of kept weights: written whole or not at all, and mapped once they are found to be what was written.

torch reads them (`weights_only`, so they hold numbers and names alone). The pages of a mapping are those of all that
map the file; what a process writes there it has alone. Neither the name of a file nor its date is trusted.
"""

import hashlib
import mmap
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from decoding.cpu.huge_pages import HugePages, advise, has_huge_pages

_SUMMED = 1 << 18  # numbers of 8 bytes that have a sum
Content = dict[str, Any]


def write(place: Path, content: Content) -> None:
    """Write a file; raise OSError or RuntimeError if it cannot be written."""
    with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=place.parent) as scratch:
        made = Path(scratch) / "made"
        torch.save({**content, "digest": _digest(content)}, made)
        made.rename(place)


def mapped(place: Path, key: Mapping[str, str]) -> Content:
    """Return the content of a file that has this key; raise OSError, or a ValueError that says what it has instead."""
    try:
        content: Content = torch.load(place, mmap=True, weights_only=True)
        found = content["key"]
    except OSError:
        raise
    except Exception as error:  # whatever is met in a damaged file
        raise ValueError(f"it is damaged ({type(error).__name__})") from error
    if found != key:
        raise ValueError("it is of other weights, or for another processor or version")
    for memory in _memories(content):
        advise(memory, mmap.MADV_HUGEPAGE)
    return content


def is_shared(content: Content) -> bool:
    """Tell whether the packed weights are in huge pages, which all that map the file have in common."""
    return all(map(has_huge_pages, _memories(content)))


def whole(place: Path, key: Mapping[str, str]) -> tuple[Content, bool]:
    """Return the content of a file, of which each byte was read, and whether it `is_shared`; raise as `mapped`.

    Where there are no huge pages for files, weights are copied into those of this process: they are read faster.
    """
    content = mapped(place, key)
    digest = content.pop("digest", "")
    if _digest(content) != digest:
        raise ValueError("its weights are damaged")
    if is_shared(content):
        return content, True
    memory = HugePages(sum(layer["packed"].nbytes for layer in content["layers"]) * 33 // 32)
    for layer in content["layers"]:
        shared, layer["packed"] = layer["packed"], memory.copy(layer["packed"])
        advise(shared, mmap.MADV_DONTNEED)
    return content, False


def _memories(content: Content) -> list[torch.Tensor]:
    """Return the bytes among which the packed weights lie."""
    storages = {(each := layer["packed"].untyped_storage()).data_ptr(): each for layer in content["layers"]}
    return [torch.empty(0, dtype=torch.uint8).set_(each) for each in storages.values()]


def _digest(content: Any) -> str:
    """Return a digest of names, numbers, and the sums of tensors: a change of one number changes it."""
    if isinstance(content, torch.Tensor):
        found: np.ndarray = content.detach().flatten().view(torch.uint8).numpy()
        words, rest = found[: len(found) // 8 * 8].view(np.uint64), found[len(found) // 8 * 8 :]
        sums = np.add.reduceat(words, np.arange(0, len(words), _SUMMED)) if len(words) else words
        said = f"{content.dtype} {tuple(content.shape)}".encode() + sums.tobytes() + rest.tobytes()
    elif isinstance(content, dict):
        said = "".join(f"{name!r} {_digest(each)}\n" for name, each in content.items()).encode()
    elif isinstance(content, list | tuple):
        said = "".join(map(_digest, content)).encode()
    else:
        said = repr(content).encode()
    return hashlib.sha256(said).hexdigest()
