"""count_round: what the host does in a round of an engine, once everything that is recorded has been recorded.

On a CPU the fused forwards of few tokens, which a GPU records, count as replays. Where they run our CPU kernels, the
copies of a forward's inputs into a graph's own are missing in the count, since no graph could stand in for them.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from statistics import median
from typing import cast
from unittest.mock import patch

import torch

from benchmarks.decoder.launches import LaunchCounter, Launches
from decoding import Engine
from decoding import Sequence as Row
from decoding.fused.graphs import CudaRecording, ForwardGraphs
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
    with _standing_in_for_graphs(models, counter):
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
        self._run, self.output = run, run().clone()
        self.replay = counter.as_one(self._replay)

    def _replay(self) -> None:
        self.output.copy_(self._run())


@contextmanager
def _standing_in_for_graphs(models: Sequence[LanguageModel], counter: LaunchCounter) -> Iterator[None]:
    """Let the fused forwards of models on a CPU count as graphs."""
    with ExitStack() as undo:
        for model in models:
            if model.fused is None or model.device.type != "cpu":
                continue
            if model.fused.kernels is None:
                graphs = ForwardGraphs(model._run_fused, lambda run: cast(CudaRecording, _Again(run, counter)))
                undo.enter_context(patch.object(model, "graphs", graphs))
            else:
                undo.enter_context(patch.object(model, "_run_fused", counter.as_one(model._run_fused)))
        yield
