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
from functools import cache, partial
from pathlib import Path

import torch
import transformers

from decoding.checkpoint.fp8_format import fp8_format
from decoding.checkpoint.layer_subset import changed_class, whole_class
from decoding.checkpoint.loading import DType, load_network
from decoding.checkpoint.model_files import file_digest, weight_files
from decoding.checkpoint.supported import load_config, model_folder
from decoding.cpu.library import cache_folder
from decoding.device import Device, pick_device
from decoding.fused.kernels import linear_columns, linear_kind
from decoding.kept import file
from decoding.kept.layout import described, has_all_of, lend, put_into
from decoding.network.language_model import LanguageModel
from decoding.network.probe import Found, check_again, check_model
from decoding.network.slot_network import Exact

_BESIDE = ("config.json", "generation_config.json", "codes.json", "codes.gguf")  # files that weights depend on, too
_LEAST = 32 << 20  # bytes of a model that is worth a file
_OLD = 30 * 24 * 3600  # seconds after which a file that is not used makes room for others
_log = logging.getLogger(__name__)


def load_checked(path: str, device: Device = "auto", dtype: DType = "auto", exact: Exact = "off") -> LanguageModel:
    """Load the model at `path` and measure it, as `LanguageModel.load` and `check_model` do, or take what is kept."""
    folder = model_folder(path)
    key = _key(folder, device, dtype)
    if place := _find(key):
        try:
            return _kept(place, key, folder, device, dtype)
        except (OSError, ValueError) as error:
            _log.warning("%s is not used for %r, and made anew: %s", place, path, error)
    model = LanguageModel.load(path, device, dtype, exact)
    check_model(model, path)
    is_ours = model.found is not None and model.is_batch_invariant and model.num_weight_bytes >= _LEAST
    if key and is_ours and _key(folder, device, dtype) == key:  # else the files have just changed
        try:
            if place:
                place.unlink(missing_ok=True)
            _keep(model, key)
        except (OSError, RuntimeError, ValueError) as error:
            _say_once(f"weights are not kept for the next start: {error}")
    return model


@cache
def _say_once(warning: str) -> None:
    _log.warning("%s", warning)


def _key(folder: str, device: Device, dtype: DType) -> dict[str, str]:
    """Return all that the bytes of a kept file follow from; nothing where no weights are kept.

    The compiler and the processor are not in it: how a weight is laid out follows from our sources, the kind of the
    kernels and the outputs of a block.
    """
    is_fp8, kind = fp8_format(load_config(folder)) is not None, "float32" if dtype == "auto" else dtype
    multiplied = "" if is_fp8 or pick_device(device).type != "cpu" else linear_kind(getattr(torch, kind))
    if not multiplied or os.environ.get("DRAY_KEEP_WEIGHTS", "on") == "off":
        return {}
    read = [*weight_files(Path(folder)), *(each for name in _BESIDE if (each := Path(folder) / name).is_file())]
    versions = {"dray": _OWN_DIGEST, "torch": str(torch.__version__), "transformers": transformers.__version__}
    layout = {"dtype": kind, "kernels": f"{multiplied}, {linear_columns()} outputs in a block"}
    return {**{os.path.relpath(each, folder): file_digest(each) for each in read}, **versions, **layout}


def _folder() -> Path:
    return cache_folder() / "weights"


def _find(key: dict[str, str]) -> Path | None:
    """Return the file of a key, if there is one; none where there is no home, or one that cannot be read."""
    with suppress(OSError, RuntimeError):
        return file.find(_folder(), _name(key)) if key else None
    return None


def _name(key: dict[str, str]) -> str:
    return hashlib.sha256(repr(key).encode()).hexdigest()[:32]


def _own_digest() -> str:
    """Return a digest of the sources that lay weights out, and of all others of the engine."""
    sources = [each for each in sorted(Path(__file__).parents[1].rglob("*")) if each.suffix in {".py", ".h", ".cpp"}]
    return hashlib.sha256(b"\0".join(each.read_bytes() for each in sources)).hexdigest()


_OWN_DIGEST = _own_digest()  # now: the files may be those of another version when a model is loaded


def _kept(place: Path, key: dict[str, str], folder: str, device: Device, dtype: DType) -> LanguageModel:
    """Return the model in a kept file; raise OSError or ValueError if it is not what was kept."""
    content, is_shared = file.whole(place, key)
    with suppress(OSError):  # a file in use does not grow old
        os.utime(place)
    fill = partial(put_into, content=content, is_lent=is_shared)
    network_class = changed_class(whole_class(load_config(folder)), fill)
    network, end_token_ids = load_network(folder, device, dtype, network_class, tensors=content["tensors"])
    model = LanguageModel(network, end_token_ids)
    check_again(model, folder, Found(*content["found"]))
    model.num_weight_bytes, model.num_bytes_read = content["num_bytes"]
    return model


def _keep(model: LanguageModel, key: dict[str, str]) -> None:
    """Write the file of a model, unless another process has, and let the model have its weights there."""
    folder = _folder()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # engines that start at once would all write
        if (place := file.find(folder, _name(key))) is None:
            _make_room(folder, model.num_weight_bytes)
            said = {"found": tuple(model.found), "num_bytes": (model.num_weight_bytes, model.num_bytes_read)}
            place = file.write(folder, _name(key), {"key": key, **said, **described(model.network)})
    content = file.mapped(place, key)
    if not has_all_of(content, model.network):
        place.unlink()
        raise ValueError(f"{place} has other numbers than were written into it")
    if file.is_shared(content) and model.fused is not None:
        lend(model.network, content)
        model.fused.follow_weights()


def _make_room(folder: Path, num_bytes: int) -> None:
    """Delete our files that are old, or left by a killed writer; raise an OSError if the disk would be nearly full."""
    for left in folder.glob(".unfinished-*"):  # the lock is ours, so no other process writes here
        shutil.rmtree(left)
    for old in folder.glob("*.dray"):
        if time.time() - old.stat().st_mtime > _OLD:
            old.unlink()
    if (free := shutil.disk_usage(folder).free) < 2 * num_bytes:  # other programs need room, too
        raise OSError(f"{folder} has {free:,} bytes free, and twice the {num_bytes:,} bytes of the weights are wanted")
