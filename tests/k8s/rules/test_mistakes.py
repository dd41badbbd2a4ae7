"""Each planted mistake in a manifest is noticed, and the problem names it (mistakes.yaml, mistakes_together.yaml)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.k8s.manifests import Object, ground, load_objects, render
from tests.k8s.rules.lint import problems_with

pytestmark = pytest.mark.kubernetes
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
_FILES = ("mistakes.yaml", "mistakes_together.yaml")
_SECTIONS: dict[str, list[Object]] = {
    name: load_objects((Path(__file__).parent / name).read_text())[0] for name in _FILES
}
MISTAKES = {
    what: (each["in"], mistake)
    for sections in _SECTIONS.values()
    for each in sections
    for what, mistake in each["mistakes"].items()
}


def plant(place: Any, change: dict[str, Any]) -> None:
    """Change an object as a mistake says: put a value at a place, replace words there, or remove what is there."""
    start, dot, rest = change["at"].partition(".")
    *keys, last = [key.replace("~", ".") for key in (_PLACES.get(start, start) + dot + rest).split(".")]
    for key in keys:
        place = place[int(key)] if isinstance(place, list) else place.setdefault(key, {})
    at = int(last) if isinstance(place, list) and last != "+" else last
    if last == "+":
        place.append(change["is"])
    elif "replace" in change:
        old, new = change["replace"]
        assert old in place[at], "nothing would be changed"
        place[at] = place[at].replace(old, new)
    elif "is" in change:
        place[at] = change["is"]
    else:
        del place[at]


@pytest.mark.parametrize(("where", "mistake"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_noticed(where: dict[str, str], mistake: dict[str, Any]) -> None:
    objects = render(where["folder"])
    named = [each for each in objects if where.get("name") in (None, each["metadata"]["name"])]
    (planted,) = [each for each in named if each["kind"] == where["kind"]]
    for change in (mistake, *mistake.get("also", [])):
        plant(planted, change)
    problems = problems_with(objects, ground(where["folder"]))
    assert any(mistake["said"] in problem for problem in problems), problems


def test_a_namespace_without_a_policy_that_denies_by_default_is_noticed() -> None:
    objects = [each for each in render("base/namespace") if each["metadata"]["name"] != "deny-all"]
    assert any("none denies" in problem for problem in problems_with(objects, []))


def test_a_priority_that_pushes_the_pods_of_others_out_is_noticed() -> None:
    objects = render("base/namespace")
    next(each for each in objects if each["kind"] == "PriorityClass").pop("preemptionPolicy")
    assert any("'preemptionPolicy' is a required property" in problem for problem in problems_with(objects, []))


def test_there_are_at_least_a_hundred_mistakes_in_each_file_and_all_are_different() -> None:
    counts = {name: sum(len(each["mistakes"]) for each in sections) for name, sections in _SECTIONS.items()}
    assert min(counts.values()) >= 100
    assert len(MISTAKES) == sum(counts.values())
