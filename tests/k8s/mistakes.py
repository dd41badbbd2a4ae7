"""Mistakes that people make in manifests: each is one value at one place of what an overlay renders (mistakes.yaml)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.k8s.manifests import Object, load_objects

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


@dataclass(frozen=True)
class Mistake:
    """What is wrong, in which object of which folder, where in it, and a part of what must be said about it."""

    what: str
    folder: str
    kind: str
    name: str  # of the object, where there are several of the kind
    path: str
    value: Any
    said: str

    def make(self, objects: list[Object]) -> None:
        """Put the mistake into rendered objects."""
        named = [each for each in objects if self.name in ("", each["metadata"]["name"])]
        (place,) = [each for each in named if each["kind"] == self.kind]
        *keys, last = [key.replace("~", ".") for key in self.path.split(".")]
        for key in keys:
            place = place[int(key)] if isinstance(place, list) else place.setdefault(key, {})
        if last == "+":
            place.append(self.value)
        elif self.value is _GONE:
            del place[int(last) if isinstance(place, list) else last]
        else:
            place[int(last) if isinstance(place, list) else last] = self.value


def _mistakes() -> list[Mistake]:
    (sections,) = load_objects((Path(__file__).parent / "mistakes.yaml").read_text())
    found = []
    for section in sections:
        where = {"name": "", **section["in"]}
        for what, mistake in section["mistakes"].items():
            start, dot, rest = mistake["at"].partition(".")
            path, value = _PLACES.get(start, start) + dot + rest, mistake.get("is", _GONE)
            found.append(Mistake(what, path=path, value=value, said=mistake["said"], **where))
    return found


MISTAKES = _mistakes()
