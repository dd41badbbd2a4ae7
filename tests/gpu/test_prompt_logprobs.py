"""The log-probabilities of a prompt's own tokens are those of transformers."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from decoding import SamplingParams
from decoding.engine.scored_text import ScoredText
from tests.decoding.tiny import outputs, random_prompts
from tests.gpu import rows

pytestmark = pytest.mark.gpu
TOLERANCE = {"float32": 1e-3, "bfloat16": 0.5}  # in nats, of logits that are tens apart
(PROMPT,) = random_prompts([300 if rows.HAS_GPU else 9], rows.VOCAB_SIZE, seed=2)


@pytest.mark.parametrize("chunk", [4, 512])
def test_each_token_has_its_log_probability_whatever_the_chunks(models, make_engine, chunk):
    text = ScoredText.whole(PROMPT, 2)
    make_engine(max_prefill_tokens=chunk).score([text])
    (found,) = text.scores
    network = AutoModelForCausalLM.from_pretrained(models.target_path, dtype=torch.float32)
    expected_TV = network(torch.tensor([PROMPT])).logits[0].log_softmax(-1).detach()
    assert len(found) == len(PROMPT) - 1
    tolerance = TOLERANCE[models.case.dtype]
    for position, entry in enumerate(found):
        assert entry.logprob == pytest.approx(expected_TV[position, PROMPT[position + 1]].item(), abs=tolerance)
        best = expected_TV[position].topk(2).values.tolist()
        assert [value for _, value in entry.top] == pytest.approx(best, abs=tolerance)


def test_scoring_a_prompt_changes_nothing_that_is_written_meanwhile(make_engine):
    engine, params = make_engine("model", num_speculative_tokens=2), SamplingParams(max_tokens=4)
    expected = outputs(engine.generate([[5, 6], [7]], params))
    texts = [ScoredText.whole(PROMPT), ScoredText(tuple(PROMPT), ((5, 6), (7,)))]
    engine.score(texts)
    assert [[len(scores) for scores in text.scores] for text in texts] == [[len(PROMPT) - 1], [2, 1]]
    assert outputs(engine.generate([[5, 6], [7]], params)) == expected
