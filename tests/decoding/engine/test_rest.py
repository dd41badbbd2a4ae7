"""A lane whose drafter rests now and then: what its target is told, and who drafts afterwards."""

from itertools import pairwise

import pytest

from decoding.drafters.head_drafters import Eagle3Drafter, _end
from decoding.drafters.hybrid import HybridDrafter
from decoding.drafters.lookups.suffix import SuffixDrafter
from decoding.network.language_model import LanguageModel
from decoding.pace.schedule import FixedSchedule
from tests.decoding.drafters import over_heads
from tests.decoding.heads.tiny_heads import head_for, random_head
from tests.decoding.tiny import drafter_over, engine_over, numbered, outputs, random_prompts, run, schedule_at_random


def _told(target, monkeypatch) -> list[bool]:
    """Whether features are wanted, each time the target is told."""
    told, hand_out = [], target.hand_out
    monkeypatch.setattr(target, "hand_out", lambda tap: (told.append(tap is not None), hand_out(tap)))
    return told


@pytest.fixture
def rest(monkeypatch) -> list[bool]:
    """Whether the drafter rests, which the test decides."""
    found = [False]
    monkeypatch.setattr(FixedSchedule, "rests", property(lambda _: found[0]))
    monkeypatch.setattr(FixedSchedule, "observe_rest", lambda *_: None)
    return found


def test_a_target_whose_drafter_reads_no_features_is_told_once(models, monkeypatch):
    schedule_at_random(monkeypatch, seed=0)
    told = _told(models.target, monkeypatch)
    run(engine_over(models.target, drafter="suffix"), numbered(random_prompts([4, 7, 2]), max_tokens=30))
    assert told == [False], "a target that is told forgets its recordings"


def test_a_target_whose_head_rests_is_told_of_each_change(models, monkeypatch):
    schedule_at_random(monkeypatch, seed=0)
    target = models.target.share()
    told = _told(target, monkeypatch)
    run(engine_over(target, drafter="eagle3"), numbered(random_prompts([4, 7, 2]), max_tokens=30))
    assert len(told) > 2
    assert all(before != after for before, after in pairwise(told))


@pytest.mark.parametrize("num_slots", [1, 2, 4])
@pytest.mark.parametrize("kind", ["eagle3", "peagle", "dflash", "hybrid", "mtp"])
def test_rows_that_begin_like_those_of_a_rest_draft_after_it(models, kind, num_slots, rest):
    """A row that was admitted during the rest has no features: a newcomer reads what it would have copied."""
    target = models.target.share()
    drafter = drafter_over("eagle3" if kind == "hybrid" else kind, None, target, num_slots, 80)
    if kind == "hybrid":
        drafter = HybridDrafter(SuffixDrafter(), drafter)
    engine = over_heads.engine_over(target, drafter, num_slots=num_slots)
    rest[0] = True
    run(engine, numbered(random_prompts([5] * num_slots), max_tokens=8))
    (head,) = random_prompts([40], seed=1)
    prompts = [[*head, *tail] for tail in random_prompts([3] * 12)]
    resting = run(engine, numbered(prompts, max_tokens=8))
    assert not any(row.num_draft_tokens for row in resting)
    rest[0] = False
    rows = run(engine, numbered(prompts, max_tokens=8))
    assert outputs(rows) == outputs(resting)
    first, later = rows[:num_slots], rows[num_slots:]
    if kind != "hybrid":  # whose lookup drafts in any case
        assert not any(row.num_draft_tokens for row in first), "they were read before the first round after the rest"
    assert all(row.num_draft_tokens for row in later)
    assert [row.num_cached_tokens for row in later].count(0) == 1, "one reads it, and the others copy from that one"


@pytest.mark.parametrize("where", ["a GPU", "the first part of a trial"])
def test_a_head_that_gets_features_in_its_rest_reads_them_and_drafts_at_once_after_it(models, monkeypatch, rest, where):
    """There the target goes on to hand them out."""
    if where == "a GPU":
        monkeypatch.setattr(LanguageModel, "runs_on", where)
    else:
        monkeypatch.setattr(FixedSchedule, "keeps_features", True)
    target = models.target.share()
    head, _ = random_head(head_for(target))
    drafter = Eagle3Drafter(head, 2, 80)
    engine = over_heads.engine_over(target, drafter, num_slots=2)
    rows = numbered(random_prompts([5, 9]), max_tokens=70)
    engine.submit(rows)
    rest[0] = True
    for _ in range(60):
        engine.step()
        assert all(_end(held) - drafter.slots.num_known[slot] <= 18 for slot, held in drafter._held.items())
    assert not any(row.num_draft_tokens for row in rows)
    rest[0] = False
    engine.step()
    assert all(row.num_draft_tokens for row in rows)


def test_a_draft_model_that_rests_reads_no_prompts(models, rest):
    engine = engine_over(models.target, models.good_draft, "model", num_slots=1)
    rest[0] = True
    run(engine, numbered(random_prompts([5]), max_tokens=3))
    engine.submit(numbered(random_prompts([30], seed=1), max_tokens=3))
    engine.step()
    assert engine.lanes[0].drafter.slots.num_known[0] == 0


def test_the_time_to_read_prompts_counts_for_rows_that_come_when_all_slots_were_full(models, monkeypatch):
    told = []
    monkeypatch.setattr(FixedSchedule, "observe_reading", lambda _, *found: told.append(found))
    engine = engine_over(models.target, models.good_draft, "model", num_slots=2)
    run(engine, numbered(random_prompts([20, 24]), max_tokens=3))
    assert told
    assert set(told) == {(0, 0.0)}, "the first rows come at once"
    run(engine, numbered(random_prompts([22], seed=1), max_tokens=3))
    (found,) = set(told) - {(0, 0.0)}
    assert found[0] == 1
    assert found[1] > 0
    engine.clear()
    told.clear()
    run(engine, numbered(random_prompts([20, 24]), max_tokens=3))
    assert set(told) == {(0, 0.0)}, "slots that were emptied fill at once"
