"""The reference writes what transformers' own `generate` writes, and the engine writes what the reference does."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from decoding import SamplingParams
from decoding.checkpoint.loading import load_network
from decoding.network.language_model import LanguageModel
from decoding.network.reference import Reference
from decoding.sequence import Sequence
from tests.decoding.grammar import tiny_grammars
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


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_rows_with_forms_and_log_probabilities_are_those_of_the_reference_which_reads_each_grammar_forward(
    folders, temperature
):
    grammars, own = tiny_grammars.grammars(), tiny_grammars.grammars()
    network, _ = load_network(folders.target, "cpu", "float32")
    reference = Reference(network, frozenset({tiny_grammars.END}), close_call=1e-4, grammars=own)
    target = tiny_grammars.with_end(LanguageModel.load(folders.target, "cpu"))
    more, dead_end = {"temperature": temperature, "logprobs": 2}, {"regex": "[a-c]{2}é"}
    forms = [*tiny_grammars.STRUCTURED, dead_end]
    written, expected = ([row for form in forms for row in _sequences(structured=form, **more)] for _ in range(2))
    list(engine_over(target, None, "suffix", num_slots=8, grammars=grammars).stream(written))
    list(reference.write(expected))
    assert outputs(written) == outputs(expected)
    assert [(s.finish_reason, s.error) for s in written] == [(s.finish_reason, s.error) for s in expected]
    assert {s.finish_reason for s in expected} == {"stop", "length", "error"}
    assert all("sampling.structured: " in s.error for s in expected if s.error)
    for one, other in zip(written, expected, strict=True):
        assert [place.logprob for place in one.logprobs] == pytest.approx([p.logprob for p in other.logprobs], abs=1e-4)
        likely, right = ([[token for token, _ in place.top] for place in each.logprobs] for each in (one, other))
        assert likely == right


def test_the_margin_is_the_distance_of_the_two_best_candidates(folders, reference):
    sequence = Sequence.create(PROMPTS[0], SamplingParams(temperature=0))
    network = AutoModelForCausalLM.from_pretrained(folders.target).eval()
    best, second = network(torch.tensor([PROMPTS[0]])).logits[0, -1].topk(2).values.tolist()
    assert reference.margin(sequence) == pytest.approx(best - second, rel=1e-3)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_the_margin_of_a_token_is_how_far_it_stands_behind_the_best(reference, temperature):
    def margin(token_id: int | None) -> float:
        return reference.margin(Sequence.create(PROMPTS[0], SamplingParams(temperature=temperature)), token_id)

    margins = sorted(map(margin, range(48)))
    assert margins[0] == 0.0 < margins[1]
    assert margins[1] == pytest.approx(margin(None), rel=1e-4)
