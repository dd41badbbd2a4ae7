"""A row whose numbers are not finite fails alone, in rounds that overlap and in others."""

import math
from dataclasses import replace

import pytest
import torch

from decoding.network.language_model import LanguageModel
from tests.decoding.tiny import build, check_counts, numbered, outputs, random_prompts, run, save
from tests.gpu import rows
from tests.gpu.engines import config, engine_over

pytestmark = pytest.mark.gpu
POISON = 60  # a poisoned model's values after this token id are not finite


@pytest.fixture(scope="module")
def poisoned(models, tmp_path_factory) -> LanguageModel:
    """The target, broken by one token, which is never the likeliest one."""
    network = build(config(models.case.family), seed=1)
    with torch.no_grad():
        network.get_input_embeddings().weight[POISON] = math.nan
        network.get_output_embeddings().weight[POISON] = 0
    path = save(network, tmp_path_factory.mktemp("poisoned") / "target")
    loaded = LanguageModel.load(path, models.device, models.case.dtype, models.case.exact)
    loaded.speed_up()  # without the check, whose random texts may hold the token
    loaded.is_measured_invariant = models.target.is_measured_invariant
    return loaded


def _rows():
    prompts = random_prompts([6, 5, 1, 9, 4] if rows.HAS_GPU else [4, 3, 1], vocab_size=POISON, seed=9)
    prompts[1][2] = POISON
    return numbered(prompts, max_tokens=rows.NUM_NEW_TOKENS, temperature=0.0)


@pytest.mark.parametrize("drafter", ["none", "model", "suffix"])
def test_a_row_that_is_not_finite_fails_alone_and_leaves_its_slot_clean(models, poisoned, drafter):
    broken = replace(models, target=poisoned)
    expected = [outputs(run(engine_over(broken, num_slots=1), [row]))[0] for row in _rows()]
    sequences = run(engine_over(broken, drafter, num_slots=2, num_speculative_tokens=2), _rows())
    assert [row for row, sequence in enumerate(sequences) if sequence.finish_reason == "error"] == [1]
    assert "not finite" in sequences[1].error
    assert outputs(sequences) == expected
    for sequence in sequences[::2]:
        assert len(sequence.output_token_ids) == rows.NUM_NEW_TOKENS
        check_counts(sequence)


def test_a_draft_that_is_not_finite_costs_its_row_the_draft_and_nothing_else(models, poisoned):
    expected = outputs(run(engine_over(models, num_slots=1), _rows()))
    engine = engine_over(replace(models, draft=poisoned), "model", num_slots=2, num_speculative_tokens=2)
    sequences = run(engine, _rows())
    assert outputs(sequences) == expected
    assert [sequence.num_draft_tokens == 0 for sequence in sequences] == [row == 1 for row in range(len(sequences))]
