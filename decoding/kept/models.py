"""Models that are loaded and measured, and kept as they are laid out, so that the next engine of a machine is quick.

The first engine of a model reads its files, measures it (`decoding/network/probe.py`), and writes its weights as our
CPU kernels read them. Later ones map these, build the network without weights, and compare its logits with those of the
plain forwards of then. What is not right with a kept file costs a warning and the time of a first start.
"""

import fcntl
import hashlib
import logging
import os
import shutil
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch
import transformers
from transformers import PreTrainedModel

from decoding.checkpoint.fp8_format import fp8_format
from decoding.checkpoint.layer_subset import changed_class, whole_class
from decoding.checkpoint.loading import DType, load_network
from decoding.checkpoint.model_files import file_digest, weight_files
from decoding.checkpoint.supported import load_config, model_folder
from decoding.cpu.library import cache_folder, identity
from decoding.device import Device, pick_device
from decoding.fused.packed_linear import LinearSlice, PackedLinear
from decoding.kept.file import KeptFile, Parts
from decoding.kept.layout import described, lend, put_into
from decoding.network.language_model import LanguageModel
from decoding.network.probe import Found, check_again, probed
from decoding.network.slot_network import Exact

_BESIDE = ("config.json", "generation_config.json", "codes.json", "codes.gguf")  # files that weights depend on, too
_LEAST = 32 << 20  # bytes of a model that is worth a file
_UNUSED_S = 30 * 24 * 3600  # after which a kept file is deleted
_SPARE = 2  # times its bytes must be free on the disk
_log = logging.getLogger(__name__)


def load_checked(path: str, device: Device = "auto", dtype: DType = "auto", exact: Exact = "off") -> LanguageModel:
    """Load the model at `path` and measure it, as `LanguageModel.load` and `check_model` do, or take what is kept."""
    folder = model_folder(path)
    key = _key(folder, device, dtype)
    place = cache_folder() / "weights" / f"{hashlib.sha256(repr(key).encode()).hexdigest()[:32]}.dray"
    if key and place.exists():
        try:
            return _kept(place, key, folder, device, dtype)
        except (OSError, ValueError) as error:
            _log.warning("%s is not used for %r, and made anew: %s", place, path, error)
            with suppress(OSError):
                place.unlink()
    model = LanguageModel.load(path, device, dtype, exact)
    found = probed(model, path)
    if key and _is_all_ours(model) and _key(folder, device, dtype) == key:  # else the files have just changed
        try:
            _keep(model, found, place, key)
        except OSError as error:
            _log.warning("the weights of %r are not kept for the next start: %s", path, error)
    return model


def _key(folder: str, device: Device, dtype: DType) -> dict[str, str]:
    """Return all that the bytes of a kept file follow from; nothing where no weights are kept."""
    config = load_config(folder)
    is_off = os.environ.get("DRAY_KEEP_WEIGHTS", "on") == "off" or not identity()
    if is_off or pick_device(device).type != "cpu" or fp8_format(config) is not None:
        return {}
    files = [*weight_files(Path(folder)), *(file for name in _BESIDE if (file := Path(folder) / name).is_file())]
    versions = {"dray": _own_digest(), "torch": torch.__version__, "transformers": transformers.__version__}
    of_run = {"dtype": "float32" if dtype == "auto" else dtype, "kernels": identity()}
    return {**{file.name: file_digest(file) for file in files}, **versions, **of_run}


@cache
def _own_digest() -> str:
    """Return a digest of the sources that lay weights out, and of all others of the engine."""
    package = Path(__file__).parents[1]
    sources = (f"{file.relative_to(package)}\0{file.read_text()}" for file in sorted(package.rglob("*.py")))
    return hashlib.sha256("\0".join(sources).encode()).hexdigest()


def _is_all_ours(model: LanguageModel) -> bool:
    """Tell whether fused layers run, and our kernels multiply everywhere: what else lays weights out is not kept."""
    held = [module.fused if isinstance(module, LinearSlice) else module for module in model.network.modules()]
    return model.fused is not None and not any(isinstance(each, torch.nn.Linear | PackedLinear) for each in held)


def _kept(place: Path, key: dict[str, str], folder: str, device: Device, dtype: DType) -> LanguageModel:
    """Return the model in a kept file; raise OSError or ValueError if it is not what was kept."""
    kept, tied = KeptFile.whole(place, key), {}
    said = kept.description

    def fill(network: PreTrainedModel) -> None:
        tied.update(network.all_tied_weights_keys)
        network.all_tied_weights_keys = {}  # an embedding reads the head already
        put_into(network, kept)

    tensors = {name: kept.tensor(entry) for name, entry in said["tensors"].items()}
    network_class = changed_class(whole_class(load_config(folder)), fill)
    network, _ = load_network(folder, device, dtype, network_class, tensors=tensors)
    network.all_tied_weights_keys = tied
    model = LanguageModel(network, frozenset(said["end_token_ids"]))
    plain = [kept.tensor(entry) for entry in said["plain"]]
    check_again(model, folder, Found(plain, *said["found"]))
    model.num_weight_bytes, model.num_bytes_read = said["num_weight_bytes"], said["num_bytes_read"]
    with suppress(OSError):
        os.utime(place)
    return model


def _keep(model: LanguageModel, found: Found, place: Path, key: dict[str, str]) -> None:
    """Write the file of a model, unless another process has, and let the model have its weights there."""
    parts = Parts()
    said = {
        "key": key,
        **described(model.network, parts),
        "plain": [parts.add(logits_JV) for logits_JV in found.plain],
        "found": found[1:],
        "end_token_ids": sorted(model.eos_token_ids),
        "num_weight_bytes": model.num_weight_bytes,
        "num_bytes_read": model.num_bytes_read,
    }
    if parts.num_bytes < _LEAST:
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    with (place.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # engines that start at once would all write
        if not place.exists():
            _tidy(place.parent)
            if shutil.disk_usage(place.parent).free < _SPARE * parts.num_bytes:
                raise OSError(f"{place.parent} has no room for {parts.num_bytes:,} bytes, and as many to spare")
            parts.write(place, said)
    kept = KeptFile(place, key)
    if kept.is_shared and model.fused is not None:
        lend(model.network, kept)
        model.fused.follow_weights()


def _tidy(folder: Path) -> None:
    """Delete the files that no engine has used for a month, and what a killed process has left."""
    for file in folder.iterdir():
        with suppress(OSError):
            if time.time() - file.stat().st_mtime > _UNUSED_S:
                shutil.rmtree(file) if file.is_dir() else file.unlink()
