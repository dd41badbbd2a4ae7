"""A lane whose drafter rests now and then tells its target only what has changed."""

from itertools import pairwise

from tests.decoding.tiny import engine_over, numbered, random_prompts, run, schedule_at_random


def _told(target, monkeypatch) -> list[bool]:
    """Whether features are wanted, each time the target is told."""
    told, hand_out = [], target.hand_out
    monkeypatch.setattr(target, "hand_out", lambda tap: (told.append(tap is not None), hand_out(tap)))
    return told


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
