"""A draft actor whose weights are replaced while lanes come and go, here in this process."""

import threading
from collections import OrderedDict
from typing import Any

import pytest

from actors.drafts import actor as module
from actors.drafts.actor import DraftActor
from actors.settings import ModelSettings


class Weights:
    """Weights of which nothing is looked at."""

    def check(self, weights: Any) -> Any:
        return weights

    def put(self, weights: Any) -> None:
        pass


class Model:
    weights = Weights()


class SlowMirror:
    """A lane that takes its time to forget what it has read."""

    def __init__(self) -> None:
        self.begins, self.may_end = threading.Event(), threading.Event()

    def renew(self) -> None:
        self.begins.set()
        assert self.may_end.wait(10)

    def release(self) -> None:
        pass


def test_a_lane_that_leaves_while_weights_are_replaced_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "read_replacement", lambda *_: {})
    actor: Any = object.__new__(DraftActor)
    actor._models, actor._model = ModelSettings(target="t", draft="d"), Model()
    actor._drafting = threading.RLock()
    first, second = SlowMirror(), SlowMirror()
    second.may_end.set()
    actor._mirrors = OrderedDict(first=first, second=second)
    failures: list[BaseException] = []

    def swap() -> None:
        try:
            actor.use_draft("other")
        except BaseException as error:  # noqa: BLE001 - looked at below
            failures.append(error)

    swapping, leaving = threading.Thread(target=swap), threading.Thread(target=actor.leave, args=("second",))
    swapping.start()
    assert first.begins.wait(10)
    leaving.start()
    leaving.join(0.2)
    first.may_end.set()
    swapping.join(10)
    leaving.join(10)
    assert failures == []
    assert list(actor._mirrors) == ["first"]
