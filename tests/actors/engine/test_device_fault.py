"""A device that fails costs its process: callers hear of it, whatever is called next, and processes end themselves."""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from ray.exceptions import RayTaskError

from actors.drafts.actor import DraftActor
from actors.engine import watchdog
from actors.engine.loop import EngineLoop
from actors.errors import DeviceFault
from actors.settings import ModelSettings
from actors.stages.actor import RankFailedError, StageActor
from actors.stages.group import is_loss
from actors.workers.replica import _not_done
from decoding import Engine, EngineOptions, SamplingParams
from tests.actors.engine.engines import Pair, alone, sequences, tokens

FAULT = "CUDA error: an illegal memory access was encountered"


def fault(*_: object) -> None:
    raise torch.AcceleratorError(FAULT)


def no_memory(*_: object) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


class EndedError(BaseException):
    """In place of the end of this process."""


def exit_code(patch: pytest.MonkeyPatch, do: Callable[[], object]) -> int:
    """Return the exit code with which `do` ends its process."""

    def end(code: int) -> None:
        raise EndedError(code)

    patch.setattr(watchdog.os, "_exit", end)
    patch.setattr(watchdog.faulthandler, "dump_traceback", lambda **_: None)
    with pytest.raises(EndedError) as ended:
        do()
    return int(ended.value.args[0])


@pytest.mark.parametrize("also", ["clear", "resize"])
def test_callers_get_a_device_fault_even_if_the_engine_cannot_be_cleared_or_made_smaller(
    text_pair: Pair, monkeypatch: pytest.MonkeyPatch, also: str
) -> None:
    loop = EngineLoop(Engine.load(*text_pair, EngineOptions(num_slots=4, draft_length="fixed")))
    monkeypatch.setattr(Engine, "step", fault if also == "clear" else no_memory)
    monkeypatch.setattr(Engine, also, fault)
    with pytest.raises(DeviceFault, match="illegal memory access"):
        asyncio.run(asyncio.wait_for(loop.finish(sequences(3, SamplingParams(max_tokens=3))), timeout=60))


@pytest.mark.parametrize("during", ["draft", "_begin", "release"])
def test_a_draft_actor_whose_device_failed_ends_its_process(monkeypatch: pytest.MonkeyPatch, during: str) -> None:
    class Mirror:
        draft = release = fault

    actor: Any = object.__new__(DraftActor)
    actor._drafting, actor._mirrors, actor._begin = threading.RLock(), OrderedDict(lane=Mirror()), fault
    if during == "release":
        assert exit_code(monkeypatch, lambda: actor.leave("lane")) == watchdog.EXIT_CODE
    else:
        terms: Any = object() if during == "_begin" else None
        assert exit_code(monkeypatch, lambda: actor.draft("lane", terms, None)) == watchdog.EXIT_CODE


def test_a_draft_actor_whose_device_fails_as_it_takes_another_draft_ends_its_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Weights:
        check, put = dict, fault

    class Model:
        weights = Weights()

    actor: Any = object.__new__(DraftActor)
    actor._drafting, actor._mirrors, actor._model = threading.RLock(), OrderedDict(), Model()
    actor._models = ModelSettings(target="target", draft="draft", dtype="float32")
    monkeypatch.setattr("actors.drafts.actor.read_replacement", lambda *_: {})
    assert exit_code(monkeypatch, lambda: actor.use_draft("other")) == watchdog.EXIT_CODE


def test_rows_of_an_engine_that_could_not_be_cleared_end_unheard_and_later_ones_are_written(
    text_pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = EngineLoop(Engine.load(*text_pair, EngineOptions(num_slots=4, draft_length="fixed")))
    params, step = SamplingParams(max_tokens=6), Engine.step
    later = sequences(3, params, first_row=3)

    def raise_error(*_: object) -> None:
        raise RuntimeError("no luck")

    def begin_and_fail(self: Engine) -> None:
        step(self)
        raise_error()

    async def write() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Engine, "step", begin_and_fail)
            patch.setattr(Engine, "clear", raise_error)
            with pytest.raises(RuntimeError, match="no luck"):
                await loop.finish(sequences(3, params))
        await loop.finish(later)

    asyncio.run(asyncio.wait_for(write(), timeout=60))
    assert tokens(later) == alone(text_pair, sequences(3, params, first_row=3))


def test_a_replica_whose_device_failed_ends_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert exit_code(monkeypatch, lambda: _not_done(DeviceFault(FAULT), "request")) == watchdog.EXIT_CODE


def test_a_stage_whose_device_failed_is_lost_and_one_without_memory_is_not() -> None:
    def raised(error: Exception) -> RayTaskError:
        return RayTaskError("run", "its traceback", error)

    assert is_loss(raised(torch.AcceleratorError(FAULT)))
    assert not is_loss(raised(torch.OutOfMemoryError("CUDA out of memory")))
    assert not is_loss(raised(ValueError(FAULT)))


def test_a_stage_whose_device_failed_no_longer_answers_and_one_without_memory_does() -> None:
    """`StageGroup` replaces the stages that do not tell their process's id."""
    stage = StageActor("model", 0, 2, "cpu", "float32")
    with pytest.raises(torch.OutOfMemoryError), stage._together():
        no_memory()
    assert stage.pid()
    with pytest.raises(torch.AcceleratorError), stage._together():
        fault()
    with pytest.raises(RankFailedError, match="must be replaced"):
        stage.pid()


@pytest.mark.parametrize("during", ["call", "is_finite"])
def test_a_stage_whose_device_fails_outside_of_work_no_longer_answers_either(
    monkeypatch: pytest.MonkeyPatch, during: str
) -> None:
    class Broken:
        allocate = cache = fault

    stage: Any = StageActor("model", 0, 2, "cpu", "float32")
    monkeypatch.setattr(StageActor, "_stage", Broken())
    with pytest.raises(torch.AcceleratorError):
        stage.call("allocate", 1, 1) if during == "call" else stage.is_finite(0, 0, 1)
    with pytest.raises(RankFailedError, match="must be replaced"):
        stage.pid()
