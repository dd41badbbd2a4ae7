"""Adapters: a folder with a LoRA adapter of PEFT is merged into its base model, once; the result is a model folder.

Everything that reads a model (planning, stages, ranks, training, other programs) reads the merged folder, so an adapter
needs no support of its own there. The merge is PEFT's (`merge_and_unload`): W + scale * B A, in the dtype of the base.
"""

import hashlib
import logging
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from decoding.checkpoint.fp8_format import fp8_format
from decoding.checkpoint.model_files import check_kind, check_weights, is_packed, kept_folder, read_json, weight_files

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_TOKENIZER_FILES = ("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt", "*.jinja")
_log = logging.getLogger(__name__)


def is_adapter(folder: Path) -> bool:
    """Tell whether a folder holds an adapter, and no model."""
    return (folder / CONFIG).is_file() and not (folder / "config.json").is_file()


def merged_folder(folder: Path, base_folder: Callable[[str], str]) -> str:
    """Return the folder of the model that the adapter in `folder` makes of its base; merge them if it is not there.

    `base_folder` finds the base by the name in adapter_config.json. Merged models are kept in Hugging Face's cache
    (`$HF_HOME/dray/merged`), one for each content of adapter and base, written whole or not at all. Raises ValueError
    for what is no adapter that can be merged exactly.
    """
    base = Path(base_of(folder, base_folder))

    def make(made: Path) -> None:
        _log.info("merging the adapter in %s into %s", folder, base)
        _merge(folder, base).save_pretrained(made)
        for source in (base, folder):  # the adapter's own tokenizer and template come last
            for file in (file for pattern in _TOKENIZER_FILES for file in source.glob(pattern)):
                shutil.copyfile(file, made / file.name)

    return kept_folder("merged", _digest(folder, base), make)


def base_of(folder: Path, base_folder: Callable[[str], str]) -> str:
    """Return the folder of the base model; raise ValueError if there is none, or nothing can be merged into it."""
    said = read_json(folder / CONFIG)
    kind, name = said.get("peft_type"), said.get("base_model_name_or_path")
    if kind != "LORA":
        raise ValueError(
            f"{str(folder)!r} holds a PEFT adapter of type {kind!r}, and only LORA is merged here: merge it into its "
            "base model yourself (PEFT's merge_and_unload, then save_pretrained) and name the folder of the result"
        )
    if not isinstance(name, str) or not name:
        raise ValueError(
            f"{str(folder)!r} holds an adapter that names no base model: write the base's folder or hub name into "
            f"base_model_name_or_path of its {CONFIG}"
        )
    if not (folder / WEIGHTS).is_file():
        found = ", ".join(sorted(file.name for file in folder.iterdir() if file.name != CONFIG)[:3]) or "nothing"
        raise ValueError(f"{str(folder)!r} holds an adapter without {WEIGHTS} (beside {CONFIG} there is {found})")
    if Path(name).is_dir() and Path(name).samefile(folder):
        raise ValueError(f"{str(folder)!r} holds an adapter that names itself as its base model ({CONFIG})")
    try:
        base = base_folder(name)
        check_kind(Path(base))
        check_weights(Path(base))
    except ValueError as error:
        raise ValueError(
            f"the adapter in {str(folder)!r} needs its base model, which {CONFIG} calls {name!r}: {error}"
        ) from error
    if fp8_format(read_json(Path(base) / "config.json")) is not None or is_packed(base):
        raise ValueError(
            f"the base model {name!r} of the adapter in {str(folder)!r} has FP8 or packed weights, into which "
            "nothing can be merged without rounding; name a base in bfloat16 there"
        )
    return base


def _digest(folder: Path, base: Path) -> str:
    """Return what tells merged models apart: the adapter's content, and which files the base has."""
    digest = hashlib.sha256()
    own = sorted(file for file in folder.iterdir() if file.is_file())
    for file in (*own, base / "config.json"):
        digest.update(f"{file.name} {file.stat().st_size}\n".encode())
        with file.open("rb") as stream:
            while part := stream.read(1 << 20):
                digest.update(part)
    for file in weight_files(base):
        stat = file.resolve().stat()
        digest.update(f"{file.resolve()} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:32]


def _merge(folder: Path, base: Path) -> Any:
    """Return the merged network, on the CPU."""
    try:
        import peft
    except ImportError as error:
        raise ValueError(
            f"{str(folder)!r} holds an adapter, and PEFT, which merges it, is not installed: "
            "pip install 'dray[adapters]'"
        ) from error
    try:
        network = AutoModelForCausalLM.from_pretrained(
            base, dtype="auto", use_safetensors=True, trust_remote_code=False
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PEFT's notes on layers; what matters is checked below
            adapted = peft.get_peft_model(network, peft.LoraConfig.from_pretrained(str(folder)))
        stored = load_file(folder / WEIGHTS)
        wanted = peft.get_peft_model_state_dict(adapted, save_embedding_layers=False)
        _compare(folder, {name: tuple(each.shape) for name, each in stored.items()}, wanted)
        if odd := sorted(name for name, each in stored.items() if not each.is_floating_point()):
            raise ValueError(f"{odd[0]} has the type {stored[odd[0]].dtype}; expected floating-point numbers")
        peft.set_peft_model_state_dict(adapted, stored)
        return adapted.merge_and_unload(safe_merge=True)  # which raises where a merged weight is not finite
    except (ValueError, KeyError, TypeError, RuntimeError, OSError, ImportError, SafetensorError) as error:
        said = " ".join(str(error).split())[:400]
        raise ValueError(f"the adapter in {str(folder)!r} cannot be merged into {str(base)!r}: {said}") from error


def _compare(folder: Path, stored: dict[str, tuple[int, ...]], wanted: dict[str, Any]) -> None:
    """Raise ValueError where the adapter's tensors are not those that its configuration and its base ask for."""
    if missing := sorted(wanted.keys() - stored.keys()):
        raise ValueError(
            f"{WEIGHTS} lacks {len(missing)} tensors, first {missing[0]!r}; is it whole, and the adapter of this base?"
        )
    if surplus := sorted(stored.keys() - wanted.keys()):
        raise ValueError(
            f"{WEIGHTS} has {len(surplus)} tensors for which the base has no place, first {surplus[0]!r}; is it the "
            "adapter of another model?"
        )
    for name, tensor in wanted.items():
        if stored[name] != tuple(tensor.shape):
            raise ValueError(
                f"{name} has shape {list(stored[name])}, and {list(tensor.shape)} fits the base; is it the adapter of "
                "another model?"
            )
