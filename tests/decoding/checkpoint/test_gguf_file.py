"""A GGUF file runs as the model that transformers makes of it; one that it would make another model of is refused."""

import json
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import gguf
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Gemma3TextConfig,
    LlamaConfig,
    PretrainedConfig,
    Qwen2Config,
)

from decoding import Engine, SamplingParams
from decoding.checkpoint import gguf_file, kept_folder
from decoding.checkpoint.gguf_file import origin, origin_in_words
from decoding.checkpoint.supported import load_config, model_folder
from decoding.engine.options import EngineOptions
from tests.decoding.tiny import build
from tests.gguf_files import QuantizationType, save_gguf
from tests.text_pair import CHAT_TEMPLATE, save_tokenizer

_SIZES = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 96, "initializer_range": 0.15, "bos_token_id": None,
    "eos_token_id": 0, "pad_token_id": None,
}  # fmt: skip
PLAIN = EngineOptions(num_slots=2, max_model_len=64, drafter="none")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of models that were made of others, empty."""
    monkeypatch.setattr(kept_folder, "HF_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "dray" / "gguf"


def _save(
    folder: Path,
    kind: str = "F32",
    config: type[PretrainedConfig] = LlamaConfig,
    change: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
    left_out: str | None = None,
    **fields: object,
) -> str:
    tokenizer = save_tokenizer(folder / "tokenizer")
    network = build(config(vocab_size=len(tokenizer), **_SIZES | fields), seed=3)
    return save_gguf(network, tokenizer, folder / "tiny.gguf", QuantizationType[kind], change, left_out)


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_1"])
def test_a_gguf_file_writes_what_generate_of_transformers_writes(tmp_path: Path, kind: str) -> None:
    path = _save(tmp_path, kind, change=lambda writer: writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{kind}"]))
    network = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="tiny.gguf", dtype=torch.float32)
    prompt = AutoTokenizer.from_pretrained(tmp_path, gguf_file="tiny.gguf")("hello small text").input_ids
    expected = network.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=24)[0, len(prompt) :].tolist()
    engine = Engine.load(path, None, PLAIN, device="cpu")
    (found,) = engine.generate([prompt], SamplingParams(temperature=0, max_tokens=24))
    assert found.output_token_ids == expected
    assert len(set(expected)) > 3
    assert origin_in_words(model_folder(path)) == f", dequantized from {kind} to float32"


@pytest.mark.parametrize(
    ("config", "more"),
    [
        (LlamaConfig, {"tie_word_embeddings": True}),
        (Qwen2Config, {}),
        (Gemma3TextConfig, {"num_hidden_layers": 7, "head_dim": 32, "sliding_window": 16}),
    ],
)
def test_the_folder_of_a_file_has_the_weights_and_the_tokenizer_that_transformers_reads(
    tmp_path: Path, config: type[PretrainedConfig], more: dict[str, object]
) -> None:
    folder = model_folder(_save(tmp_path, "Q8_0", config, **more))
    found = AutoModelForCausalLM.from_pretrained(folder)
    expected = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="tiny.gguf", dtype=torch.float32)
    assert found.dtype == torch.float32
    assert found.state_dict().keys() == expected.state_dict().keys()
    assert all(torch.equal(found.state_dict()[name], weight) for name, weight in expected.state_dict().items())
    assert found.generation_config.eos_token_id == expected.generation_config.eos_token_id == 0
    of_folder = AutoTokenizer.from_pretrained(folder)
    of_file = AutoTokenizer.from_pretrained(tmp_path, gguf_file="tiny.gguf")
    text = "hello world, 12 té<|end|>\n two"
    assert of_folder(text).input_ids == of_file(text).input_ids
    assert of_folder.decode(of_file(text).input_ids) == text
    assert of_folder.chat_template == CHAT_TEMPLATE


def test_a_file_is_dequantized_once_for_each_content(tmp_path: Path, cache: Path) -> None:
    path = _save(tmp_path)
    folder = Path(model_folder(path))
    assert list(cache.iterdir()) == [folder]
    made = (folder / "model.safetensors").stat().st_mtime_ns
    assert model_folder(path) == str(folder)
    assert (folder / "model.safetensors").stat().st_mtime_ns == made
    assert origin(str(folder)) == {"sha256": gguf_file._sha256(path, 0, 0), "quantization": "F32"}
    assert origin(str(tmp_path)) is None
    assert model_folder(_save(tmp_path, "F16")) != str(folder)


def test_versions_that_read_a_file_alike_make_the_same_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _save(tmp_path)
    before = Path(model_folder(path))
    monkeypatch.setattr("transformers.__version__", "99.0")
    after = Path(model_folder(path))
    assert before != after
    assert "transformers_version" not in json.loads((after / "config.json").read_text())
    assert {file.name: file.read_bytes() for file in before.iterdir()} == {
        file.name: file.read_bytes() for file in after.iterdir()
    }


def _cut(size: int) -> Callable[[Path], Path]:
    def cut(path: Path) -> Path:
        content = path.read_bytes()
        path.write_bytes(content[:size] if size > 0 else content[: len(content) + size])
        return path

    return cut


def _begin_otherwise(path: Path) -> Path:
    path.write_bytes(b"PK\x03\x04" + path.read_bytes()[4:])
    return path


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_begin_otherwise, "is no GGUF file: it begins with b'PK"),
        (_cut(2), "is no GGUF file: it begins with b'GG'"),
        (_cut(20), "is cut off or damaged"),
        (_cut(3000), "is cut off or damaged"),
        (_cut(-64), "is cut off or damaged"),
        (_cut(-1), "is cut off or damaged"),
        (lambda path: path.rename(path.parent / "tiny-00001-of-00003.gguf"), "is part 1 of 3 of a GGUF file"),
        (lambda path: path.parent / "other.gguf", "there is no such file"),
    ],
)
def test_a_file_that_is_no_whole_gguf_file_is_refused_by_name(
    tmp_path: Path, cache: Path, damage: Callable[[Path], Path], said: str
) -> None:
    path = damage(Path(_save(tmp_path)))
    with pytest.raises(ValueError, match=said) as refusal:
        model_folder(str(path))
    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert not cache.exists() or not list(cache.iterdir())


def _of_another_kind(name: str) -> Callable[[gguf.GGUFWriter], None]:
    def change(writer: gguf.GGUFWriter) -> None:
        writer.kv_data[0]["general.architecture"].value = name

    return change


@pytest.mark.parametrize(
    ("change", "left_out", "said"),
    [
        (_of_another_kind("whisper"), None, "architecture whisper is not supported"),
        (_of_another_kind("mamba"), None, "mamba.*cannot be rolled back"),
        (lambda writer: writer.add_tensor("rope_freqs.weight", torch.ones(4).numpy()), None, "leave out 'rope_freqs"),
        (None, "blk.1.ffn_up.weight", "lacks 1 tensors of the model, first 'model.layers.1.mlp.up_proj.weight'"),
        (lambda writer: writer.add_rope_scaling_type(gguf.RopeScalingType.YARN), None, "rope.scaling.type 'yarn'"),
        (lambda writer: writer.add_key_length(16), None, "llama.attention.key_length is 16, and transformers takes 8"),
        (lambda writer: writer.add_tokenizer_model("bert"), None, "tokenizer 'bert'"),
    ],
)
def test_what_transformers_would_make_another_model_of_is_refused(
    tmp_path: Path, change: Callable[[gguf.GGUFWriter], None] | None, left_out: str | None, said: str
) -> None:
    path = _save(tmp_path, change=change or (lambda writer: None), left_out=left_out)
    with pytest.raises(ValueError, match=said) as refusal:
        model_folder(path)
    assert path in str(refusal.value)


def test_without_the_package_that_reads_it_a_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    path = _save(tmp_path)
    monkeypatch.setattr(gguf_file, "version", version)
    with pytest.raises(ValueError, match="the package gguf, which reads it, is not installed: pip install gguf"):
        model_folder(path)


def test_a_folder_that_holds_gguf_files_alone_is_refused_with_advice_to_name_one(tmp_path: Path) -> None:
    _save(tmp_path)
    with pytest.raises(ValueError, match=r"no config\.json, but tiny\.gguf: name that file"):
        load_config(str(tmp_path))
