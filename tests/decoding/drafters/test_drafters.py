"""Each drafter proposes what its name promises, within its limits, and forgets a slot's last row."""

import pytest
import torch

from decoding import SamplingParams
from decoding.choices import NEED_A_HEAD
from decoding.drafters.lookups.ngram import NGramDrafter
from decoding.drafters.making import make_drafter
from decoding.sampling.distribution import probabilities, process_logits
from decoding.sampling.rows import Rows
from decoding.sampling.verdicts import Draft
from tests.decoding.drafters.over_heads import PROMPTS, engine_over
from tests.decoding.heads.beside import drafter_beside
from tests.decoding.tiny import EVERY_DRAFTER, drafted, drafter_over, numbered, rows_over

MAX_LEN = 80


def _rows(prompts: list[list[int]], limits: list[int], verification: str = "coupled", **params: object) -> Rows:
    uses_lookup = tuple(row % 2 == 0 for row in range(len(prompts)))
    return rows_over(numbered(prompts, **params), limits, verification, uses_lookup=uses_lookup)


def _propose(drafter, rows: Rows) -> Draft:
    drafter.admit(range(len(rows.sequences)), rows.sequences)
    with torch.inference_mode():
        return drafter.propose(rows)


@pytest.mark.parametrize("verification", ["coupled", "rejection"])
@pytest.mark.parametrize("limits", [[0, 0, 0], [0, 3, 1], [8, 0, 2]])
@pytest.mark.parametrize("name", EVERY_DRAFTER)
def test_no_row_gets_more_draft_tokens_than_it_may(models, name, limits, verification):
    rows = _rows([[1, 2, 3, 1, 2], [7], [5, 6, 5, 6, 5, 6]], limits, verification)
    draft = _propose(drafter_over(name, models.good_draft, models.target, 4, MAX_LEN), rows)
    assert all(n <= limit for n, limit in zip(draft.num_draft_tokens_B.tolist(), limits, strict=True))
    assert draft.token_ids_BK.shape[0] == 3
    assert draft.num_draft_tokens_B.max() <= draft.token_ids_BK.shape[1]
    assert all(0 <= token < 48 for row in drafted(draft) for token in row)
    if draft.probs_BKV is not None:
        assert verification == "rejection", "a coupled draft states no distribution"
        assert draft.probs_BKV.shape == (*draft.token_ids_BK.shape, 48)


@pytest.mark.parametrize("name", [*NEED_A_HEAD, "peagle"])
def test_the_features_and_the_logits_of_a_head_are_float32_beside_a_target_of_float32(models, name, monkeypatch):
    """In another type it would pick otherwise than its target where two tokens nearly tie, and take more memory."""
    drafter, found = drafter_beside(name, models.target, 3, MAX_LEN), set()

    def noting(method):
        def noted(*given):
            made = method(*given)
            tensors = [each for each in (*given, made) if isinstance(each, torch.Tensor) and each.is_floating_point()]
            found.update((method.__name__, each.dtype) for each in tensors)
            return made

        return noted

    methods = ("receive", "_first_logits", "_next_logits")
    for method in methods:
        monkeypatch.setattr(drafter, method, noting(getattr(drafter, method)))
    engine_over(models.target, drafter).generate(PROMPTS, SamplingParams(max_tokens=8))
    assert found == {(method, torch.float32) for method in methods}


# n-gram: 1 2 3 4 means what followed the same tokens before.
@pytest.mark.parametrize(
    ("tokens", "limit", "expected"),
    [
        ([1, 2, 3, 9, 9, 1, 2], 3, [3, 9, 9]),
        ([1, 2, 3, 9, 9, 1, 2], 1, [3]),
        ([1, 2, 3, 1, 2], 8, [3, 1, 2, 3, 1, 2, 3, 1]),  # at the newest tokens the match goes round
        ([1, 2, 5, 1, 2, 6, 1, 2], 1, [6]),  # the most recent of two
        ([7, 1, 2, 5, 8, 1, 2, 6, 7, 1, 2], 1, [5]),  # the longer match, though older
        ([0, 0, 1, 2, 3, 4, 5, 1, 2, 3, 4], 2, [5, 1]),
        ([1, 2, 3, 4, 5], 4, []),
        ([5, 1, 5], 4, []),  # one token is no match
        ([4, 4, 4], 4, [4, 4, 4, 4]),  # a match may overlap the newest tokens
        ([4, 4, 4, 4, 4, 4, 4], 3, [4, 4, 4]),
        ([4], 4, []),
        ([4, 4], 4, []),
    ],
)
def test_the_ngram_drafter_proposes_what_followed_the_same_tokens_before(tokens, limit, expected):
    assert drafted(_propose(NGramDrafter(), _rows([tokens], [limit]))) == [expected]


def test_the_ngram_index_of_a_growing_text_equals_a_fresh_one():
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(3, (60,), generator=generator).tolist()
    growing, end = NGramDrafter(), 4
    rows = _rows([tokens[:end]], [3])
    growing.admit([0], rows.sequences)
    while end < len(tokens):
        fresh = _propose(NGramDrafter(), _rows([tokens[:end]], [3]))
        assert drafted(growing.propose(rows)) == drafted(fresh)
        step = 1 + tokens[end] % 3
        rows.sequences[0].output_token_ids += tokens[end : end + step]
        end += step


@pytest.mark.parametrize("params", [{"temperature": 0}, {"temperature": 0.8, "top_k": 6, "repetition_penalty": 1.5}])
def test_the_model_drafter_states_the_distribution_each_token_was_drawn_from(models, params):
    prompts, num_tokens = [[1, 2, 3, 1, 2], [7], [5, 6, 5, 6]], 4
    rows = _rows(prompts, [num_tokens] * 3, "rejection", **params)
    drafter = make_drafter("model", models.good_draft, 48, 3, MAX_LEN)
    draft = _propose(drafter, rows)
    for step in range(num_tokens):
        behind = [p + d[:step] for p, d in zip(prompts, drafted(draft), strict=True)]
        logits = torch.stack([models.good_draft.plain_logits(tokens) for tokens in behind])[:, None]
        scores = process_logits(logits, rows.sampling, rows.history(draft.token_ids_BK[:, :step], step, 1))
        expected = probabilities(scores, rows.sampling)[:, 0]
        torch.testing.assert_close(draft.probs_BKV[:, step], expected, rtol=1e-3, atol=1e-5)
        assert (draft.probs_BKV[:, step].gather(1, draft.token_ids_BK[:, step : step + 1]) > 0).all()


def test_a_resting_model_drafter_reads_prompts_only_for_its_next_draft_which_is_the_same(models):
    rows = _rows([[1, 2, 3] * 20, [9, 8, 7, 6]], [3, 3], temperature=0)
    drafts = []
    for rests, num_read in ((False, [59, 3]), (True, [0, 0])):
        drafter = make_drafter("model", models.good_draft, 48, 2, MAX_LEN)  # over the same cache as the one before it
        if rests:
            drafter.rest()
        with torch.inference_mode():
            drafter.admit([0, 1], rows.sequences)
            assert drafter.slots.num_known == num_read
            drafts.append(drafted(drafter.propose(rows)))
    assert drafts[0] == drafts[1]


def test_the_model_drafter_drafts_the_same_after_swaps(models):
    prompts = [[1, 2, 3], [9, 8, 7, 6]]
    drafter = make_drafter("model", models.good_draft, 48, 3, MAX_LEN)
    rows = _rows(prompts, [3, 3], temperature=0)
    before = drafted(_propose(drafter, rows))
    drafter.swap(1, 2)  # slot 2 was never used
    drafter.swap(2, 0)
    with torch.inference_mode():
        assert drafted(drafter.propose(_rows([prompts[1]], [3], temperature=0))) == [before[1]]
