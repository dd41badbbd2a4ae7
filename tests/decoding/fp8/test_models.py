"""Models with FP8 weights write the same text whatever drafts and batches, and the probe finds what is wrong."""

from itertools import product

import pytest
import torch

from decoding import Engine, EngineOptions, SamplingParams
from decoding.cache import slot_attention as attention
from decoding.choices import NEED_A_MODEL
from decoding.fp8.linear import Fp8Linear
from decoding.fused.linear import kernel_function
from decoding.network import probe
from decoding.network.invariance import is_invariant
from decoding.network.language_model import LanguageModel
from decoding.network.probe import FP8_TOLERANCE, check_model
from decoding.network.stage import Stage
from tests.decoding.fp8.checkpoints import FAMILIES, KINDS, saved_fp8
from tests.decoding.network.test_stage_features import check
from tests.decoding.tapped import check_tap
from tests.decoding.tiny import outputs, random_prompts

FUSED = ["llama", "llama with biases", "qwen3"]
PUBLISHED = ["blocks", "rows"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_passes_the_probe(family, kind, tmp_path):
    model = LanguageModel.load(saved_fp8(family, tmp_path, kind), "cpu")
    assert check_model(model, family) < FP8_TOLERANCE / 2
    # Rows of the weight are never cut; blocks are where a projection has half a block of outputs.
    fits = family in FUSED or (family == "llama with parts of blocks" and kind == "rows")
    assert (model.fused is not None) == fits
    assert model.packs_rows
    assert not model.runs_rows_apart


def test_a_layer_that_mixes_fp8_and_other_projections_is_not_fused(tmp_path):
    for number, kept in enumerate(("self_attn.v_proj", "mlp.gate_proj")):
        path = saved_fp8("llama", tmp_path / str(number), "blocks", [f"model.layers.1.{kept}"])
        model = LanguageModel.load(path, "cpu")
        assert check_model(model, path) < FP8_TOLERANCE / 2
        assert model.fused is None
    path = saved_fp8("llama", tmp_path / "alone", "blocks", ["model.layers.1.mlp.down_proj"])
    model = LanguageModel.load(path, "cpu")
    assert check_model(model, path) < FP8_TOLERANCE / 2
    assert model.fused is not None


@pytest.mark.parametrize("kind", PUBLISHED)
@pytest.mark.parametrize("family", FUSED)
def test_with_our_kernels_a_token_gets_the_same_logits_bit_for_bit_in_any_batch(family, kind, tmp_path):
    if kernel_function(torch.zeros(2, 2, dtype=torch.bfloat16)) is None:
        pytest.skip("no compiler here, or no AVX2")
    model = LanguageModel.load(saved_fp8(family, tmp_path, kind), "cpu")
    model.speed_up()
    assert model.is_batch_invariant
    assert is_invariant(model)


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_a_tap_changes_no_bit(family, tmp_path):
    path = saved_fp8(family, tmp_path, "blocks")
    model, plain = LanguageModel.load(path, "cpu"), LanguageModel.load(path, "cpu").network
    check_tap(model, plain, (2, 0, 1), FP8_TOLERANCE)
    model.speed_up()
    assert (model.fused is not None) == (family == "llama")
    check_tap(model, plain, (2, 0, 1), FP8_TOLERANCE)
    check_tap(model, plain, (1,), FP8_TOLERANCE)


@pytest.mark.parametrize(("temperature", "kind"), [(0.0, "blocks"), (0.8, "rows")])
def test_the_text_does_not_depend_on_draft_or_batch(temperature, kind, tmp_path):
    if kernel_function(torch.zeros(2, 2, dtype=torch.bfloat16)) is None:
        pytest.skip("no compiler here, or no AVX2")
    target = saved_fp8("qwen3", tmp_path / "target", kind)
    draft = saved_fp8("qwen3", tmp_path / "draft", kind, num_hidden_layers=1)
    params = SamplingParams(max_tokens=16, temperature=temperature, top_p=0.95, ignore_eos=True)
    prompts = random_prompts((5, 1, 17, 9, 3))

    def texts(drafter: str, num_slots: int) -> list[list[int]]:
        options = EngineOptions(drafter=drafter, num_slots=num_slots, draft_length="fixed", num_speculative_tokens=3)
        engine = Engine.load(target, draft if drafter in NEED_A_MODEL else None, options, device="cpu")
        assert engine.target.dtype is torch.bfloat16
        return outputs(engine.generate(prompts, params))

    alone = texts("none", 1)
    for drafter, num_slots in product(["none", "model"], [1, 4]):
        assert texts(drafter, num_slots) == alone


def test_the_engine_writes_what_the_model_itself_writes_token_by_token(tmp_path):
    """The reference: the network's own forward with its FP8 layers, without slots, where its best token is clear."""
    path = saved_fp8("llama", tmp_path, "blocks", initializer_range=0.3)
    (written,) = Engine.load(path, device="cpu").generate(
        random_prompts([7]), SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)
    )
    model, num_same = LanguageModel.load(path, "cpu"), 0
    for length in range(7, len(written.token_ids)):
        best, second = model.plain_logits(written.token_ids[:length]).float().topk(2).values.tolist()
        likeliest = int(model.plain_logits(written.token_ids[:length]).argmax())
        is_clear = best - second > FP8_TOLERANCE / 2 * abs(best)
        num_same += is_clear
        assert likeliest == written.token_ids[length] or not is_clear
    assert num_same > 5


@pytest.mark.parametrize("kind", PUBLISHED)
def test_stages_compute_what_the_whole_model_computes_bit_for_bit(kind, tmp_path):
    path = saved_fp8("llama", tmp_path, kind, num_hidden_layers=3)
    whole, stages = LanguageModel.load(path, "cpu"), [Stage.load(path, index, 2, "cpu") for index in range(2)]
    own = [sum(isinstance(module, Fp8Linear) for module in stage.network.modules()) for stage in stages]
    assert sum(own) == 7 * 3
    assert [stage.dtype for stage in stages] == [torch.bfloat16] * 2
    check(whole, stages, range(4))
    whole.speed_up()
    for stage in stages:
        stage.speed_up()
    assert all(stage.fused is not None for stage in stages)
    check(whole, stages, range(4))


def _causal_but_one_off(*args: torch.Tensor) -> torch.Tensor:
    _, _, queries, keys = args
    return keys <= queries + 1


BROKEN = {
    "a mask that is one off": (
        "slot_mask", lambda real: lambda *a, **k: real(*a, **{**k, "mask_function": _causal_but_one_off}),
    ),
    "positions that are one off": (
        "slot_mask", lambda real: lambda *a, **k: real(*a, **{**k, "q_offset": k["q_offset"] + 1}),
    ),
    "scores that are one percent off": (
        "slot_attention", lambda real: lambda *a, **k: real(*a, **{**k, "scaling": k["scaling"] * 1.01}),
    ),
}  # fmt: skip


@pytest.mark.parametrize("has_miniature", [True, False])
@pytest.mark.parametrize("what", BROKEN)
def test_wrong_attention_is_caught_and_fine_faults_by_the_miniature(what, has_miniature, tmp_path, monkeypatch):
    name, broken = BROKEN[what]
    monkeypatch.setattr(attention, name, broken(getattr(attention, name)))
    if not has_miniature:
        monkeypatch.setattr(probe, "check_lengths", lambda *_, **__: probe.Lengths())
    model = LanguageModel.load(saved_fp8("llama", tmp_path, "blocks"), "cpu")
    try:
        if what == "scores that are one percent off" and not has_miniature:
            check_model(model, "llama")  # too fine for a model with FP8 weights
            return
        found = "in float32, .* does not compute the same" if has_miniature else "does not compute the same"
        with pytest.raises(ValueError, match=found):
            check_model(model, "llama")
    finally:
        monkeypatch.undo()
        attention.install(model.network)
