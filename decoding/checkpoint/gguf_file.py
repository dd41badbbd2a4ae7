"""GGUF files: transformers dequantizes one into a model folder, once; everything that reads a model reads that folder.

So a GGUF file needs little support of its own elsewhere (docs/adr/0053). The folder keeps the file's codes, too, which
linear layers on a CPU multiply as they are (`decoding/codes`, docs/adr/0068). Its text is what `generate` writes for
`from_pretrained(folder, gguf_file=name, dtype=torch.float32)`. What transformers would leave out of the file without a
word, a tensor or a number of its metadata, is refused here: without it the text would be another model's.
"""

import hashlib
import json
import logging
import re
from collections.abc import Callable
from importlib.metadata import version
from math import isclose
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PretrainedConfig

from decoding.checkpoint.model_files import file_digest, kept_folder, read_json
from decoding.codes.gguf_tensors import keep_codes

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_MAGIC = b"GGUF"
_ORIGIN = "gguf.json"  # in a folder that was made of a GGUF file: which one
_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
# Numbers of a GGUF file's metadata, behind the name of its architecture, and the fields of a configuration that say the
# same. transformers reads some of them for some architectures, and otherwise fills in what another model has.
_SAME = {
    "attention.key_length": ("head_dim", "global_head_dim"),
    "attention.layer_norm_epsilon": ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps", "norm_eps"),
    "attention.sliding_window": ("sliding_window",),
    "attn_logit_softcapping": ("attn_logit_softcapping",),
    "expert_used_count": ("num_experts_per_tok",),
    "final_logit_softcapping": ("final_logit_softcapping",),
    "rope.freq_base": ("rope_theta",),
}
_TEXT = " Hello,  world! It's 1234.5 +\t\r\n\n été déjà 你好 Привет 🙂 <s>[INST] <|im_end|> don't f(x)={'a': [1]};  "
_OTHER_MODEL = "its text would be another model's; use the model's safetensors"
_log = logging.getLogger(__name__)


def unpacked_folder(file: Path, check: Callable[[PretrainedConfig, str], None]) -> str:
    """Return the folder of the model in a GGUF file, in float32 and with its tokenizer; make it if it is not there.

    `check` raises a ValueError for a configuration that cannot be run. Folders are kept in Hugging Face's cache
    (`$HF_HOME/dray/gguf`), one for each content of a file and each version of what reads it. Raises ValueError for a
    file that is no GGUF, not whole, a part of one, or not read by transformers.
    """
    with file.open("rb") as stream:
        begins = stream.read(len(_MAGIC))
    if begins != _MAGIC:
        raise ValueError(
            f"{str(file)!r} is no GGUF file: it begins with {begins!r}, not with {_MAGIC!r}; name a model's folder, a "
            "hub name or a GGUF file"
        )
    if part := _PART.search(file.name):
        raise ValueError(
            f"{str(file)!r} is part {int(part[1])} of {int(part[2])} of a GGUF file, and only whole ones are read: "
            "put the parts together with llama-gguf-split --merge"
        )
    try:
        reads = f"transformers {transformers.__version__}, gguf {version('gguf')}, with codes"
    except ImportError as error:
        raise ValueError(
            f"{str(file)!r} is a GGUF file, and the package gguf, which reads it, is not installed: pip install gguf"
        ) from error
    sha256 = file_digest(file)
    name = f"{file.stem}-{hashlib.sha256(f'{sha256} {reads}'.encode()).hexdigest()[:16]}"
    return kept_folder("gguf", name, lambda folder: _unpack(file.absolute(), sha256, folder, check))


def origin(folder: str) -> dict[str, str] | None:
    """Return of which GGUF file a model folder was made (`sha256`, `quantization`); None if it was not."""
    file = Path(folder) / _ORIGIN
    return {str(name): str(value) for name, value in read_json(file).items()} if file.is_file() else None


def origin_in_words(folder: str, *, is_coded: bool = False) -> str:
    """Return what a model folder was made of, to be put behind other words; nothing of one not made of a GGUF file.

    With `is_coded` the file's codes are multiplied as they are.
    """
    made_of = origin(folder)
    if made_of and is_coded:
        return f", weights of {made_of['quantization']} as they are"
    return f", dequantized from {made_of['quantization']} to float32" if made_of else ""


def _unpack(file: Path, sha256: str, folder: Path, check: Callable[[PretrainedConfig, str], None]) -> None:
    import gguf  # here, because it is needed once for each file

    _log.info("dequantizing %s", file)
    of_file: dict[str, Any] = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    try:
        reader = gguf.GGUFReader(file)
        said = {name: field.contents() for name, field in reader.fields.items() if len(field.data) == 1}
    except Exception as error:  # whatever it meets where the file ends too early
        raise ValueError(
            f"{str(file)!r} ({file.stat().st_size:,} bytes) is cut off or damaged: {error}; copy or download it again"
        ) from error
    config = _read(file, AutoConfig, of_file)
    check(config, str(file))
    _compare(file, said, config)
    quantized = transformers.GgufConfig(dequantize=True)
    options = {"dtype": torch.float32, "quantization_config": quantized, "output_loading_info": True}
    network, report = _read(file, AutoModelForCausalLM, of_file | options)
    tokenizer = _read(file, AutoTokenizer, of_file)
    if missing := sorted(report["missing_keys"]):  # transformers has filled them with random numbers
        raise ValueError(f"{str(file)!r} lacks {len(missing)} tensors of the model, first {missing[0]!r}")
    _compare_sizes(file, {tensor.name: int(tensor.n_elements) for tensor in reader.tensors}, network)
    network.save_pretrained(folder)
    keep_codes(folder, file, reader, network.state_dict())
    tokenizer.save_pretrained(folder)
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        fields = read_json(folder / name)
        fields.pop("transformers_version", None)  # so that a run goes on with a newer one that reads the same
        if "tokenizer_class" in fields:
            fields["tokenizer_class"] = "TokenizersBackend"  # which is tokenizer.json as it is
        (folder / name).write_text(json.dumps(fields, indent=2) + "\n")
    ids, saved = tokenizer(_TEXT).input_ids, AutoTokenizer.from_pretrained(folder)
    if saved(_TEXT).input_ids != ids or saved.decode(ids) != tokenizer.decode(ids):  # transformers builds some anew
        raise ValueError(f"the tokenizer in {str(file)!r} is another one once it is saved; use the model's own folder")
    names = {int(kind): kind.name.partition("_")[2] for kind in gguf.LlamaFileType}  # MOSTLY_Q4_1, ALL_F32
    types = " and ".join(sorted({tensor.tensor_type.name for tensor in reader.tensors}))
    made_of = {"sha256": sha256, "quantization": names.get(said.get("general.file_type", -1), types)}
    (folder / _ORIGIN).write_text(json.dumps(made_of) + "\n")


def _read(file: Path, kind: Any, arguments: dict[str, Any]) -> Any:
    """Return what `from_pretrained` of a class of transformers returns; raise a ValueError if it raises."""
    try:
        return kind.from_pretrained(**arguments)
    except Exception as error:  # whatever its readers meet in metadata and tensors
        said = " ".join(str(error).split())[:400]
        raise ValueError(f"transformers cannot read the model in {str(file)!r}: {said}") from error


def _compare_sizes(file: Path, found: dict[str, int], network: "PreTrainedModel") -> None:
    """Raise a ValueError if a network has more or fewer weights than the tensors that were found in a file."""
    taken = sum({weight.data_ptr(): weight.numel() for weight in network.state_dict().values()}.values())
    if (stored := sum(found.values())) != taken:
        others = [name for name in found if not name.startswith(("blk.", "token_embd", "output"))]
        raise ValueError(
            f"{str(file)!r} has {stored:,} weights, and transformers takes {taken:,} of them"
            f"{f' (it may leave out {others[0]!r})' if others else ''}: {_OTHER_MODEL}"
        )


def _compare(file: Path, said: dict[str, Any], config: PretrainedConfig) -> None:
    """Raise a ValueError if a file's metadata say of its model what transformers has not read."""
    ropes = getattr(config, "rope_parameters", None) or {}
    ropes = [each for each in ropes.values() if isinstance(each, dict)] or [ropes]
    fields = [config.to_dict(), *ropes]
    architecture = said["general.architecture"]
    for key, names in _SAME.items():
        value = said.get(f"{architecture}.{key}")
        read = [each[name] for each in fields for name in names if name in each]
        if value is not None and read and not any(isclose(value, each or 0, rel_tol=1e-6) for each in read):
            raise ValueError(
                f"in {str(file)!r} {architecture}.{key} is {value}, and transformers takes {read[0]}: {_OTHER_MODEL}"
            )
    scaling = said.get(f"{architecture}.rope.scaling.type", "none")
    if scaling != "none" and scaling not in [each.get("rope_type") for each in ropes]:
        raise ValueError(
            f"{str(file)!r} has {architecture}.rope.scaling.type {scaling!r}, which transformers drops: {_OTHER_MODEL}"
        )
