"""The files of a model folder: what is not a model that can run is refused by name, before anything is loaded."""

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

from huggingface_hub.constants import HF_HOME
from safetensors import SafetensorError, safe_open
from transformers import CONFIG_MAPPING

from decoding.checkpoint.fp8_format import Fp8Format, fp8_format
from decoding.checkpoint.quantized.packed_format import packed_layout
from decoding.codes.gguf_tensors import kept_codes
from decoding.codes.packed_tensors import PackedTensor
from decoding.codes.weight import Codes

_WEIGHTS = ["model.safetensors", "model.safetensors.index.json"]  # the first of them that is there is loaded
_NUM_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")  # names of one field in configurations
_LFS_POINTER = b"version https://git-lfs"
_FP8 = "F8_E4M3"
_EXACT_IN_FLOAT32 = ("F32", "BF16", "F16")
_FOREIGN_WEIGHTS = ("*.bin", "*.pt", "*.pth", "*.gguf")
_TEMPLATE_FOLDERS = ("chat_templates", "additional_chat_templates")
# A draft head reads the target's hidden states; its configuration is often that of a Llama otherwise.
_FIELDS_OF_DRAFT_HEADS = [
    "speculators_model_type", "eagle_config", "dflash_config", "draft_vocab_size", "medusa_num_heads",
]  # fmt: skip
ASSISTANTS = ("gemma4_assistant", "gemma4_unified_assistant")  # model types; they read their target's keys and values
_CLASS_OF_DRAFT_HEAD = re.compile(
    r"eagle.*causallm|causallm.*eagle|medusa|speculator|draftmodel|dsparkmodel", re.IGNORECASE
)


def check_links(folder: Path) -> None:
    """Raise a ValueError if the folder of a model, tokenizer or draft is a link to nothing, or one of its files is.

    A cache leaves such links where its files were deleted or never came. Libraries take a link to nothing for a file
    that is not there, and without an optional file the text is another one.
    """
    folders = [place for place in (folder, *(folder / name for name in _TEMPLATE_FOLDERS)) if place.is_dir()]
    for file in (folder, *sorted(file for place in folders for file in place.iterdir())):
        if file.is_symlink() and not file.exists() and not file.name.startswith("."):  # editors hide such locks
            raise ValueError(
                f"{str(file)!r} is a link to nothing: {os.readlink(file)!r} is not there; download the model again, or "
                "copy it with the files that its links name (cp -L)"
            )


def check_kind(folder: Path) -> None:
    """Raise a ValueError that says what the folder holds, if that is not a model of transformers, complete and exact.

    Adapters that are not merged, draft heads, checkpoints that are quantized in a way that does not run here, and
    models with code of their own are told by their JSON files.
    """
    if (folder / "adapter_config.json").is_file():
        has_model = (folder / "config.json").is_file()
        raise ValueError(
            f"{str(folder)!r} holds a PEFT adapter"
            + (
                " beside a model, and it cannot be known which of the two is meant: put the adapter into a folder of "
                "its own"
                if has_model
                else ", which is not a model by itself: merge it into its base model (PEFT's merge_and_unload)"
            )
        )
    if not (folder / "config.json").is_file():
        gguf_file = next((f", but {file.name}: name that file itself" for file in sorted(folder.glob("*.gguf"))), "")
        what_to_do = gguf_file or "; name a folder with config.json and *.safetensors, a .gguf file, or a hub name"
        raise ValueError(f"no model in {str(folder)!r}: it has no config.json{what_to_do}")
    config = read_json(folder / "config.json")
    if head := draft_head(config):
        raise ValueError(
            f"{str(folder)!r} is a draft head ({head}), which reads the hidden states of its target, and a "
            "complete model is wanted here: name it as the draft, with a drafter for heads or 'hybrid', or none"
        )
    try:
        fp8_format(config)
        packed_layout(config)
    except ValueError as error:
        raise ValueError(f"{str(folder)!r} {error}") from error
    if "auto_map" in config and config.get("model_type") not in CONFIG_MAPPING:
        raise ValueError(
            f"{str(folder)!r} ({config.get('model_type')}) is a model with code of its own (auto_map in config.json), "
            "which Dray never runs: use a checkpoint of a model type that transformers itself has"
        )
    if not list(folder.glob("*.safetensors")):
        others = sorted(file.name for pattern in _FOREIGN_WEIGHTS for file in folder.glob(pattern))
        found = f" (found {', '.join(others[:3])}, which can run code when loaded)" if others else ""
        raise ValueError(f"no safetensors weights in {str(folder)!r}{found}: convert them with save_pretrained")


def check_weights(folder: Path) -> None:
    """Raise a ValueError for a file of weights that is missing, not whole, or of other numbers than config.json says.

    Only the head of each file is read.
    """
    packed_tensors(str(folder))
    dtypes = {name: dtype for file in weight_files(folder) for name, (dtype, _) in tensors_in(file).items()}
    _check_fp8(folder, dtypes, fp8_format(read_json(folder / "config.json")))


def weight_files(folder: Path) -> list[Path]:
    """Return the files of weights that are loaded from a folder; raise a ValueError if one of them is missing."""
    named = read_json(folder / "config.json").get("transformers_weights")
    candidates = [named] if isinstance(named, str) else _WEIGHTS
    file = next((folder / name for name in candidates if (folder / name).is_file()), None)
    if file is None:
        found = ", ".join(sorted(file.name for file in folder.glob("*.safetensors"))[:3])
        raise ValueError(f"{str(folder)!r} has no {' or '.join(candidates)}, only {found}: use save_pretrained")
    files = [file]
    if file.suffix == ".json":
        shards = read_json(file).get("weight_map")
        if not isinstance(shards, dict) or not shards:
            raise ValueError(f"{str(file)!r} names no files of weights; copy or download it again")
        files = [folder / name for name in sorted(set(map(str, shards.values())))]
    if missing := [file.name for file in files if not file.is_file()]:
        raise ValueError(
            f"{str(folder)!r} lacks {len(missing)} of the {len(files)} files that {candidates[-1]} names, first "
            f"{missing[0]!r}; copy or download the model again"
        )
    return files


def tensors_in(file: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the dtype, in the words of safetensors, and the shape of each tensor in a file, of which the head is read.

    Raises a ValueError for a Git LFS pointer and for a file that is not whole.
    """
    with file.open("rb") as stream:
        if stream.read(len(_LFS_POINTER)) == _LFS_POINTER:
            raise ValueError(f"{str(file)!r} is a Git LFS pointer, not weights; run git lfs pull in its repository")
    try:
        with safe_open(file, "pt") as tensors:  # compares what the header says with the size of the file
            slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118
            return {name: (str(part.get_dtype()), tuple(part.get_shape())) for name, part in slices.items()}
    except (SafetensorError, OSError) as error:
        raise ValueError(
            f"{str(file)!r} is cut off or damaged: safetensors says {str(error)!r} of its {file.stat().st_size} bytes; "
            "copy or download it again"
        ) from error


def is_packed(folder: str) -> bool:
    """Tell whether a folder is that of a model with packed weights that are read; a draft head has none."""
    file = Path(folder) / "config.json"
    if not file.is_file() or draft_head(config := read_json(file)):
        return False
    try:
        return packed_layout(config) is not None
    except ValueError:  # quantized in a way that does not run here, as `check_kind` says
        return False


def packed_tensors(folder: str) -> dict[str, PackedTensor]:
    """Return the packed weights of a model folder, by name; none in one whose config.json does not speak of them.

    Raises a ValueError for packed weights that are not as config.json says.
    """
    if (layout := packed_layout(read_json(Path(folder) / "config.json"))) is None:
        return {}
    files = weight_files(Path(folder))
    try:
        found = layout.tensors({name: (*said, file) for file in files for name, said in tensors_in(file).items()})
    except ValueError as error:
        raise ValueError(f"{folder!r} {error}; use another checkpoint of the model") from error
    if not found:
        raise ValueError(f"{folder!r} is packed ({layout.method}) by its config.json, and has no packed weights")
    return found


def codes_in(folder: str) -> Mapping[str, Codes]:
    """Return the weights of a model folder whose codes are there, and can be multiplied as they are, by name."""
    if not is_packed(folder):
        return kept_codes(folder)
    return {name: tensor for name, tensor in packed_tensors(folder).items() if not tensor.stays_float32}


def num_bytes_read(folder: Path, config: Any) -> int:
    """Return the bytes of a model's weights that a token reads: of its experts those that work on it, else all."""
    text, files = config.get_text_config(), weight_files(folder)
    num_bytes = sum(file.stat().st_size for file in files)
    num_active = getattr(text, "num_experts_per_tok", None)
    num_experts = next((num for name in _NUM_EXPERTS if (num := getattr(text, name, None))), None)
    if not num_active or not num_experts:
        return num_bytes
    sizes = {name: prod(shape) for file in files for name, (_, shape) in tensors_in(file).items()}
    share = sum(size for name, size in sizes.items() if ".experts." in name) / sum(sizes.values())
    return int(num_bytes * (1 - share * (1 - num_active / num_experts)))


def _check_fp8(folder: Path, dtypes: dict[str, str], form: Fp8Format | None) -> None:
    """Raise a ValueError for FP8 weights without scales, or the other way round: loading would convert them quietly."""
    ending = None if form is None else f".{form.scaling.name}"
    scales = {name.removesuffix(ending): name for name in dtypes if name.endswith(ending)} if ending else {}
    for module, name in scales.items():
        weight, dtype = dtypes.get(f"{module}.weight"), dtypes[name]
        if weight != _FP8 or dtype not in _EXACT_IN_FLOAT32:
            raise ValueError(
                f"{str(folder)!r} is FP8 by its config.json, but the weight of {module!r} is {weight or 'missing'}, "
                f"with scales in {dtype}: expected {_FP8}, with {' or '.join(_EXACT_IN_FLOAT32)}"
            )
    for name, dtype in dtypes.items():
        if dtype.startswith("F8") and name.removesuffix(".weight") not in scales:
            raise ValueError(
                f"{str(folder)!r} has {name!r} in {dtype}, without the scales that its config.json would name: it "
                "cannot be told which numbers were meant; use another checkpoint of the model"
            )


def draft_head(config: dict[str, Any]) -> str | None:
    """Return what a configuration of a draft head calls itself; None if it is not one."""
    if config.get("model_type") in ASSISTANTS:
        return str(config["model_type"])
    classes = [str(name) for name in config.get("architectures") or ()]
    fields = [name for name in _FIELDS_OF_DRAFT_HEADS if config.get(name) is not None]
    known = [name for name in classes if _CLASS_OF_DRAFT_HEAD.search(name)]
    if not fields and not known:
        return None
    return str(config.get("speculators_model_type") or next(iter(known), None) or f"it has {fields[0]}")


def read_json(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file; raise a ValueError if the file cannot be read or holds something else."""
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"cannot read {str(file)!r}: {error}; copy or download it again") from error
    if not isinstance(content, dict):
        raise ValueError(f"cannot read {str(file)!r}: expected a JSON object, got {type(content).__name__}")
    return content


def kept_folder(kind: str, name: str, make: Callable[[Path], None]) -> str:
    """Return the folder `$HF_HOME/dray/<kind>/<name>`; if it is not there, `make` writes it, whole or not at all."""
    place = Path(HF_HOME) / "dray" / kind / name
    if place.is_dir():
        return str(place)
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=place.parent) as scratch:
        made = Path(scratch) / "model"
        make(made)
        try:
            made.rename(place)
        except OSError:  # another process was faster
            if not place.is_dir():
                raise
    return str(place)


def file_digest(file: Path) -> str:
    """Return the sha256 of a file, which is read once by a process as long as its size and its times stay."""
    stat = file.stat()
    return _digest_of(str(file.resolve()), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


@cache
def _digest_of(path: str, *_: int) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
