"""What counts as a launch and what as a wait, operation by operation, and in the rounds of an engine."""

from types import SimpleNamespace

import pytest
import torch

from benchmarks.decoder.counts.launches import LaunchCounter, Launches
from benchmarks.decoder.counts.round_count import count_round
from benchmarks.decoder.shared_models import SharedModels
from decoding import EngineOptions, SamplingParams, Sequence

CPU = torch.device("cpu")
X = torch.arange(12.0).view(3, 4)


def counts(run, counter: LaunchCounter | None = None) -> tuple[float, float, float]:
    counter = counter or LaunchCounter(CPU)
    with counter.counting(), torch.inference_mode():
        run()
    return counter.counts.launches, counter.counts.replays, counter.counts.host_syncs


@pytest.mark.parametrize(
    ("run", "launches", "host_syncs"),
    [
        (lambda: X + 1, 1, 0),
        (lambda: X.view(4, 3).t()[1:, None].expand(2, 3, 4), 0, 0),
        (lambda: X.t().reshape(-1), 1, 0),  # a copy
        (lambda: torch.empty(3), 0, 0),
        (lambda: torch.zeros(3), 1, 0),
        (lambda: torch.tensor([1, 2]), 1, 0),  # from the host
        (lambda: torch.tensor([1, 2], device="cpu"), 1, 1),
        (lambda: X[0, 0].item(), 0, 1),
        (lambda: bool((X > 5).any()), 2, 1),
        (lambda: X.tolist(), 0, 1),
        (lambda: X.nonzero(), 1, 1),
        (lambda: X[X > 5], 2, 1),
        (lambda: X[torch.zeros(2, dtype=torch.int64)], 2, 0),
        (lambda: X.clone().__setitem__(X > 5, 0.0), 3, 0),  # a fill, whatever the mask holds
        (lambda: X.repeat_interleave(2, dim=0), 1, 0),
        (lambda: torch.einsum("ij,kj->ik", X, X), 1, 0),  # as what it is made of
    ],
)
def test_an_operation_is_a_launch_unless_it_does_nothing_and_a_wait_if_the_host_needs_its_values(
    run, launches, host_syncs
):
    assert counts(run) == (launches, 0, host_syncs)


def test_a_graph_is_one_replay_whatever_is_in_it(monkeypatch):
    counter = LaunchCounter(CPU)
    assert counts(counter.as_one(lambda: (X + 1, X.tolist())), counter) == (0, 1, 0)
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda self: X + 1)
    assert counts(lambda: (torch.cuda.CUDAGraph.replay(SimpleNamespace()), X * 2)) == (1, 1, 0)


def test_operations_on_another_device_are_not_counted():
    assert counts(lambda: X + 1, LaunchCounter(torch.device("meta"))) == (0, 0, 0)
    assert counts(lambda: torch.empty(3, device="meta") + 1, LaunchCounter(torch.device("meta"))) == (1, 0, 0)


def test_each_count_begins_at_zero_and_nothing_stays_patched():
    counter = LaunchCounter(CPU)
    replay = torch.cuda.CUDAGraph.replay
    assert counts(lambda: X + 1, counter) == counts(lambda: X + 1, counter) == (1, 0, 0)
    X.add(1)
    assert counter.counts.launches == 1
    assert torch.cuda.CUDAGraph.replay is replay


@pytest.fixture(scope="module")
def models(pair) -> SharedModels:
    return SharedModels(str(pair / "target"), str(pair / "draft"), "cpu", "float32")


def round_of(models: SharedModels, drafted: int, num_rows: int = 3, **params: float) -> Launches:
    drafter = "model" if drafted else "none"
    lengths = {"num_speculative_tokens": drafted or 1, "draft_length": "fixed"}
    engine = models.engine(EngineOptions(num_slots=num_rows, max_model_len=80, drafter=drafter, **lengths))
    sampling = SamplingParams(**{"temperature": 0.0, "max_tokens": 60, "ignore_eos": True, **params})
    rows = [Sequence.create([1, 2, 3, 4], sampling, row=row) for row in range(num_rows)]
    found = count_round(engine, (models.target, models.draft), rows)
    assert not engine.has_work
    return found


@pytest.mark.parametrize("kernels", ["on", "off"])
def test_a_round_replays_one_graph_for_each_forward_and_a_greedy_one_waits_once(pair, kernels, monkeypatch):
    monkeypatch.setenv("DRAY_KERNELS", kernels)
    models = SharedModels(str(pair / "target"), str(pair / "draft"), "cpu", "float32")
    plain, drafted = round_of(models, 0), round_of(models, 3)
    assert (plain.replays, drafted.replays) == (1, 4)
    assert (plain.host_syncs, drafted.host_syncs) == (1, 1)
    assert 0 < plain.launches < drafted.launches
    assert models.target.graphs is None  # what stood in for graphs is gone
    assert "_run_fused" not in vars(models.target)
