"""When a draft may replace another one."""

import pytest

from pipeline.counts import Counts
from training.evaluation.kind_score import DraftScore, KindScore, judge


def scored(draft: str, **accepted: int) -> DraftScore:
    """Return the score of 100 rounds of 4 tokens in each kind, of which this many tokens were accepted."""
    kinds = {
        kind: KindScore(
            num_rows=5, num_tokens=500, rounds=Counts(num_rounds=100, num_draft_tokens=400, num_accepted_tokens=number)
        )
        for kind, number in accepted.items()
    }
    return DraftScore(draft, 4, kinds)


BEFORE = scored("old", code=200, story=300)


def test_a_draft_that_is_better_in_all_kinds_passes():
    verdict = judge(BEFORE, scored("new", code=260, story=320))
    assert verdict.passes
    assert verdict.reason == "3.90 tokens a round after 3.50 (+11.4%), and no kind is worse by more than 0.01"


def test_a_draft_that_is_hardly_better_does_not_pass():
    verdict = judge(BEFORE, scored("new", code=210, story=310))
    assert not verdict.passes
    assert "(+2.9%), at least +5.0% wanted" in verdict.reason


def test_a_draft_that_is_worse_in_a_kind_does_not_pass_however_much_better_it_is_in_others():
    verdict = judge(BEFORE, scored("new", code=380, story=294))
    assert not verdict.passes
    assert "but the acceptance rate of 'story' falls from 0.750 to 0.735" in verdict.reason
    assert judge(BEFORE, scored("new", code=380, story=297)).passes
    assert judge(BEFORE, scored("new", code=380, story=294), loss=0.02).passes


def test_scores_of_other_rows_are_not_compared():
    with pytest.raises(ValueError, match="old and new were scored on other rows"):
        judge(BEFORE, scored("new", code=380))
