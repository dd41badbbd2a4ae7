"""generation_config.json: texts end where `generate` ends them, and what else it says of sampling is told apart."""

import json
from pathlib import Path

import pytest
from transformers import GenerationConfig

from decoding import SamplingParams
from decoding.checkpoint.generation import sampling_of
from decoding.network.language_model import LanguageModel
from tests.decoding.tiny import build, engine_over, generated, llama_config, outputs, random_prompts, save

PROMPTS = random_prompts([9, 1, 4, 17])


def _saved(folder: Path, in_config: int | None, in_generation: object) -> str:
    """Save a model whose end token is named in config.json, in generation_config.json ("no file": there is none)."""
    path = save(build(llama_config(), seed=1), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": in_config}))
    file = folder / "generation_config.json"
    if in_generation == "no file":
        file.unlink()
    else:
        file.write_text(json.dumps({"eos_token_id": in_generation}))
    return path


def _often(tmp_path: Path) -> list[int]:
    """Return the tokens of greedy texts, the most frequent first."""
    written = [token for text in generated(_saved(tmp_path / "free", None, None), PROMPTS, 40) for token in text]
    return sorted(set(written), key=written.count, reverse=True)


@pytest.mark.parametrize("where", ["both", "config only", "generation only", "no generation file", "several"])
def test_a_text_ends_where_generate_ends_it(tmp_path, where):
    one, other, *_ = _often(tmp_path)
    named = {
        "both": (one, other),
        "config only": (one, None),
        "generation only": (None, one),
        "no generation file": (one, "no file"),
        "several": (None, [one, other]),
    }[where]
    path = _saved(tmp_path / "model", *named)
    written = engine_over(LanguageModel.load(path, "cpu")).generate(
        PROMPTS, SamplingParams(temperature=0, max_tokens=40)
    )
    assert outputs(written) == generated(path, PROMPTS, 40)


def _folder(tmp_path: Path, **fields: object) -> str:
    (tmp_path / "generation_config.json").write_text(json.dumps(fields))
    return str(tmp_path)


def test_what_the_file_says_of_sampling_is_split_into_what_can_be_said_here_and_what_cannot(tmp_path):
    path = _folder(
        tmp_path, do_sample=True, temperature=0.6, top_p=0.95, top_k=20, repetition_penalty=1.05,
        no_repeat_ngram_size=3, suppress_tokens=[5, 6], eos_token_id=2, pad_token_id=0, transformers_version="5.0.0",
    )  # fmt: skip
    assert sampling_of(path) == (
        {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "repetition_penalty": 1.05},
        {"no_repeat_ngram_size": 3, "suppress_tokens": [5, 6]},
    )


def test_without_do_sample_the_text_is_greedy_and_values_that_change_nothing_are_left_out(tmp_path):
    assert sampling_of(str(tmp_path)) == ({}, {}), "there is no file"
    assert sampling_of(_folder(tmp_path, temperature=0.6, top_p=0.9)) == ({"temperature": 0.0}, {})
    neutral = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0, "num_beams": 1}
    assert sampling_of(_folder(tmp_path, do_sample=True, **neutral)) == ({}, {})


def test_what_generate_fills_in_counts_as_said(tmp_path):
    assert sampling_of(_folder(tmp_path, do_sample=True)) == ({"top_k": 50}, {})
    filled_in = GenerationConfig._get_default_generation_params()
    said = {name: filled_in[name] for name in ("temperature", "top_k", "top_p")}
    assert said == {"temperature": 1.0, "top_k": 50, "top_p": 1.0}
    others = {"min_p", "suppress_tokens", "no_repeat_ngram_size"}
    assert not others & {name for name, value in filled_in.items() if value}


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(ValueError, match=r"generation_config\.json.*" + str(tmp_path)):
        sampling_of(str(tmp_path))
