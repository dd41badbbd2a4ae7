"""Each planted mistake in a manifest is noticed, and the problem names it (mistakes.yaml)."""

import copy
from pathlib import Path
from typing import Any

import pytest

from tests.k8s.manifests import ground, load_objects, render
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
_SECTIONS = load_objects((Path(__file__).parent / "mistakes.yaml").read_text())[0]
MISTAKES = {what: (each["in"], mistake) for each in _SECTIONS for what, mistake in each["mistakes"].items()}


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


@pytest.mark.timeout(900)
def test_every_mistake_is_noticed():
    assert len(MISTAKES) == sum(len(each["mistakes"]) for each in _SECTIONS), "two have the same name"
    missed = {}
    folders = {where["folder"] for where, _ in MISTAKES.values()}
    rendered = {folder: (render(folder), ground(folder)) for folder in folders}
    for what, (where, mistake) in MISTAKES.items():
        objects, before = copy.deepcopy(rendered[where["folder"]])
        named = [each for each in objects if where.get("name") in (None, each["metadata"]["name"])]
        (planted,) = [each for each in named if each["kind"] == where["kind"]]
        for change in (mistake, *mistake.get("also", [])):
            plant(planted, change)
        problems = problems_with(objects, before)
        if not any(mistake["said"] in problem for problem in problems):
            missed[what] = problems
    assert not missed
