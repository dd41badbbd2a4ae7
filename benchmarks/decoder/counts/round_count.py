"""count_round: what the host does in a round of an engine, once everything that is recorded has been recorded.

On a CPU what a GPU records counts as replays: the fused forwards of few tokens, or, where the GPU kernels are
interpreted, the two halves of a round. Where forwards run our CPU kernels, the copies of a forward's inputs into a
graph's own are missing in the count, since no graph could stand in for them.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from statistics import median
from unittest.mock import patch

import torch

from benchmarks.decoder.counts.launches import LaunchCounter, Launches
from decoding import Engine
from decoding import Sequence as Row
from decoding.fused.graphs import ForwardGraphs
from decoding.fused.recordings import Recording
from decoding.network.language_model import LanguageModel

_ROUNDS = 8  # whose median is returned, behind as many others


def count_round(engine: Engine, models: Sequence[LanguageModel], rows: Sequence[Row]) -> Launches | None:
    """Return what the host does in a round of these rows: the median of a few rounds in which no prompt is read.

    `models` are those that the engine runs; it has a slot for each row, and forgets the rows afterwards. None if they
    end before there was such a round.
    """
    counter = LaunchCounter(engine.target.device)
    counted: deque[Launches] = deque(maxlen=_ROUNDS)
    engine.submit(rows)
    with _standing_in_for_graphs(engine, models, counter):
        for _ in range(2 * _ROUNDS):
            while engine.has_work and not _only_writes(engine):
                engine.step()
            if not engine.has_work:
                break
            with counter.counting():
                engine.step()
            counted.append(counter.counts)
    engine.clear()
    if not counted:
        return None
    return Launches(**{name: median(asdict(counts)[name] for counts in counted) for name in asdict(counted[0])})


def _only_writes(engine: Engine) -> bool:
    """Tell whether the next step reads no prompt."""
    return not engine.up_next() and all(row.num_rounds for row in engine.in_flight)


class _Again:
    """A recording that runs the forward again, and counts as the replay of a graph."""

    def __init__(self, run: Callable[[], torch.Tensor], counter: LaunchCounter) -> None:
        self._run, self._counter = run, counter
        self.output = run().clone()

    def replay(self) -> None:
        """Run again, as one replay."""
        self._counter.as_one(lambda: self.output.copy_(self._run()))()


@contextmanager
def _standing_in_for_graphs(engine: Engine, models: Sequence[LanguageModel], counter: LaunchCounter) -> Iterator[None]:
    """Let what a GPU would record count as graphs on a CPU: fused forwards of few tokens, and rounds that overlap."""

    def record(run: Callable[[], torch.Tensor]) -> Recording:
        return _Again(run, counter)

    with ExitStack() as undo:
        if engine.target.device.type == "cpu":
            for lane in engine.lanes:
                if hasattr(lane, "_record"):
                    undo.enter_context(patch.object(lane, "_record", record))
            for model in models:
                if model.fused is not None and model.fused.kernels is None:
                    undo.enter_context(patch.object(model, "graphs", ForwardGraphs(model._run_fused, record)))
                elif model.fused is not None:
                    undo.enter_context(patch.object(model, "_run_fused", counter.as_one(model._run_fused)))
        yield
