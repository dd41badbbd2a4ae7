"""What actors hold."""

import pytest

from actors.resources import settle_device
from pipeline.dataset import ActorPool


def test_auto_takes_the_cpu_where_there_is_no_gpu() -> None:
    assert settle_device("auto", ActorPool(), num_cluster_gpus=0) == ("cpu", ActorPool())


def test_auto_takes_one_gpu_an_actor_where_the_cluster_has_gpus() -> None:
    assert settle_device("auto", ActorPool(), num_cluster_gpus=8) == ("cuda", ActorPool(num_gpus=1.0))


def test_a_share_of_a_gpu_that_is_asked_for_is_kept_even_before_the_cluster_has_any() -> None:
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
