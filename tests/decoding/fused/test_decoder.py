"""A fused network computes what transformers' own code computes, whichever attention runs, and is left callable."""

import copy

import pytest
import torch
import transformers

from decoding import Engine, EngineOptions, SamplingParams
from decoding.choices import NEED_A_MODEL
from decoding.families.rotary import RotaryTables
from decoding.fused import attention as fused_attention
from decoding.fused.decoder import FusedDecoder
from decoding.fused.linear import kernel_function
from decoding.fused.packed_linear import Packed
from decoding.network.language_model import LanguageModel
from decoding.network.probe import check_model
from tests.decoding.families import EVERY_FUSED, WIDE, family_network
from tests.decoding.tiny import build, llama_config, random_prompts, save

ZERO = torch.zeros(1, 1, dtype=torch.int64)
CUT = {"temperature": 0.8, "top_p": 0.9}
NOT_FUSED = {
    "a product whose halves share a block": ("Phi3Config", {**WIDE, "intermediate_size": 80}),
    "norms of queries with the mean taken off": ("CohereConfig", {**WIDE, "use_qk_norm": True}),
    "another activation": ("LlamaConfig", {**WIDE, "hidden_act": "gelu"}),
    "another family": ("StableLmConfig", WIDE),
    "experts": ("MixtralConfig", {**WIDE, "num_local_experts": 2}),
}


def network(name: str, table: dict[str, tuple[str, dict]] = EVERY_FUSED) -> transformers.PreTrainedModel:
    model = family_network(name, table)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():  # norms of ones and biases of zeros hide mistakes
            if "norm" in parameter_name or "bias" in parameter_name:
                parameter += 0.3 * torch.randn_like(parameter)
    return model


def fused_model(plain: transformers.PreTrainedModel) -> LanguageModel:
    model = LanguageModel(plain, frozenset())
    model.speed_up()
    return model


def test_each_way_is_really_taken(attention, monkeypatch):
    calls = []
    for name in ("KernelAttention", "TorchAttention"):
        kind = getattr(fused_attention, name)
        call = kind.__call__
        monkeypatch.setattr(kind, "__call__", lambda *a, call=call, name=name, **k: calls.append(name) or call(*a, **k))
    model = fused_model(network("llama"))
    ragged_logits(model)
    if attention == "kernels" and kernel_function(torch.zeros(2, 2)) is not None:
        assert calls == []
        assert model.is_batch_invariant
    else:
        assert set(calls) == {"TorchAttention" if attention == "torch" else "KernelAttention"}
        assert not model.is_batch_invariant


def ragged_logits(model: LanguageModel) -> list[torch.Tensor]:
    """Logits of three ragged rows in scattered slots: after a prefill, after a rollback, packed."""
    prompts = random_prompts((20, 1, 9), seed=1)
    slots = [2, 0, 3]
    model.allocate(4, 60)
    model.prefill(slots, prompts)
    tokens_BT = torch.randint(48, (3, 5), generator=torch.Generator().manual_seed(2))
    every_BT = torch.arange(5).expand(3, -1)
    starts = [20, 1, 9]
    whole = model.forward(starts, tokens_BT, every_BT, slots=slots)
    rolled_back = model.forward([18, 0, 7], tokens_BT.flip(1), every_BT[:, 1:3], slots=slots)
    packed = model.forward([18, 0, 7], tokens_BT, every_BT, slots=slots, lengths=[2, 5, 1])
    return [whole, rolled_back, packed[0, :2], packed[1], packed[2, :1]]


def flat(logits: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([part.flatten().float() for part in logits])


def fused_and_plain(plain: transformers.PreTrainedModel) -> tuple[torch.Tensor, torch.Tensor]:
    """Return all ragged logits of the network when it is fused, and when transformers' own code runs."""
    fused = fused_model(copy.deepcopy(plain))
    assert fused.fused is not None
    return flat(ragged_logits(fused)), flat(ragged_logits(LanguageModel(plain, frozenset())))


@pytest.mark.parametrize("name", EVERY_FUSED)
def test_a_fused_network_computes_what_transformers_computes(name, attention):
    fused, plain = fused_and_plain(network(name))
    assert float((fused - plain).abs().max()) <= 2e-5 * float(plain.abs().max())


# In bfloat16 two correct ways to compute the same logits differ by the sum of their rounding errors, and by how much
# depends on the processor. What a fused network owes is to round no worse than transformers: measured against the same
# weights in float32, its root mean square error is at most that of transformers' own code. (It is 0.7 to 1.07 of it on
# every processor seen, since fused operations round less often.) The rest is for how well 1,400 logits estimate it.
_ROUNDING = 1.25


@pytest.mark.parametrize("name", EVERY_FUSED)
def test_a_fused_network_in_bfloat16_rounds_no_worse_than_transformers(name, attention):
    plain = network(name).to(torch.bfloat16)
    exact = flat(ragged_logits(LanguageModel(copy.deepcopy(plain).float(), frozenset())))
    fused_error, plain_error = (float((found - exact).square().mean().sqrt()) for found in fused_and_plain(plain))
    assert fused_error <= _ROUNDING * plain_error


@pytest.mark.parametrize("name", NOT_FUSED)
def test_other_networks_run_as_they_were_written(name):
    model = LanguageModel(network(name, NOT_FUSED), frozenset())
    assert check_model(model, name) < 1e-5
    assert model.fused is None
    assert any(isinstance(module, Packed) for module in model.network.modules())


def test_a_network_with_an_unknown_parameter_is_not_fused():
    llama = network("llama")
    llama.model.layers[1].mlp.register_parameter("temperature", torch.nn.Parameter(torch.ones(1)))
    assert not FusedDecoder.fits(llama)


def test_fused_layers_that_deviate_are_not_used(monkeypatch, caplog):
    model = LanguageModel(network("llama"), frozenset())
    reach = RotaryTables.reach

    def off_by_one(self, num_positions):
        return tuple(table_PD[1:] * 1.01 for table_PD in reach(self, num_positions + 1))

    monkeypatch.setattr(RotaryTables, "reach", off_by_one)
    assert check_model(model, "llama") < 1e-5
    assert model.fused is None
    assert "transformers' code runs in place of fused layers: " in caplog.text


def test_a_fused_network_that_raises_is_not_used(monkeypatch):
    def fails(*_: object) -> None:
        raise RuntimeError("no such shape")

    model = LanguageModel(network("llama"), frozenset())
    monkeypatch.setattr(FusedDecoder, "forward", fails)
    assert check_model(model, "llama") < 1e-5
    assert model.fused is None
    assert model.packs_rows


@pytest.mark.usefixtures("_products")
def test_two_threads_compute_what_one_computes_bit_for_bit():
    model = fused_model(network("qwen3").to(torch.bfloat16))

    def logits(num_threads: int) -> list[torch.Tensor]:
        torch.set_num_threads(num_threads)
        try:
            return ragged_logits(model)
        finally:
            torch.set_num_threads(1)

    for found, expected in zip(logits(2), logits(1), strict=True):
        if model.is_batch_invariant:
            assert torch.equal(found, expected)


@pytest.mark.usefixtures("_products")
@pytest.mark.parametrize(
    ("drafter", "sampling"),
    [("model", {"temperature": 0.0}), ("model", CUT), ("suffix", {"temperature": 1.0}), ("hybrid", CUT)],
)
def test_in_bfloat16_our_kernels_write_the_targets_text_whatever_drafts_and_batches(drafter, sampling, tmp_path):
    if kernel_function(torch.zeros(2, 2, dtype=torch.bfloat16)) is None:
        pytest.skip("no compiler here, or no AVX2")
    target = save(build(llama_config(hidden_size=64, num_hidden_layers=3), seed=1), tmp_path / "target")
    draft = save(build(llama_config(hidden_size=64, num_hidden_layers=1), seed=1), tmp_path / "draft")
    params = SamplingParams(max_tokens=30, n=2, ignore_eos=True, **sampling)
    prompts = random_prompts((5, 1, 17, 9, 3, 40))

    def texts(**options: object) -> list[list[int]]:
        drafted_by = draft if options["drafter"] in NEED_A_MODEL else None
        engine = Engine.load(target, drafted_by, EngineOptions(**options), device="cpu", dtype="bfloat16")
        assert engine.target.is_batch_invariant
        return [s.output_token_ids for s in engine.generate(prompts, params)]

    alone = texts(num_slots=1, drafter="none", max_prefill_tokens=1000)
    for options in (
        {"num_slots": 1, "draft_length": "fixed"},
        {"num_slots": 5, "draft_length": "fixed", "num_speculative_tokens": 3, "max_prefill_tokens": 7},
        {"num_slots": 12, "draft_length": "adaptive"},
    ):
        assert texts(drafter=drafter, **options) == alone


def test_what_is_not_finite_in_one_row_stays_there(attention):
    model = fused_model(network("llama"))
    model.allocate(3, 40)
    model.prefill([0, 1, 2], random_prompts((6, 6, 6)))
    with torch.inference_mode():
        for layer in model.cache.layers:
            for stored_SPHD in layer.stored():
                stored_SPHD[1] = float("nan")
    logits_BJV = model.forward([6, 6, 6], torch.tensor([[1], [2], [3]]), torch.zeros(3, 1, dtype=torch.int64))
    assert logits_BJV.isfinite().all(-1).all(-1).tolist() == [True, False, True]


@pytest.mark.usefixtures("_products")
@pytest.mark.parametrize("name", EVERY_FUSED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_with_our_kernels_a_token_gets_the_same_logits_bit_for_bit_however_its_row_was_cut(name, dtype):
    """What makes the text independent of batch, draft and prefix sharing in bfloat16, too."""
    model = fused_model(network(name).to(dtype))
    if not model.is_batch_invariant:
        assert kernel_function(torch.zeros(2, 2, dtype=dtype)) is None or name == "small heads"  # left to torch
        pytest.skip("no compiler here, or no AVX2, or other heads")
    tokens = random_prompts((80,), seed=4)[0]
    others = random_prompts((70, 33, 1), seed=5)
    model.allocate(4, 90)
    alone = [model.forward([t], torch.tensor([[token]]), ZERO)[0, 0] for t, token in enumerate(tokens)]
    expected_TV = torch.stack(alone)
    every_1T = torch.arange(80)[None]

    def check(found_TV: torch.Tensor, first: int = 0) -> None:
        assert torch.equal(found_TV, expected_TV[first : first + len(found_TV)])

    check(model.forward([0], torch.tensor([tokens]), every_1T, slots=[3])[0])
    model.allocate(4, 90)
    model.prefill([2, 0, 3, 1], [tokens[:61], *others])  # ragged, in another slot
    check(model.forward([61], torch.tensor([tokens[61:]]), every_1T[:, :19], slots=[2])[0], 61)
    model.prefill([2], [tokens[50:61]], [50])  # in two pieces
    starts, junk = [70, 50, 33], torch.randint(48, (3, 9), generator=torch.Generator().manual_seed(6))
    rows_BT = torch.cat([junk[:1], torch.tensor([tokens[50:59]]), junk[2:]])
    every_BT = torch.arange(9).expand(3, -1)
    check(model.forward(starts, rows_BT, every_BT, slots=[0, 2, 3])[1], 50)
    check(model.forward(starts, rows_BT, every_BT, slots=[0, 2, 3], lengths=[1, 5, 9])[1, :5], 50)
