"""Weights that are replaced in a network that is in use: what it computes is what it computes when it loads them."""

import itertools
from collections.abc import Iterator

import pytest
import torch

from decoding.fused.live_weights import LiveWeights
from decoding.fused.packed_linear import LinearSlice
from decoding.network.language_model import LanguageModel
from decoding.network.probe import check_model
from tests.decoding.families import FAMILIES, family_config
from tests.decoding.fp8.checkpoints import FAMILIES as FP8_FAMILIES
from tests.decoding.fp8.checkpoints import KINDS, save_fp8
from tests.decoding.heads.tiny_heads import VARIANTS, block_config, head_config, random_head
from tests.decoding.tiny import build, llama_config, random_prompts, save

TOKENS = random_prompts([9])[0]
MODELS = {
    "llama": {"hidden_size": 64},
    "with biases": {"hidden_size": 64, "attention_bias": True, "mlp_bias": True},
    "with one weight for both ends": {"hidden_size": 64, "tie_word_embeddings": True},
    "odd sizes": {"hidden_size": 36, "num_attention_heads": 4, "head_dim": 10, "intermediate_size": 50},
}


def _loaded(path: str, dtype: str = "auto") -> LanguageModel:
    model = LanguageModel.load(path, "cpu", dtype)
    check_model(model, path)
    return model


def _logits(model: LanguageModel) -> torch.Tensor:
    model.allocate(1, len(TOKENS))
    model.prefill([0], [TOKENS[:-1]])
    last = torch.tensor([[TOKENS[-1]]])
    return model.forward([len(TOKENS) - 1], last, torch.zeros_like(last)).clone()


def _tensors(network: torch.nn.Module) -> Iterator[torch.Tensor]:
    for module in network.modules():
        held = module.fused if isinstance(module, LinearSlice) else module
        yield from held.parameters(recurse=False)
        if hasattr(held, "_packed") and held._packed.layout is torch.strided:
            yield held._packed


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", MODELS)
def test_a_network_with_replaced_weights_computes_what_it_computes_when_it_loads_them(attention, name, dtype, tmp_path):
    paths = [save(build(llama_config(**MODELS[name]), seed), tmp_path / str(seed)) for seed in (1, 2)]
    model, other = (_loaded(path, dtype) for path in paths)
    before, expected = _logits(model), _logits(other)
    addresses = [tensor.data_ptr() for tensor in _tensors(model.network)]
    own = model.weights.snapshot()
    weights = LanguageModel.load(paths[1], "cpu", dtype).network.state_dict()
    model.weights.put(model.weights.check(weights))
    assert torch.equal(_logits(model), expected)
    assert not torch.equal(before, expected)
    assert [tensor.data_ptr() for tensor in _tensors(model.network)] == addresses, "recordings have these addresses"
    model.weights.put(model.weights.check(own))
    assert torch.equal(_logits(model), before)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_network_of_any_family_computes_with_its_new_weights(name, tmp_path):
    paths = [save(build(family_config(name), seed), tmp_path / str(seed)) for seed in (1, 2)]
    model, other = (_loaded(path) for path in paths)
    model.weights.put(model.weights.check(LanguageModel.load(paths[1], "cpu").network.state_dict()))
    assert torch.equal(_logits(model), _logits(other))


@pytest.mark.parametrize(("name", "kind"), zip(FP8_FAMILIES, itertools.cycle(KINDS), strict=False))
def test_a_network_with_replaced_fp8_weights_computes_what_it_computes_when_it_loads_them(name, kind, tmp_path):
    config = family_config(name, FP8_FAMILIES)
    paths = [save_fp8(build(config, seed), tmp_path / str(seed), kind) for seed in (1, 2)]
    model, other = (_loaded(path) for path in paths)
    before, expected = _logits(model), _logits(other)
    model.weights.put(model.weights.check(LanguageModel.load(paths[1], "cpu").network.state_dict()))
    assert torch.equal(_logits(model), expected)
    assert not torch.equal(before, expected)


HEADS = {**{name: head_config(**flags) for name, flags in VARIANTS.items()}, "dspark": block_config(kind="dspark")}
HEADS["with biases"] = head_config(layer={"attention_bias": True, "mlp_bias": True})
HEADS["a block head with biases"] = block_config(layer={"attention_bias": True})


@pytest.mark.parametrize("name", HEADS)
def test_a_head_with_replaced_weights_guesses_what_it_guesses_when_it_has_them(attention, name):
    config = HEADS[name]
    (head, own), (other, tensors) = random_head(config, 1), random_head(config, 2)
    tokens_1T = torch.tensor([TOKENS])
    features_1TX = torch.randn(1, len(TOKENS), 3 * 32, generator=torch.Generator().manual_seed(0))
    expected = other.guesses(tokens_1T, features_1TX)[0]
    assert head.weights.snapshot().keys() == own.keys()
    before = head.guesses(tokens_1T, features_1TX)[0]
    head.weights.put(head.weights.check(tensors))
    assert torch.equal(head.guesses(tokens_1T, features_1TX)[0], expected)
    assert not torch.equal(before, expected)


def test_one_weight_for_both_ends_of_a_network_is_given_once_or_twice_alike(tmp_path):
    path = save(build(llama_config(tie_word_embeddings=True), 1), tmp_path / "tied")
    weights = _loaded(path).weights
    own = weights.snapshot()
    assert "lm_head.weight" not in own
    both = {**own, "lm_head.weight": own["model.embed_tokens.weight"]}
    assert weights.check(own).keys() == weights.check(both).keys() == both.keys()
    with pytest.raises(ValueError, match="are one weight"):
        weights.check({**own, "lm_head.weight": own["model.embed_tokens.weight"] + 1})
    del own["model.embed_tokens.weight"]
    with pytest.raises(ValueError, match="lacks 2 tensors"):
        weights.check(own)


def test_a_weight_of_another_type_is_rounded_and_must_stay_finite():
    linear = torch.nn.Linear(3, 2, bias=False, dtype=torch.float16)
    weights = LiveWeights(linear)
    assert weights.check({"weight": torch.full((2, 3), 1.5)})["weight"].dtype is torch.float16
    with pytest.raises(ValueError, match=r"not finite numbers in torch\.float16"):
        weights.check({"weight": torch.full((2, 3), 1e6)})
