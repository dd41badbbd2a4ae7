"""The margin of close calls follows the deviation that the probe measured for this model."""

import pytest
import torch

from decoding import SamplingParams, Sequence
from decoding.network.language_model import LanguageModel
from decoding.network.probe import check_model
from decoding.network.reference import Reference
from decoding.sampling.rules import close_call_margin
from tests.decoding.tiny import build, engine_over, llama_config, num_rechecks, outputs, random_prompts, run, save

PROMPTS = random_prompts([5, 1, 9, 3, 14, 2, 6, 4] * 4, seed=8)


@pytest.fixture(scope="module")
def coarse_path(tmp_path_factory) -> str:
    """Save a model whose logits are differences of large numbers: they have few digits, and round with the batch."""
    network = build(llama_config(), seed=1)
    half, head = 16, network.lm_head.weight
    with torch.no_grad():  # the second half of each hidden state repeats the first one
        network.model.embed_tokens.weight[:, half:] = network.model.embed_tokens.weight[:, :half]
        for layer in network.model.layers:
            for linear in (layer.self_attn.o_proj, layer.mlp.down_proj):
                linear.weight[half:] = linear.weight[:half]
        large = 100 * torch.randn(len(head), half, generator=torch.Generator().manual_seed(0))
        head[:, :half] += large
        head[:, half:] -= large
    return save(network, tmp_path_factory.mktemp("coarse"))


@pytest.fixture(scope="module")
def coarse(coarse_path) -> LanguageModel:
    model = LanguageModel.load(coarse_path, "cpu")
    assert check_model(model, coarse_path) > 1e-5, "it rounds like any other model, so nothing is put to the test"
    return model


def _sequences() -> list[Sequence]:
    params = SamplingParams(temperature=1.0, max_tokens=24)
    return [Sequence.create(prompt, params, row=row) for row, prompt in enumerate(PROMPTS)]


@pytest.mark.parametrize("num_slots", [1, 3, 16])
def test_a_model_that_rounds_coarsely_writes_the_text_of_the_reference(coarse, coarse_path, num_slots):
    expected = Reference.load(coarse_path, "cpu", "float32", close_call=coarse.close_call).write(_sequences())
    engine = engine_over(coarse, drafter="ngram", num_slots=num_slots)
    assert outputs(run(engine, _sequences())) == outputs(expected)
    assert num_rechecks(engine) > 0


def test_the_margin_is_several_times_what_the_batch_moves_two_logits_by(coarse):
    prompts = random_prompts(range(2, 62))
    coarse.allocate(len(prompts), 64)
    slots = range(len(prompts))
    coarse.prefill(slots, [prompt[:-1] for prompt in prompts])
    newest_B1 = torch.tensor([[prompt[-1]] for prompt in prompts])
    found_B1V = coarse.forward([len(prompt) - 1 for prompt in prompts], newest_B1, torch.zeros_like(newest_B1), slots)
    alone_BV = torch.stack([coarse.plain_logits(prompt) for prompt in prompts])
    moved = 2 * (found_B1V[:, 0] - alone_BV).abs().max()
    assert 5 * moved < coarse.close_call, "a margin ten times smaller would be too small"
    assert coarse.close_call < 100 * moved, "rows are scored again that no rounding can change"


def test_other_models_keep_the_margin_of_1e_4(models):
    check_model(models.target, "target")
    assert models.target.close_call == 1e-4


def test_numbers_that_are_not_float32_have_no_margin():
    assert close_call_margin(torch.bfloat16, 1e-2) == 0.0
