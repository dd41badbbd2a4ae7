"""What stages may hold and how a loss of one is told from an error, without any stage."""

import pytest
import ray
import torch
from ray.exceptions import ActorDiedError, GetTimeoutError, RayError, RayTaskError, RuntimeEnvSetupError

from actors.engines.dray import drafting_device
from actors.placement import StageSettings
from actors.stages.actor import RankFailedError
from actors.stages.group import is_loss


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_gpus": 1.5}, "stages.num_gpus must be a whole number, or a share of one GPU, got 1.5"),
        ({"num_cpus": -1}, "stages.num_cpus must not be negative"),
    ],
)
def test_resources_that_a_stage_cannot_hold_are_refused(settings, message):
    """Stages, draft actors and the pool share these checks (tests/jobs/config/test_run.py has the others)."""
    with pytest.raises(ValueError, match=message):
        StageSettings(count=2, **settings)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ActorDiedError(), True),
        (GetTimeoutError(), True),
        (RankFailedError(), True),
        (RayTaskError("do", "", ActorDiedError()), True),
        (RayTaskError("do", "", ValueError()), False),
        (RuntimeEnvSetupError(), False),
        (RayError(), False),
        (ValueError(), False),
    ],
)
def test_only_a_process_that_is_gone_or_late_is_a_loss(error, expected):
    assert is_loss(error) is expected


@pytest.mark.ray
@pytest.mark.usefixtures("ray_address")
def test_a_generator_that_holds_no_gpu_drafts_on_the_cpu_whatever_it_sees(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert drafting_device("cuda") == drafting_device("auto") == "cpu"
    context = type(ray.get_runtime_context())
    monkeypatch.setattr(context, "get_accelerator_ids", lambda self: {"GPU": ["3"]})
    assert drafting_device("cuda") == "cuda"
    assert drafting_device("cpu") == "cpu"
