"""Families beyond Llama's run fused by their description, and one that is wrong in a single thing is not used."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import transformers

from decoding import Engine, EngineOptions, SamplingParams
from decoding.families.description import Description, LayerKind, described
from decoding.families.family import FAMILIES
from decoding.fused import decoder
from decoding.fused.decoder import FusedDecoder
from decoding.fused.linear import kernel_function
from decoding.network import probe
from decoding.network.language_model import LanguageModel
from decoding.network.probe import check_lengths, check_model, fused_tolerance
from tests.decoding.families import EVERY_FUSED, FUSED_ON_CPU, WIDE, YARN, family_config
from tests.decoding.fused.test_decoder import fused_model, network
from tests.decoding.tiny import build, random_prompts, save

# Windows as they are published: longer than the texts of a probe, which therefore measures a miniature.
LONG = {**EVERY_FUSED["gemma3"][1], "sliding_window": 512, "max_position_embeddings": 2048}


def of_family(**changes: object) -> Callable[[Description], Description]:
    return lambda found: replace(found, family=replace(found.family, **changes))


def of_kinds(change: Callable[[LayerKind], LayerKind]) -> Callable[[Description], Description]:
    return lambda found: replace(found, kinds=tuple(map(change, found.kinds)))


def longer(kind: LayerKind, num_positions: int) -> LayerKind:
    return replace(kind, window=kind.window and kind.window + num_positions)


WRONG: dict[str, tuple[str, Callable[[Description], Description]]] = {
    "a norm without its one": ("gemma3", of_family(norm_offset=0.0)),
    "a missing embedding scale": ("granite", lambda found: replace(found, embedding_scale=1.0)),
    "the global base in local layers": ("gemma3", of_kinds(lambda kind: replace(kind, rope=1))),
    "a window that is one longer": ("gemma3", of_kinds(lambda kind: longer(kind, 1))),
    "a window that is one shorter": ("gemma2", of_kinds(lambda kind: longer(kind, -1))),
    "a window in every layer": ("gemma3", of_kinds(lambda kind: replace(kind, window=8))),
    "another gate": ("gemma3", lambda found: replace(found, gate_is_gelu=False)),
    "scores without their cap": ("gemma2", lambda found: replace(found, attention_softcap=0.0)),
    "logits without their cap": ("gemma2", lambda found: replace(found, logits_softcap=0.0)),
    "no norm of what is added": ("olmo2", of_family(after_mlp=None)),
    "heads that are normalized one by one": ("olmo2", of_family(norms_all_heads=False)),
    "no multiplier": ("granite", lambda found: replace(found, residual_multiplier=1.0)),
    "unscaled logits": ("granite", lambda found: replace(found, logits_scale=1.0)),
    "layers that all turn": ("smollm3", of_kinds(lambda kind: replace(kind, rope=0))),
    "halves that turn in place of neighbours": ("cohere", of_family(pairs="halves")),
    "a mean that stays": ("cohere", of_family(norm_is_centered=False)),
    "an MLP that follows the attention": ("cohere", of_family(is_parallel=False)),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_a_description_that_is_wrong_in_one_thing_is_not_used(wrong, attention, monkeypatch, caplog):
    name, change = WRONG[wrong]
    monkeypatch.setattr(decoder, "described", lambda model: change(described(model)))
    model = LanguageModel(network(name), frozenset())
    assert check_model(model, name) < 2e-5
    assert model.fused is None
    assert "transformers' code runs in place of fused layers: " in caplog.text


@pytest.mark.parametrize("wrong", WRONG)
def test_a_miniature_shows_what_a_probe_in_bfloat16_is_too_coarse_to_see(wrong, monkeypatch):
    name, change = WRONG[wrong]
    monkeypatch.setattr(decoder, "described", lambda model: change(described(model)))
    assert not check_lengths(family_config(name, EVERY_FUSED), name, torch.bfloat16).may_fuse


@pytest.mark.parametrize("name", EVERY_FUSED)
def test_a_miniature_of_each_family_runs_by_the_kernels_and_may_be_fused(name, monkeypatch):
    measured = []
    monkeypatch.setattr(probe, "_fused_deviation", lambda model, *_: measured.append(model.is_batch_invariant) or 0.0)
    config = family_config(name, EVERY_FUSED)
    assert check_lengths(config, name, torch.bfloat16).may_fuse
    assert measured == [kernel_function(torch.zeros(2, 2)) is not None]
    monkeypatch.undo()
    assert check_lengths(config, name, torch.bfloat16).may_fuse


@pytest.mark.parametrize("off", [-1, 0, 1])
def test_a_window_longer_than_a_probes_text_is_measured_by_a_miniature(off, monkeypatch):
    change = of_kinds(lambda kind: longer(kind, off))
    monkeypatch.setattr(decoder, "described", lambda model: change(described(model)))
    model = LanguageModel(network("gemma3", {"gemma3": ("Gemma3TextConfig", LONG)}), frozenset())
    assert check_model(model, "gemma3") < 2e-5
    assert (model.fused is None) == (off != 0)


@pytest.mark.parametrize("name", FUSED_ON_CPU)
def test_the_probe_takes_the_fused_layers_of_every_family(name):
    model = LanguageModel(network(name), frozenset())
    assert check_model(model, name) < 5e-6
    assert model.fused is not None
    assert model.is_batch_invariant == (kernel_function(torch.zeros(2, 2)) is not None)


@pytest.mark.parametrize("name", FUSED_ON_CPU)
def test_a_long_row_through_windows_and_caps_is_that_of_transformers(name, attention):
    plain = network(name)
    tokens = torch.tensor(random_prompts((90,), seed=7))
    expected_TV = plain(input_ids=tokens, use_cache=False).logits[0, 40:].detach()
    model = fused_model(plain)
    model.allocate(2, 95)
    model.prefill([1], tokens[:, :40].tolist())
    found = [
        model.forward([start], tokens[:, start : start + 5], torch.arange(5)[None], slots=[1])[0]
        for start in range(40, 90, 5)
    ]
    assert float((torch.cat(found) - expected_TV).abs().max()) <= 1e-5 * float(expected_TV.abs().max())


@pytest.mark.parametrize("name", ["gemma2", "gemma3", "phi3, three quarters turned, window", "cohere2", "granite"])
def test_in_bfloat16_drafts_and_batches_leave_the_text_as_it_is(name, tmp_path):
    if kernel_function(torch.zeros(2, 2, dtype=torch.bfloat16)) is None:
        pytest.skip("no compiler here, or no AVX2")
    target, draft = (save(network(name), tmp_path / each) for each in ("target", "draft"))
    prompts, params = random_prompts((5, 1, 17, 9, 40)), SamplingParams(max_tokens=24, temperature=0.8, ignore_eos=True)

    def texts(drafter: str, **options: object) -> list[list[int]]:
        drafted_by = draft if drafter == "model" else None
        engine = Engine.load(
            target, drafted_by, EngineOptions(drafter=drafter, **options), device="cpu", dtype="bfloat16"
        )
        assert engine.target.is_batch_invariant
        return [s.output_token_ids for s in engine.generate(prompts, params)]

    alone = texts("none", num_slots=1, max_prefill_tokens=1000)
    assert texts("model", num_slots=4, draft_length="fixed", num_speculative_tokens=3, max_prefill_tokens=7) == alone
    assert texts("suffix", num_slots=12) == alone


UNKNOWN = {
    "Llama with a window, which its code ignores": ("LlamaConfig", {**WIDE, "sliding_window": 8}),
    "tables that change with the length": (
        "GemmaConfig",
        {**WIDE, "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
    ),
    "a text that is seen from both sides": (
        "Gemma3TextConfig",
        {**EVERY_FUSED["gemma3"][1], "use_bidirectional_attention": True},
    ),
}


# What a family's code reads of a configuration that says more, or says it otherwise.
READ = {
    "another activation in a field that the family's code does not read": (
        "GemmaConfig",
        {**WIDE, "head_dim": 32, "hidden_act": "silu", "hidden_activation": "gelu_pytorch_tanh"},
    ),
    "positions of more layers than there are": ("SmolLM3Config", {**WIDE, "no_rope_layers": [1, 0, 1, 1, 0]}),
    "no layer that turns": ("SmolLM3Config", {**WIDE, "no_rope_layers": [0, 0, 0]}),
    "windows of layers without positions": (
        "SmolLM3Config",
        {**WIDE, "no_rope_layers": [1, 0, 1], "use_sliding_window": True, "sliding_window": 8},
    ),
    "full attention only, where nothing turns": (
        "Cohere2Config",
        {**WIDE, "sliding_window": 8, "layer_types": ["full_attention"] * 3, "attention_bias": True},
    ),
    "Granite with biases everywhere": ("GraniteConfig", {**WIDE, "attention_bias": True, "mlp_bias": True}),
    "yarn in one kind of layers": (
        "Olmo3Config",
        {
            **EVERY_FUSED["olmo3"][1],
            "rope_parameters": {
                "full_attention": {**YARN, "attention_factor": 1.2},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
}


@pytest.mark.parametrize("what", READ)
def test_a_configuration_is_read_as_the_familys_code_reads_it(what, attention):
    model = LanguageModel(network(what, READ), frozenset())
    assert check_model(model, what) < 5e-6
    assert model.fused is not None


@pytest.mark.parametrize(
    ("class_name", "settings"),
    [("GemmaConfig", {"hidden_size": 96}), ("GraniteConfig", {"embedding_multiplier": 10.3})],
)
def test_embeddings_in_bfloat16_have_the_bits_of_transformers(class_name, settings):
    """Gemma's code rounds its scale to bfloat16 before it multiplies, and Granite's does not."""
    config = getattr(transformers, class_name)(**{**WIDE, **settings})
    plain, tokens = build(config, seed=3).to(torch.bfloat16), torch.arange(20)
    expected = plain(input_ids=tokens[None], output_hidden_states=True).hidden_states[0][0]
    assert torch.equal(fused_model(plain).fused._embedded(tokens), expected)


@pytest.mark.parametrize("what", UNKNOWN)
def test_what_a_description_does_not_know_is_left_to_transformers(what):
    class_name, settings = UNKNOWN[what]
    assert not FusedDecoder.fits(build(getattr(transformers, class_name)(**settings), seed=3))


def test_a_layer_type_that_is_not_known_is_left_to_transformers():
    model = network("gemma3")
    assert FusedDecoder.fits(model)
    model.config.layer_types = ["sliding_attention", "chunked_attention", "sliding_attention"]
    assert not FusedDecoder.fits(model)


@pytest.mark.parametrize("name", EVERY_FUSED)
def test_on_a_gpu_only_what_its_kernels_take_is_fused(name, monkeypatch):
    monkeypatch.setattr(decoder, "kernels_run_on", lambda device: True)
    assert FusedDecoder.fits(network(name)) == (name not in FUSED_ON_CPU)


def test_each_family_of_the_table_is_tested():
    assert {family_config(name, EVERY_FUSED).model_type for name in EVERY_FUSED} == FAMILIES.keys()


@pytest.mark.parametrize(("times", "is_used"), [(1.9, True), (2.1, False)])
def test_fused_layers_may_deviate_twice_as_much_as_transformers_own_code(times, is_used, monkeypatch):
    """Gemma 3 270M multiplies last bits: transformers' own code deviates by more than 1e-5 on the slots."""
    model = LanguageModel(network("gemma3"), frozenset())
    monkeypatch.setattr(probe, "_checked", lambda *_: 1e-4)
    monkeypatch.setattr(probe, "_fused_deviation", lambda *_: times * 1e-4)
    check_model(model, "gemma3")
    assert (model.fused is not None) == is_used


def test_fused_layers_are_not_used_where_the_check_after_them_would_refuse_the_model():
    assert fused_tolerance(torch.float32, 1.9e-4) == probe.TOLERANCE[torch.float32]
