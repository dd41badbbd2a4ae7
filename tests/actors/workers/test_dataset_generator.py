"""The generator inside a Ray Data pipeline of the user's own."""

import asyncio

import pyarrow as pa
import pytest
import ray.data

from actors import EngineSettings, GeneratorSettings, ModelSettings, generate
from actors.workers.dataset_generator import DatasetGenerator
from decoding import SamplingParams
from pipeline.counts import Counts
from pipeline.inputs.options import InputOptions
from pipeline.streaming.pool import ActorPool
from pipeline.streaming.stream import quiet_ray_data

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_address")]
Pair = tuple[str, str]

ROWS = [{"name": f"row-{i}", "prompt": "hello world " * (1 + i % 3), "topic": i} for i in range(10)]
ROWS.append({"name": "empty", "prompt": "", "topic": 10})
Out = dict[str, list[dict]]  # the output rows of each input row
INPUT = InputOptions(id_column="name", carry_columns=("topic",))


def settings_of(pair: Pair, **engine: object) -> GeneratorSettings:
    return GeneratorSettings(
        models=ModelSettings(target=pair[0], draft=pair[1]),
        engine=EngineSettings(**engine),
        sampling=SamplingParams(max_tokens=6, n=2),
    )


def run(pair: Pair, rows: list[dict[str, object]], rows_per_batch: int, **engine: object) -> Out:
    quiet_ray_data(600)
    settings, pool = settings_of(pair, **engine), ActorPool(num_cpus=1)
    dataset = generate(
        ray.data.from_items(rows), settings, input_options=INPUT, pool=pool, rows_per_batch=rows_per_batch
    )
    out: Out = {}
    for row in dataset.take_all():
        out.setdefault(row["id"], []).append(row)
    return out


@pytest.fixture(scope="module")
def out(text_pair: Pair, ray_address: str) -> Out:
    """The rows, in batches of 4."""
    return run(text_pair, ROWS, rows_per_batch=4)


def test_every_row_comes_out_with_its_samples_or_its_error(out):
    assert sorted(out) == sorted(row["name"] for row in ROWS)
    for i in range(10):
        assert [row["sample"] for row in out[f"row-{i}"]] == [0, 1]
        assert {row["topic"] for row in out[f"row-{i}"]} == {i}
        assert all(row["num_output_tokens"] == len(row["token_ids"]) for row in out[f"row-{i}"])
    (failed,) = out["empty"]
    assert (failed["error_stage"], failed["text"]) == ("encode", None)


def test_the_text_does_not_depend_on_the_order_of_rows_or_the_batches(text_pair, out):
    def texts(out: Out) -> dict[str, list[object]]:
        return {name: [row["token_ids"] for row in rows] for name, rows in out.items()}

    one = texts(out)
    other = texts(run(text_pair, ROWS[::-1], rows_per_batch=11, drafter="none", num_slots=2))
    assert one == other
    assert one["row-0"] != one["row-3"], "equal prompts under different ids have noise of their own"


def test_a_batch_is_counted_with_its_failed_rows_by_stage(text_pair, monkeypatch):
    generator = DatasetGenerator(settings_of(text_pair), INPUT)
    counted: list[tuple[Counts, dict[str, int]]] = []
    monkeypatch.setattr(generator._metrics, "add_rows", lambda *given: counted.append(given))
    out = asyncio.run(generator(pa.Table.from_pylist(ROWS)))
    ((counts, stages),) = counted
    assert (counts.num_rows, counts.num_errors, counts.num_generations) == (11, 1, 20)
    assert stages == {"encode": 1}
    assert counts.num_output_tokens == sum(number or 0 for number in out["num_output_tokens"].to_pylist()) > 0
