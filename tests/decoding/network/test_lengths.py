"""Models that compute otherwise beyond some length are exact or refused, however short the probe's own text is."""

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, PretrainedConfig

from decoding import SamplingParams
from decoding.cache.kv_cache import KVCache
from decoding.checkpoint import miniature
from decoding.network import probe
from decoding.network.language_model import LanguageModel
from decoding.network.probe import check_lengths, check_model
from tests.decoding.families import GROUPED
from tests.decoding.tiny import build, engine_over, generated, llama_config, outputs, random_prompts, save

LLAMA_4 = {**GROUPED, "num_hidden_layers": 4, "head_dim": 8, "intermediate_size_mlp": 48, "num_local_experts": 2}
DOGE = {**GROUPED, "keep_window_size": 2048, "max_position_embeddings": 4096}


def _llama_4(floor_scale: int) -> PretrainedConfig:
    sizes = {"max_position_embeddings": 20_000, "attention_chunk_size": 12, "attn_scale": 2.0}
    return transformers.Llama4TextConfig(**{**LLAMA_4, **sizes, "floor_scale": floor_scale})


@pytest.mark.parametrize(
    ("floor_scale", "longest"),
    [(64, 100), pytest.param(8192, 8300, marks=pytest.mark.slow)],
    ids=["short", "as published"],
)
def test_a_short_row_beside_one_beyond_the_scale_is_written_as_alone(tmp_path, floor_scale, longest):
    path = save(build(_llama_4(floor_scale), seed=3), tmp_path)
    target = LanguageModel.load(path, "cpu")
    check_model(target, path)
    assert target.runs_rows_apart
    prompts = random_prompts([9, longest, 3, 20])
    engine = engine_over(target, num_slots=4, max_model_len=longest + 30)
    written = engine.generate(prompts, SamplingParams(temperature=0, max_tokens=16))
    assert outputs(written) == generated(path, prompts, 16)


def test_a_cache_that_reports_a_neighbours_length_is_caught(tmp_path, monkeypatch):
    path = save(build(_llama_4(64), seed=3), tmp_path)
    monkeypatch.setattr(KVCache, "get_seq_length", lambda cache, layer_idx=0: cache._current.num_visible)
    with pytest.raises(ValueError, match="longer than one of its windows, chunks or scales"):
        check_model(LanguageModel.load(path, "cpu"), path)


def test_a_model_that_is_wrong_beyond_its_window_is_refused_by_a_probe_that_is_shorter(tmp_path):
    path = save(build(transformers.DogeConfig(**DOGE), seed=3), tmp_path)
    with pytest.raises(ValueError, match="longer than one of its windows, chunks or scales") as caught:
        check_model(LanguageModel.load(path, "cpu"), path)
    assert path in str(caught.value)


def test_a_probe_that_stops_before_the_window_would_pass_it(tmp_path, monkeypatch):
    monkeypatch.setattr(probe, "lengths_in", lambda config: [])
    path = save(build(transformers.DogeConfig(**DOGE), seed=3), tmp_path)
    assert check_model(LanguageModel.load(path, "cpu"), path) < 1e-4


@pytest.mark.parametrize(
    "unfit", [{"no_such": "miniature"}, {"head_dim": 7}, {"num_key_value_heads": 3}, {"hidden_size": "wide"}], ids=str
)
def test_where_no_miniature_can_be_made_or_run_the_probe_itself_is_long_enough(unfit, monkeypatch):
    def make(_: PretrainedConfig) -> PretrainedConfig:
        if "no_such" in unfit:
            raise ValueError("no miniature")
        return llama_config(**unfit)

    monkeypatch.setattr(probe, "miniature", make)
    assert check_lengths(transformers.DogeConfig(**DOGE), "doge").reach == 2048


def _turned(part: float, num_heads: int = 4, head_size: int = 96) -> PretrainedConfig:
    factors = [1.0 + place for place in range(int(head_size * part) // 2)]
    sizes = {"hidden_size": num_heads * head_size, "num_attention_heads": num_heads, "num_key_value_heads": num_heads}
    rope = {"rope_type": "longrope", "short_factor": factors, "long_factor": factors, "partial_rotary_factor": part}
    length = {"original_max_position_embeddings": 4096}
    return transformers.Phi3Config(**sizes, **length, rope_parameters=rope | length)


@pytest.mark.parametrize(
    "config",
    [
        *(_turned(part) for part in (1.0, 0.75, 0.5, 0.4, 0.25, 0.1)),
        _turned(0.75, num_heads=2),
        transformers.PhiConfig(partial_rotary_factor=0.4, hidden_size=2560),
        transformers.GPTNeoXConfig(rotary_pct=0.1, hidden_size=5120, num_attention_heads=64),
    ],
    ids=lambda config: f"{config.model_type} {config.rope_parameters['partial_rotary_factor']}",
)
def test_a_miniature_turns_a_part_of_each_head_that_fits_its_factors(config):
    small = miniature.miniature(config)
    network = AutoModelForCausalLM.from_config(small)
    assert network(input_ids=torch.arange(40)[None]).logits.isfinite().all()
    is_whole, expected = (each.rope_parameters["partial_rotary_factor"] == 1.0 for each in (small, config))
    assert is_whole == expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (llama_config(), []),
        (transformers.MistralConfig(sliding_window=4096), [4096]),
        (_llama_4(8192), [8192]),
        (transformers.DogeConfig(**DOGE), [2048]),
        (
            llama_config(rope_parameters={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}),
            [64],
        ),
    ],
    ids=["llama", "mistral", "llama 4", "doge", "yarn"],
)
def test_the_lengths_of_a_configuration_are_found_by_what_they_are_not(config, expected):
    assert miniature.lengths_in(config) == expected


def test_probing_leaves_the_random_numbers_of_its_caller_alone():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    check_lengths(transformers.MistralConfig(), "mistral")
    assert torch.rand(1) == expected
