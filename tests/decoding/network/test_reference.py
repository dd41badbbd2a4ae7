"""The reference writes what transformers' own `generate` writes, and the engine writes what the reference does."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from decoding import SamplingParams
from decoding.network.language_model import LanguageModel
from decoding.network.reference import Reference
from decoding.sequence import Sequence
from tests.decoding.tiny import engine_over, generated, outputs, random_prompts

PROMPTS = random_prompts([9, 1, 40, 17])


def _sequences(**params: object) -> list[Sequence]:
    sampling = SamplingParams(max_tokens=24, **params)
    return [Sequence.create(prompt, sampling, row=row) for row, prompt in enumerate(PROMPTS)]


@pytest.fixture(scope="module")
def reference(folders) -> Reference:
    return Reference.load(folders.target, "cpu", "float32", close_call=1e-4)


def test_the_greedy_text_is_that_of_generate(folders, reference):
    expected = generated(folders.target, PROMPTS, 24)
    assert outputs(reference.write(_sequences(temperature=0))) == expected


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0},
        {"temperature": 0.8},
        {"temperature": 1.2, "top_p": 0.9, "top_k": 20},
        {"temperature": 1, "repetition_penalty": 1.3, "min_tokens": 4},
    ],
    ids=str,
)
def test_the_engine_writes_the_text_of_the_reference(folders, reference, params):
    target, draft = LanguageModel.load(folders.target, "cpu"), LanguageModel.load(folders.good_draft, "cpu")
    written = _sequences(**params)
    list(engine_over(target, draft, "model").stream(written))
    expected = list(reference.write(_sequences(**params)))
    assert outputs(written) == outputs(expected)
    assert [s.finish_reason for s in written] == [s.finish_reason for s in expected]


def test_the_margin_is_the_distance_of_the_two_best_candidates(folders, reference):
    sequence = Sequence.create(PROMPTS[0], SamplingParams(temperature=0))
    network = AutoModelForCausalLM.from_pretrained(folders.target).eval()
    best, second = network(torch.tensor([PROMPTS[0]])).logits[0, -1].topk(2).values.tolist()
    assert reference.margin(sequence) == pytest.approx(best - second, rel=1e-3)
