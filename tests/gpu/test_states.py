"""Models with states on a GPU: the text of transformers, whatever drafts."""

import pytest
from transformers import Cache

from decoding import Engine, EngineOptions
from decoding.engine.load import Parts
from decoding.network.language_model import LanguageModel
from decoding.network.probe import check_model
from tests.decoding.families import STATES, family_network
from tests.decoding.tiny import (
    VOCAB_SIZE,
    check_counts,
    generated,
    noised,
    numbered,
    outputs,
    random_prompts,
    run,
    save,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("_needs_a_gpu"),
    pytest.mark.skipif(not hasattr(Cache, "get_conv_state"), reason="transformers has no calls for states before 5.21"),
]
CONTEXT, NUM_NEW_TOKENS = 160, 24
PROMPTS = [*random_prompts((7, 1, 33, 100, 3), VOCAB_SIZE, seed=4), [5, 6, 7, 8] * 6]


@pytest.fixture(scope="module", params=STATES)
def pair(request, device, tmp_path_factory):
    """A target with states and a draft of its kind, and the target's folder."""
    folder = tmp_path_factory.mktemp("pair")
    network = family_network(request.param, STATES, max_position_embeddings=CONTEXT)
    paths = save(network, folder / "target"), save(noised(network, 0.1), folder / "draft")
    models = [LanguageModel.load(path, device, "float32", "auto") for path in paths]
    for model, path in zip(models, paths, strict=True):
        check_model(model, path)
    return *models, paths[0]


def texts(pair, drafter: str, **params: object) -> list[list[int]]:
    target, draft, _ = pair
    options = EngineOptions(
        drafter=drafter, num_slots=4, num_speculative_tokens=4, draft_length="fixed", max_model_len=CONTEXT
    )
    engine = Engine.over(Parts(target, draft if drafter in ("model", "hybrid") else None, drafter, CONTEXT), options)
    sequences = run(engine, numbered(PROMPTS, max_tokens=NUM_NEW_TOKENS, **params))
    for sequence in sequences:
        check_counts(sequence)
    return outputs(sequences)


@pytest.mark.parametrize("drafter", ["none", "model", "suffix"])
def test_greedy_text_is_transformers_own(pair, drafter):
    assert texts(pair, drafter, temperature=0.0) == generated(pair[2], PROMPTS, NUM_NEW_TOKENS)


@pytest.mark.parametrize("drafter", ["model", "hybrid", "suffix"])
def test_sampled_text_depends_on_no_draft(pair, drafter):
    assert texts(pair, drafter, temperature=0.8) == texts(pair, "none", temperature=0.8)
