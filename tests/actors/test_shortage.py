"""The message about what a cluster lacks for a pool."""

from typing import Any

import pytest

from actors.placement import DraftSettings, StageSettings
from actors.resources import shortage
from actors.settings import GeneratorSettings, ModelSettings
from pipeline.streaming.pool import ActorPool

H100, A100 = {"ray.io/accelerator-type": "H100"}, {"ray.io/accelerator-type": "A100"}


def node(labels: dict[str, str] | None = None, alive: bool = True, **resources: float) -> dict[str, Any]:
    return {"Alive": alive, "Labels": labels, "Resources": resources}


def test_a_cluster_with_room_lacks_nothing():
    assert shortage(ActorPool(min_actors=3, max_actors=9), [node(CPU=2), node(CPU=1)]) is None
    assert shortage(ActorPool(min_actors=10, max_actors=10, num_cpus=0.1), [node(CPU=1)]) is None


@pytest.mark.parametrize(
    ("pool", "nodes", "message"),
    [
        (
            ActorPool(min_actors=1, max_actors=8, initial_actors=8, num_gpus=1),
            [node(CPU=64, GPU=4), node(CPU=64)],
            "room for 4 of 8 actors: each takes 1 CPU, 1 GPU and there is 4 GPU",
        ),
        (
            ActorPool(num_gpus=1, accelerator_type="H100"),
            [node(CPU=8, GPU=8)],
            "room for 0 of 1 actors: each takes 1 CPU, 1 GPU, 0.001 accelerator_type:H100 and there is "
            "0 accelerator_type:H100",
        ),
        (
            ActorPool(num_cpus=8),
            [node(CPU=4), node(CPU=4)],
            "room for 0 of 1 actors: each takes 8 CPU and there is 8 CPU",
        ),
        (ActorPool(memory=1000), [node(CPU=4, memory=10)], "each takes 1 CPU, 1000 memory and there is 10 memory"),
        (ActorPool(resources={"disk": 2}), [node(CPU=4)], "each takes 1 CPU, 2 disk and there is 0 disk"),
        (
            ActorPool(label_selector=H100),
            [node(A100, CPU=4)],
            "no node has the labels {'ray.io/accelerator-type': 'H100'}",
        ),
        (
            ActorPool(min_actors=2, max_actors=2, label_selector=H100),
            [node(H100, CPU=1), node(A100, CPU=9)],
            "room for 1 of 2 actors: each takes 1 CPU and there is 1 CPU on the 1 nodes that fit",
        ),
        (ActorPool(min_actors=2, max_actors=2), [node(CPU=1), node(CPU=9, alive=False)], "room for 1 of 2 actors"),
    ],
)
def test_what_is_missing_is_named(pool, nodes, message):
    assert message in str(shortage(pool, nodes))


@pytest.mark.parametrize(
    ("settings", "nodes", "message"),
    [
        (
            {"stages": StageSettings(count=4, num_gpus=1)},
            [node(CPU=64, GPU=4)],
            "room for 4 of 8 stages: each takes 1 CPU, 1 GPU and there is 4 GPU",
        ),
        (
            {"stages": StageSettings(count=4, label_selector=H100)},
            [node(A100, CPU=64)],
            "no node has the labels {'ray.io/accelerator-type': 'H100'}",
        ),
        (
            {"stages": StageSettings(count=3)},
            [node(CPU=4), node(CPU=3)],
            "2 actors 2 and 6 stages 6 CPU, which is 8 in all, and there is 7 CPU",
        ),
        (
            {"placement": "split", "drafts": DraftSettings(num_gpus=1, per_target=0.5)},
            [node(CPU=9)],
            "room for 0 of 1 draft actors",
        ),
        ({"stages": StageSettings(count=3)}, [node(CPU=4), node(CPU=4)], "None"),
    ],
)
def test_stages_and_draft_actors_count(settings, nodes, message):
    generator = GeneratorSettings(models=ModelSettings(target="t", draft="d"), **settings)
    assert message in str(shortage(ActorPool(min_actors=2, max_actors=2), nodes, generator))


def test_nodes_with_fallback_labels_count():
    pool = ActorPool(min_actors=2, max_actors=2, label_selector=H100, fallback_label_selectors=(A100,))
    assert shortage(pool, [node(H100, CPU=1), node(A100, CPU=1)]) is None


def test_a_selector_with_operators_fits_every_node():
    assert shortage(ActorPool(label_selector={"zone": "!in(a, b)"}), [node(CPU=1)]) is None
