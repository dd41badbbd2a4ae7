"""A GGUF file runs as the model that transformers makes of it; one that it would make another model of is refused."""

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
from decoding.checkpoint import gguf_file, model_files
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
    monkeypatch.setattr(model_files, "HF_HOME", str(tmp_path / "cache"))
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


@pytest.mark.parametrize(
    ("kind", "config", "more"),
    [
        ("F16", LlamaConfig, {"tie_word_embeddings": True}),
        ("BF16", LlamaConfig, {}),
        ("Q4_1", Qwen2Config, {}),
        ("Q8_0", Gemma3TextConfig, {"num_hidden_layers": 7, "head_dim": 32, "sliding_window": 16}),
    ],
)
def test_a_gguf_file_runs_with_the_weights_tokenizer_and_text_of_transformers(
    tmp_path: Path, kind: str, config: type[PretrainedConfig], more: dict[str, object]
) -> None:
    def say_type(writer: gguf.GGUFWriter) -> None:
        writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{kind}"])

    path = _save(tmp_path, kind, config, say_type, **more)
    folder = model_folder(path)
    found = AutoModelForCausalLM.from_pretrained(folder)
    expected = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="tiny.gguf", dtype=torch.float32)
    assert found.dtype == torch.float32
    assert found.state_dict().keys() == expected.state_dict().keys()
    assert all(torch.equal(found.state_dict()[name], weight) for name, weight in expected.state_dict().items())
    of_folder = AutoTokenizer.from_pretrained(folder)
    of_file = AutoTokenizer.from_pretrained(tmp_path, gguf_file="tiny.gguf")
    prompt = of_file("hello world, 12 té<|end|>\n two").input_ids
    assert of_folder("hello world, 12 té<|end|>\n two").input_ids == prompt
    assert of_folder.decode(prompt) == "hello world, 12 té<|end|>\n two"
    assert of_folder.chat_template == CHAT_TEMPLATE
    text = expected.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=24)[0, len(prompt) :].tolist()
    engine = Engine.load(path, None, PLAIN, device="cpu")
    (row,) = engine.generate([prompt], SamplingParams(temperature=0, max_tokens=24))
    assert row.output_token_ids == text
    assert len(set(text)) > 1
    assert engine.target.eos_token_ids == {0}
    assert origin_in_words(folder) == f", dequantized from {kind} to float32"


def test_a_file_is_dequantized_once_for_each_content_and_versions_that_read_it_alike_make_the_same_model(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _save(tmp_path)
    folder = Path(model_folder(path))
    assert list(cache.iterdir()) == [folder]
    made = (folder / "model.safetensors").stat().st_mtime_ns
    assert model_folder(path) == str(folder)
    assert (folder / "model.safetensors").stat().st_mtime_ns == made
    assert origin(str(folder)) == {"sha256": model_files.file_digest(Path(path)), "quantization": "F32"}
    assert origin(str(tmp_path)) is None
    monkeypatch.setattr("transformers.__version__", "99.0")
    after = Path(model_folder(path))
    assert after != folder
    of_both = [{file.name: file.read_bytes() for file in each.iterdir()} for each in (folder, after)]
    assert of_both[0] == of_both[1]
    assert model_folder(_save(tmp_path, "F16")) != str(after)


def _cut(size: int) -> Callable[[Path], Path]:
    def save_and_cut(folder: Path) -> Path:
        path = Path(_save(folder))
        path.write_bytes(path.read_bytes()[:size])
        return path

    return save_and_cut


def _begun_otherwise(folder: Path) -> Path:
    path = Path(_save(folder))
    path.write_bytes(b"PK\x03\x04" + path.read_bytes()[4:])
    return path


def _changed(change: Callable[[gguf.GGUFWriter], None]) -> Callable[[Path], Path]:
    return lambda folder: Path(_save(folder, change=change))


def _of_another_kind(name: str) -> Callable[[Path], Path]:
    return _changed(lambda writer: setattr(writer.kv_data[0]["general.architecture"], "value", name))


@pytest.mark.parametrize(
    ("save", "said"),
    [
        (_begun_otherwise, "is no GGUF file: it begins with b'PK"),
        (_cut(2), "is no GGUF file: it begins with b'GG'"),
        (_cut(20), "is cut off or damaged"),
        (_cut(3000), "is cut off or damaged"),
        (_cut(-64), "is cut off or damaged"),
        (_cut(-1), "is cut off or damaged"),
        (lambda folder: Path(_save(folder)).rename(folder / "a-00001-of-00003.gguf"), "is part 1 of 3 of a GGUF file"),
        (lambda folder: folder / "other.gguf", "there is no such file"),
        (_of_another_kind("whisper"), "architecture whisper is not supported"),
        (_of_another_kind("mamba"), "lacks .* tensors of the model"),
        (_changed(lambda it: it.add_tensor("rope_freqs.weight", torch.ones(4).numpy())), "leave out 'rope_freqs"),
        (lambda folder: Path(_save(folder, left_out="blk.1.ffn_up.weight")), "lacks 1 tensors .*1.mlp.up_proj.weight'"),
        (_changed(lambda it: it.add_rope_scaling_type(gguf.RopeScalingType.YARN)), "rope.scaling.type 'yarn'"),
        (_changed(lambda it: it.add_key_length(16)), "attention.key_length is 16, and transformers takes 8"),
        (_changed(lambda it: it.add_tokenizer_model("bert")), "tokenizer 'bert'"),
    ],
)
def test_what_is_no_whole_file_or_would_become_another_model_is_refused_by_name_and_leaves_nothing(
    tmp_path: Path, cache: Path, save: Callable[[Path], Path], said: str
) -> None:
    path = save(tmp_path)
    with pytest.raises(ValueError, match=said) as refusal:
        model_folder(str(path))
    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert not cache.exists() or not list(cache.iterdir())


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
