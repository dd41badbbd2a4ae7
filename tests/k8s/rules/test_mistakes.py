"""Each planted mistake in a manifest is noticed, and the problem names it (mistakes.yaml)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.k8s.manifests import Object, ground, load_objects, render
from tests.k8s.rules.lint import problems_with

pytestmark = pytest.mark.kubernetes
_GONE = object()  # the value of what a mistake leaves out
_HEAD, _WORKERS = "spec.rayClusterSpec.headGroupSpec", "spec.rayClusterSpec.workerGroupSpecs.0"
_PLACES = {
    "CLUSTER": "spec.rayClusterSpec",
    "HEAD": _HEAD,
    "HEAD_POD": f"{_HEAD}.template.spec",
    "WORKERS": _WORKERS,
    "WORKER_POD": f"{_WORKERS}.template.spec",
    "WORKER": f"{_WORKERS}.template.spec.containers.0",
    "SUBMITTER": "spec.submitterPodTemplate.spec",
}
_SECTIONS: list[Object] = load_objects((Path(__file__).parent / "mistakes.yaml").read_text())[0]
MISTAKES = {what: (each["in"], mistake) for each in _SECTIONS for what, mistake in each["mistakes"].items()}


def plant(place: Any, path: str, value: Any) -> None:
    """Put a value at a place of an object, or remove what is there if the value is `_GONE`."""
    start, dot, rest = path.partition(".")
    *keys, last = [key.replace("~", ".") for key in (_PLACES.get(start, start) + dot + rest).split(".")]
    for key in keys:
        place = place[int(key)] if isinstance(place, list) else place.setdefault(key, {})
    if last == "+":
        place.append(value)
    elif value is _GONE:
        del place[int(last) if isinstance(place, list) else last]
    else:
        place[int(last) if isinstance(place, list) else last] = value


@pytest.mark.parametrize(("where", "mistake"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_noticed(where: dict[str, str], mistake: dict[str, Any]) -> None:
    objects = render(where["folder"])
    named = [each for each in objects if where.get("name") in (None, each["metadata"]["name"])]
    (planted,) = [each for each in named if each["kind"] == where["kind"]]
    plant(planted, mistake["at"], mistake.get("is", _GONE))
    problems = problems_with(objects, ground())
    assert any(mistake["said"] in problem for problem in problems), problems


def test_a_namespace_without_a_policy_that_denies_by_default_is_noticed() -> None:
    objects = [each for each in render("base/namespace") if each["metadata"]["name"] != "deny-all"]
    assert any("none denies" in problem for problem in problems_with(objects, []))


def test_a_priority_that_pushes_the_pods_of_others_out_is_noticed() -> None:
    objects = render("base/namespace")
    next(each for each in objects if each["kind"] == "PriorityClass").pop("preemptionPolicy")
    assert any("'preemptionPolicy' is a required property" in problem for problem in problems_with(objects, []))


def test_there_are_at_least_a_hundred_different_mistakes() -> None:
    assert len(MISTAKES) == sum(len(each["mistakes"]) for each in _SECTIONS) >= 100
