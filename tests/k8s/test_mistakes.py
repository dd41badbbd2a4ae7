"""Each planted mistake in a manifest is noticed, and the problem names it."""

from __future__ import annotations

import pytest

from tests.k8s.lint import problems_with
from tests.k8s.manifests import ground, render
from tests.k8s.mistakes import MISTAKES, Mistake

pytestmark = pytest.mark.kubernetes


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.what)
def test_a_mistake_is_noticed(mistake: Mistake) -> None:
    objects = render(mistake.folder)
    mistake.make(objects)
    problems = problems_with(objects, ground())
    assert any(mistake.said in problem for problem in problems), problems


def test_a_namespace_without_a_policy_that_denies_by_default_is_noticed() -> None:
    objects = [each for each in render("base/namespace") if each["metadata"]["name"] != "deny-all"]
    assert any("none denies" in problem for problem in problems_with(objects, []))


def test_a_priority_that_pushes_the_pods_of_others_out_is_noticed() -> None:
    objects = render("base/namespace")
    next(each for each in objects if each["kind"] == "PriorityClass").pop("preemptionPolicy")
    assert any("'preemptionPolicy' is a required property" in problem for problem in problems_with(objects, []))


def test_there_are_at_least_a_hundred_different_mistakes() -> None:
    assert len(MISTAKES) >= 100
    assert len({mistake.what for mistake in MISTAKES}) == len(MISTAKES)
