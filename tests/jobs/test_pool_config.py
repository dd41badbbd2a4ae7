"""The actors section of the configuration: the pool that it becomes, and the values that are refused."""

from pathlib import Path

import pytest

from actors.units.ledger import start_ledger
from jobs.config.run import load_config
from jobs.driver.watches import ShortageWatch
from pipeline.streaming.pool import ActorPool
from tests.jobs.runs import wait_until

YAML = """
input: {path: prompts.jsonl}
output: {path: out}
models: {target: target}
actors:
  min_actors: 2
  max_actors: 64
  initial_actors: 16
  num_gpus: 1
  memory: 80GiB
  resources: {nvme: 0.5}
  accelerator_type: H100
  label_selector: {ray.io/market-type: spot}
  fallback_label_selectors: [{ray.io/market-type: on-demand}]
run: {backup_units: false}
"""


def test_the_actors_section_becomes_a_pool(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(YAML)
    config = load_config([f"--config={tmp_path / 'run.yaml'}"], prog="test")
    assert not config.run.backup_units
    assert config.actors == ActorPool(
        min_actors=2,
        max_actors=64,
        initial_actors=16,
        num_gpus=1,
        memory=80 * 1024**3,
        resources={"nvme": 0.5},
        accelerator_type="H100",
        label_selector={"ray.io/market-type": "spot"},
        fallback_label_selectors=({"ray.io/market-type": "on-demand"},),
    )


def test_flags_take_json() -> None:
    flags = ["--input.path=x", "--output.path=y", "--models.target=z", '--actors.label_selector={"zone": "a"}']
    config = load_config([*flags, '--actors.resources={"nvme": 1}'], prog="test")
    assert config.actors == ActorPool(label_selector={"zone": "a"}, resources={"nvme": 1})


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--actors.initial_actors=5", "initial_actors must lie between min_actors 1 and max_actors 1, got 5"),
        ('--actors.resources={"GPU": 1}', "resources names 'GPU'; that is what actors.num_gpus is for"),
        ('--actors.resources={"nvme": 0}', "'nvme' must be a whole number, or a share between 0 and 1, got 0"),
        ('--actors.resources={"nvme": 1.5}', "'nvme' must be a whole number, or a share between 0 and 1, got 1.5"),
        ("--actors.memory=0", "memory must be a positive number of bytes, got 0"),
        ("--actors.memory=lots", "actors.memory: could not parse value and unit from byte string, got 'lots'"),
        ('--actors.fallback_label_selectors=[{"a": "b"}]', "come after actors.label_selector; set that one first"),
        ("--actors.label_selector=5", "actors.label_selector"),
    ],
)
def test_impossible_resources_are_refused(flag: str, message: str) -> None:
    flags = ["--input.path=x", "--output.path=y", "--models.target=z"]
    with pytest.raises(ValueError, match="actors") as error:
        load_config([*flags, flag], prog="test")
    assert message in str(error.value)


@pytest.mark.ray
@pytest.mark.usefixtures("ray_address")
def test_a_pool_without_room_on_the_cluster_is_reported_while_it_waits(capsys: pytest.CaptureFixture[str]) -> None:
    printed = []

    def has_reported() -> bool:
        printed.append(capsys.readouterr().err)
        return "room for 3 of 4 actors" in "".join(printed)

    pool = ActorPool(min_actors=1, max_actors=4, initial_actors=4, num_cpus=2)
    with ShortageWatch(pool, start_ledger(), patience_s=0.05):
        wait_until(has_reported)
    assert "waiting for actors, 0 of 4 ready: there is room for 3 of 4 actors: each takes 2 CPU" in "".join(printed)
