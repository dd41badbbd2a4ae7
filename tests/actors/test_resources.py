"""The device and the resources of actors."""

import os

import pyarrow as pa
import pytest
import ray.data
import torch

from actors.resources import settle_device
from pipeline.streaming.pool import ActorPool


@pytest.mark.parametrize(
    ("asked", "num_cluster_gpus", "device", "held"),
    [
        pytest.param(0.0, 0, "cpu", 0.0, id="no GPU"),
        pytest.param(0.0, 8, "cuda", 1.0, id="GPUs"),
        pytest.param(0.5, 0, "cuda", 0.5, id="GPUs that may come"),
    ],
)
def test_auto_takes_one_gpu_an_actor_or_the_requested_share_where_there_are_gpus(asked, num_cluster_gpus, device, held):
    assert settle_device("auto", ActorPool(num_gpus=asked), num_cluster_gpus) == (device, ActorPool(num_gpus=held))


@pytest.mark.parametrize(
    ("device", "num_gpus", "num_cluster_gpus", "message"),
    [("cuda", 0, 0, "the cluster has no GPU now"), ("cpu", 1, 4, "drop one of them")],
)
def test_a_device_that_contradicts_the_gpus_is_refused(device, num_gpus, num_cluster_gpus, message):
    with pytest.raises(ValueError, match=message):
        settle_device(device, ActorPool(num_gpus=num_gpus), num_cluster_gpus)


@pytest.mark.parametrize("sizes", [(0, 1), (2, 1)])
def test_an_impossible_pool_is_refused(sizes):
    with pytest.raises(ValueError, match="1 <= min <= max"):
        ActorPool(min_actors=sizes[0], max_actors=sizes[1])


@pytest.mark.ray
@pytest.mark.usefixtures("ray_address")
@pytest.mark.parametrize("num_cpus", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_an_actor_computes_with_as_many_threads_as_it_holds_cpus(num_cpus):
    dataset = ray.data.from_items([{"row": 0}]).map_batches(_Threads, **ActorPool(num_cpus=num_cpus).map_options)
    (found,) = dataset.take_all()
    assert found["OMP_NUM_THREADS"] == str(num_cpus)
    assert found["threads"] == min(num_cpus, len(os.sched_getaffinity(0)))  # torch takes no more than there are


class _Threads:
    def __call__(self, batch: pa.Table) -> pa.Table:
        return pa.table({"threads": [torch.get_num_threads()], "OMP_NUM_THREADS": [os.environ.get("OMP_NUM_THREADS")]})
