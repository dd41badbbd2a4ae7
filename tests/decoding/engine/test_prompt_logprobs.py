"""The scores of a prompt's own tokens."""

import pytest
import torch
from transformers import AutoModelForCausalLM

import decoding.engine.engine
from decoding import Engine, EngineOptions, SamplingParams
from tests.decoding.tiny import build, llama_config, random_prompts, save

(PROMPT,) = random_prompts([61], vocab_size=47, seed=2)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save(build(llama_config(max_position_embeddings=64), seed=1), tmp_path_factory.mktemp("model") / "target")


def expected_logprobs(path: str, prompt: list[int]) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    return model(torch.tensor([prompt])).logits[0].log_softmax(-1).detach()


def load(path: str) -> Engine:
    options = EngineOptions(num_slots=2, drafter="none", max_model_len=64)
    return Engine.load(path, None, options, device="cpu", dtype="float32")


@pytest.mark.parametrize("chunk", [1, 7, 60, 512])
def test_each_token_has_its_log_probability_whatever_the_chunks(
    path: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding.engine.engine, "_MAX_PREFILL_TOKENS", (chunk, chunk))
    logprobs = [entry for chunk in load(path).prompt_logprobs(PROMPT, 3) for entry in chunk]
    expected_TV = expected_logprobs(path, PROMPT)
    assert len(logprobs) == len(PROMPT) - 1
    for position, entry in enumerate(logprobs):
        assert entry.logprob == pytest.approx(expected_TV[position, PROMPT[position + 1]].item(), abs=1e-4)
        best = expected_TV[position].topk(3)
        assert [value for _, value in entry.top] == pytest.approx(best.values.tolist(), abs=1e-4)


def test_scoring_a_prompt_changes_nothing_that_is_written_meanwhile(path: str) -> None:
    engine, params = load(path), SamplingParams(max_tokens=20, ignore_eos=True)
    expected = engine.generate([[5, 6], [7]], params)
    list(engine.prompt_logprobs(PROMPT, 0))
    again = engine.generate([[5, 6], [7]], params)
    assert [s.output_token_ids for s in again] == [s.output_token_ids for s in expected]
    scoring = engine.prompt_logprobs(PROMPT, 0)
    engine.resize(1)
    assert sum(map(len, scoring)) == len(PROMPT) - 1


def test_a_prompt_of_one_token_has_nothing_to_score(path: str) -> None:
    assert list(load(path).prompt_logprobs([5], 1)) == []


@pytest.mark.parametrize(
    ("prompt", "problem"), [([], "no tokens"), ([5] * 65, "65 tokens and the context is 64;"), ([5, 999], "id 999")]
)
def test_a_prompt_that_cannot_be_read_is_refused(path: str, prompt: list[int], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        list(load(path).prompt_logprobs(prompt, 1))
