"""The device and the resources of actors."""

import os

import pyarrow as pa
import pytest
import ray.data
import torch

from actors.resources import settle_device
from pipeline.streaming.pool import ActorPool


def test_auto_takes_the_cpu_where_there_is_no_gpu() -> None:
    assert settle_device("auto", ActorPool(), num_cluster_gpus=0) == ("cpu", ActorPool())


def test_auto_takes_one_gpu_an_actor_where_the_cluster_has_gpus() -> None:
    assert settle_device("auto", ActorPool(), num_cluster_gpus=8) == ("cuda", ActorPool(num_gpus=1.0))


def test_a_requested_share_of_a_gpu_is_kept_even_if_the_cluster_has_no_gpu_yet() -> None:
    assert settle_device("auto", ActorPool(num_gpus=0.5), num_cluster_gpus=0) == ("cuda", ActorPool(num_gpus=0.5))


def test_cuda_without_a_gpu_is_refused() -> None:
    with pytest.raises(ValueError, match="the cluster has no GPU now"):
        settle_device("cuda", ActorPool(), num_cluster_gpus=0)


def test_cpu_with_gpus_is_refused() -> None:
    with pytest.raises(ValueError, match="drop one of them"):
        settle_device("cpu", ActorPool(num_gpus=1), num_cluster_gpus=4)


@pytest.mark.parametrize("sizes", [(0, 1), (2, 1)])
def test_an_impossible_pool_is_refused(sizes: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="1 <= min <= max"):
        ActorPool(min_actors=sizes[0], max_actors=sizes[1])


@pytest.mark.ray
@pytest.mark.usefixtures("ray_address")
@pytest.mark.parametrize("num_cpus", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_an_actor_computes_with_as_many_threads_as_it_holds_cpus(num_cpus: int) -> None:
    dataset = ray.data.from_items([{"row": 0}]).map_batches(_Threads, **ActorPool(num_cpus=num_cpus).map_options)
    (found,) = dataset.take_all()
    assert found["OMP_NUM_THREADS"] == str(num_cpus)
    assert found["threads"] == min(num_cpus, len(os.sched_getaffinity(0)))  # torch takes no more than there are


class _Threads:
    def __call__(self, batch: pa.Table) -> pa.Table:
        return pa.table({"threads": [torch.get_num_threads()], "OMP_NUM_THREADS": [os.environ.get("OMP_NUM_THREADS")]})
