"""Greedy text equals transformers' own `generate`, token for token, for every drafter and model family (float32)."""

import copy
from dataclasses import dataclass

import pytest
import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from decoding import SamplingParams, Sequence
from decoding.choices import DRAFTERS
from decoding.network.language_model import LanguageModel
from decoding.network.probe import check_model
from tests.decoding.families import EVERY_FAMILY, family_network
from tests.decoding.tiny import check_counts, engine_over, loaded, noised, outputs, random_prompts, save

PROMPTS = random_prompts([9, 1, 4, 17, 1, 30, 2])
NUM_NEW_TOKENS = 24


@dataclass
class Family:
    """A target that ends its texts with one or two of its own favourite tokens, a good draft, and the right answers."""

    name: str
    target: LanguageModel
    draft: LanguageModel
    with_eos: list[list[int]]
    without_eos: list[list[int]]


OWN_ATTENTION = {"falcon", "falcon_alibi", "bloom", "gptj"}  # which cannot take packed rows


def _reference(path: str, ignore_eos: bool) -> list[list[int]]:
    """transformers, one prompt at a time, with the attention it would choose itself."""
    network = AutoModelForCausalLM.from_pretrained(path).eval()
    settings = copy.deepcopy(GenerationConfig.from_pretrained(path))
    settings.update(do_sample=False, max_new_tokens=NUM_NEW_TOKENS, pad_token_id=0)
    if ignore_eos:
        settings.eos_token_id = None
        network.generation_config.eos_token_id = None
    texts = []
    for prompt in PROMPTS:
        tokens = torch.tensor([prompt])
        output = network.generate(tokens, attention_mask=torch.ones_like(tokens), generation_config=settings)
        texts.append(output[0, len(prompt) :].tolist())
    return texts


def _favourites(texts: list[list[int]]) -> list[int]:
    """Two tokens that end texts somewhere inside, rather than at their first token."""

    def num_ended_inside(token: int) -> int:
        return sum(token in text and 0 < text.index(token) < len(text) - 1 for text in texts)

    return sorted(range(48), key=num_ended_inside)[-2:]


@pytest.fixture(scope="module", params=EVERY_FAMILY)
def family(request, tmp_path_factory) -> Family:
    root = tmp_path_factory.mktemp(request.param)
    network = family_network(request.param)
    without_eos = _reference(save(network, root / "target"), ignore_eos=True)
    path = save(network, root / "target", eos_token_id=_favourites(without_eos))
    return Family(
        name=request.param,
        target=LanguageModel.load(path, "cpu"),
        draft=loaded(noised(network, 0.05), root / "draft"),
        with_eos=_reference(path, ignore_eos=False),
        without_eos=without_eos,
    )


def test_the_answers_end_inside_a_round_as_well_as_at_the_limit(family):
    assert any(1 < len(text) < NUM_NEW_TOKENS for text in family.with_eos)
    assert all(len(text) == NUM_NEW_TOKENS for text in family.without_eos)


def test_the_probe_accepts_the_family_and_packs_rows_where_attention_is_ours(family):
    assert check_model(family.target, "family") < 1e-5
    assert family.target.packs_rows == (family.name not in OWN_ATTENTION)


def test_packed_rows_get_the_logits_they_get_in_a_rectangle(family):
    model = family.target
    tokens_BT = torch.randint(48, (3, 5), generator=torch.Generator().manual_seed(0))
    every_BT = torch.arange(5).expand(3, -1)
    starts, lengths = [8, 2, 12], [2, 5, 1]
    model.allocate(4, 40)
    model.prefill([0, 1, 2], random_prompts(starts))
    rectangle_BTV = model.forward(starts, tokens_BT, every_BT)
    packed_BTV = model.forward(starts, tokens_BT, every_BT, lengths=lengths)
    for row, length in enumerate(lengths):
        torch.testing.assert_close(packed_BTV[row, :length], rectangle_BTV[row, :length], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("ignore_eos", [False, True])
@pytest.mark.parametrize("drafter", ["none", "model"])
def test_greedy_text_equals_transformers_generate(family, drafter, ignore_eos):
    sequences = _written(family, drafter, ignore_eos=ignore_eos)
    if drafter == "model" and ignore_eos:  # otherwise nothing was put to the test
        accepted = sum(sequence.num_accepted_tokens for sequence in sequences)
        assert accepted / sum(sequence.num_draft_tokens for sequence in sequences) > 0.2


@pytest.mark.parametrize("family", ["llama", "gemma3"], indirect=True)
@pytest.mark.parametrize("verification", ["coupled", "rejection"])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_with_every_drafter_greedy_text_equals_transformers_generate(family, drafter, verification):
    """In two families: apart from the draft model, a drafter knows nothing of the target's."""
    _written(family, drafter, verification=verification)


def _written(
    family: Family, drafter: str, *, ignore_eos: bool = False, verification: str = "coupled"
) -> list[Sequence]:
    """Return what an engine wrote, which is what transformers writes."""
    engine = engine_over(family.target, family.draft, drafter, verification=verification)
    sequences = engine.generate(
        PROMPTS, SamplingParams(temperature=0, max_tokens=NUM_NEW_TOKENS, ignore_eos=ignore_eos)
    )
    assert outputs(sequences) == (family.without_eos if ignore_eos else family.with_eos)
    for sequence in sequences:
        check_counts(sequence)
    return sequences
