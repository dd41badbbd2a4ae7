"""A GGUF file's codes, multiplied as they are: the text of transformers over the dequantized weights, in any batch."""

import logging
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    LlamaConfig,
    Phi3Config,
    PretrainedConfig,
    Qwen2Config,
)

from decoding import Engine, EngineOptions, SamplingParams
from decoding.checkpoint import model_files
from decoding.checkpoint.gguf_file import origin_in_words
from decoding.checkpoint.loading import load_network
from decoding.checkpoint.supported import model_folder
from decoding.codes.gguf_tensors import CodedTensor
from decoding.fused import kernels
from decoding.fused.coded_linear import codes_run
from decoding.fused.linear import PackedEmbedding
from decoding.fused.packed_linear import coded_layers
from decoding.network.language_model import LanguageModel
from decoding.network.probe import check_model
from tests.decoding.codes.random_codes import random_tensor
from tests.decoding.tiny import build, random_prompts
from tests.gguf_files import QuantizationType, save_gguf
from tests.text_pair import save_tokenizer

# Heads of 16, for which all layers run by one call; 2 key-value heads, so that queries and keys are turned differently.
SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 96, "initializer_range": 0.15, "bos_token_id": None,
    "eos_token_id": 0, "pad_token_id": None,
}  # fmt: skip
PER_LAYER = 5  # products: of queries, keys and values together, and o, gate, up, down


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_files, "HF_HOME", str(tmp_path / "cache"))
    if kernels.load_linear(torch.float32) is None:
        pytest.skip("no compiler here, or no AVX2")


def save_coded(
    folder: Path, kind: str, config: type[PretrainedConfig] = LlamaConfig, seed: int = 3, **fields: object
) -> str:
    tokenizer = save_tokenizer(folder / f"tokenizer-{seed}")
    network = build(config(vocab_size=len(tokenizer), **SIZES | fields), seed)
    return save_gguf(network, tokenizer, folder / f"tiny-{seed}.gguf", QuantizationType[kind])


def loaded(path: str, *, is_coded: bool = True) -> LanguageModel:
    model = LanguageModel(*load_network(model_folder(path), "cpu", "auto", in_codes=is_coded))
    check_model(model, path)
    return model


def logits(model: LanguageModel, num_rows: int = 1) -> torch.Tensor:
    prompts = [prompt[: 5 + row % 7] for row, prompt in enumerate(random_prompts([12] * num_rows))]
    if model.cache is None or model.cache.num_slots != num_rows:  # else it stays, and what kernels know of it
        model.allocate(num_rows, 16)
    model.prefill(list(range(num_rows)), prompts)
    tokens = torch.arange(3, 3 + num_rows)[:, None]
    return model.forward([len(prompt) for prompt in prompts], tokens, torch.zeros_like(tokens)).clone()


@pytest.mark.parametrize(
    ("kind", "config", "more"),
    [
        ("Q4_0", LlamaConfig, {}),
        ("Q4_1", LlamaConfig, {"tie_word_embeddings": True}),
        ("Q4_1", Qwen2Config, {}),
        ("Q5_0", LlamaConfig, {}),
        ("Q5_1", LlamaConfig, {"tie_word_embeddings": True}),
        ("Q8_0", Qwen2Config, {"tie_word_embeddings": True}),
    ],
)
def test_the_greedy_text_is_that_of_transformers_over_the_dequantized_weights(tmp_path, kind, config, more):
    path = save_coded(tmp_path, kind, config, **more)
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="tiny-3.gguf", dtype=torch.float32)
    prompts = random_prompts([4, 9, 6, 12, 7])
    options = EngineOptions(num_slots=4, max_model_len=64, drafter="suffix")
    engine = Engine.load(path, None, options, device="cpu")
    assert engine.target.facts() == {"fused": True, "graphs": False, "coded_layers": 3 * PER_LAYER + 1}
    assert engine.target.is_batch_invariant
    rows = list(engine.generate(prompts, SamplingParams(temperature=0, max_tokens=32)))
    for row, prompt in zip(rows, prompts, strict=True):
        written = reference.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=32)[0, len(prompt) :]
        assert row.output_token_ids == written.tolist()
    assert len({token for row in rows for token in row.output_token_ids}) > 5


@pytest.mark.parametrize(("kind", "is_tied"), [("Q4_1", True), ("Q8_0", False)])
def test_logits_are_those_of_float32_weights_bit_for_bit_and_no_float32_copy_is_left(tmp_path, kind, is_tied):
    path = save_coded(tmp_path, kind, tie_word_embeddings=is_tied)
    coded, plain = loaded(path), loaded(path, is_coded=False)
    assert (coded.num_coded_layers, plain.num_coded_layers) == (3 * PER_LAYER + 1, 0)
    for num_rows in (1, 9, 40):
        assert torch.equal(logits(coded, num_rows), logits(plain, num_rows))
    assert isinstance(coded.network.get_input_embeddings(), PackedEmbedding)
    assert all(weight.ndim == 1 for weight in coded.network.parameters()), "norms alone are float32"
    assert coded.num_weight_bytes < 0.4 * plain.num_weight_bytes
    assert coded.num_bytes_read < 0.4 * plain.num_bytes_read


def test_the_scaled_embedding_of_gemma_is_read_from_the_codes_of_the_head(tmp_path):
    more = {"num_hidden_layers": 7, "head_dim": 16, "sliding_window": 16}
    path = save_coded(tmp_path, "Q8_0", Gemma3TextConfig, **more)
    coded, plain = loaded(path), loaded(path, is_coded=False)
    assert isinstance(coded.network.get_input_embeddings(), PackedEmbedding)
    assert coded.facts()["fused"]
    assert torch.equal(logits(coded, 3), logits(plain, 3))


@pytest.mark.parametrize(("config", "num_products"), [(GemmaConfig, 5), (Gemma2Config, 5), (Phi3Config, 4)])
def test_every_family_computes_the_bits_of_float32_weights_also_after_they_are_replaced(tmp_path, config, num_products):
    """Gemma scales its embedding, which is its head; Phi 3 keeps gate and up in one matrix."""

    def model(is_coded: bool) -> LanguageModel:
        network = build(config(vocab_size=64, **SIZES | {"head_dim": 16}), seed=3)
        coded: dict[torch.Tensor, CodedTensor] = {}
        for number, module in enumerate(network.modules()):
            if isinstance(module, torch.nn.Linear | torch.nn.Embedding):
                if module.weight not in coded:  # a head may be the embedding
                    coded[module.weight], numbers = random_tensor(tmp_path, "Q4_1", *module.weight.shape, seed=number)
                    module.weight.data.copy_(numbers)
                if is_coded:
                    module.codes = coded[module.weight]
        found = LanguageModel(network, frozenset())
        check_model(found, "a model in codes")
        return found

    coded, plain = model(True), model(False)
    assert (coded.num_coded_layers, coded.facts()["fused"]) == (3 * num_products + 1, True)
    assert isinstance(coded.network.get_input_embeddings(), PackedEmbedding)
    assert torch.equal(logits(coded, 9), logits(plain, 9))
    other = {name: each * 0.5 for name, each in plain.weights.snapshot().items()}
    for each in (coded, plain):
        each.weights.put(each.weights.check(other))
    assert torch.equal(logits(coded, 9), logits(plain, 9))


def test_a_model_in_codes_computes_with_other_weights_that_it_is_given(tmp_path):
    paths = [save_coded(tmp_path, "Q4_1", seed=seed, tie_word_embeddings=True) for seed in (3, 4)]
    model, other = (loaded(path) for path in paths)
    before = logits(model)
    own = model.weights.snapshot()
    model.weights.put(model.weights.check(load_network(paths[1], "cpu", "float32")[0].state_dict()))
    assert torch.equal(logits(model), logits(other))
    model.weights.put(model.weights.check(own))
    assert torch.equal(logits(model), before)


def test_codes_of_another_file_in_the_kept_folder_are_not_taken(tmp_path, caplog):
    folders = [Path(model_folder(save_coded(tmp_path, "Q4_1", seed=seed))) for seed in (3, 4)]
    expected = logits(loaded(str(folders[0])))
    kept = folders[0] / "codes.gguf"
    kept.unlink()
    kept.write_bytes((folders[1] / "codes.gguf").read_bytes())
    with caplog.at_level(logging.WARNING):
        model = loaded(str(folders[0]))
    assert "has other numbers now" in caplog.text
    assert model.num_coded_layers == 0
    assert torch.equal(logits(model), expected)


def test_what_is_said_of_a_file_follows_from_what_would_run(tmp_path, monkeypatch):
    folder = model_folder(save_coded(tmp_path, "Q4_1"))
    assert codes_run(folder, "cpu", "float32")
    assert not codes_run(folder, "cpu", "bfloat16")
    assert origin_in_words(folder, is_coded=True) == ", weights of F32 and Q4_1 as they are"
    monkeypatch.setenv("DRAY_KERNELS", "off")
    assert not codes_run(folder, "cpu", "float32")
    model = loaded(folder)
    assert model.num_coded_layers == 0
    assert not coded_layers(model.network)
    assert not codes_run(model_folder(save_coded(tmp_path, "F16", seed=5)), "cpu", "float32")
