"""A batch on Ray Serve survives the processes that drive it and that do it, with the texts of the offline job."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from endpoint.batches.batch import BatchSettings
from endpoint.deployment import BATCHES_NAME, deploy
from endpoint.http.bodies import WINDOW_BYTES
from jobs import generate
from tests.endpoint.batches.asking import begin, content, ended, line, results, texts
from tests.endpoint.in_process import Running
from tests.endpoint.on_serve.application import kill, pids, replica_pids, served_at, take_away
from tests.jobs.runs import generations, wait_until

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]
NUM_ROWS = 48
# Larger than the bodies of other requests may be, as files usually are.
LABELS = {str(number): "u" * 500 for number in range(8)}
LINES = [line(i, seed=None, max_tokens=120, ignore_eos=True, temperature=1, metadata=LABELS) for i in range(NUM_ROWS)]


@pytest.fixture(scope="module")
def with_batches(
    serve_port: int, text_pair: tuple[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """The application with two replicas and the Batch API."""
    served = served_at(serve_port, text_pair)
    take_away()
    settings = BatchSettings(path=str(tmp_path_factory.mktemp("batches")), rows_per_unit=4)
    deploy(served.application(batch_settings=settings))
    try:
        yield served
    finally:
        take_away()


def test_a_file_of_many_parts_comes_back_as_it_was_uploaded(with_batches):
    data = random.Random(1).randbytes(3 * WINDOW_BYTES + 7)
    with with_batches.client() as api:
        file = api.files.create(file=("large", data), purpose="batch")
        assert file.bytes == len(data)
        assert api.files.content(file.id).read() == data


def test_a_batch_whose_driver_and_replica_are_killed_has_every_text_of_the_offline_job(with_batches, tmp_path):
    with with_batches.client(max_retries=10) as api:
        batch = begin(api, LINES)

        def is_under_way() -> bool:
            counts = api.batches.retrieve(batch.id).request_counts
            return counts is not None and counts.completed > 0

        wait_until(is_under_way, every_s=0.05)
        (driver,) = pids(BATCHES_NAME)
        kill(driver)
        kill(replica_pids()[0])
        assert api.batches.retrieve(batch.id).status == "in_progress", "killed too late"
        batch = ended(api, batch)
        assert batch.status == "completed"
        assert batch.request_counts is not None
        assert batch.request_counts.model_dump() == {"total": NUM_ROWS, "completed": NUM_ROWS, "failed": 0}
        assert batch.error_file_id is None
        found = texts(results(api, batch.output_file_id))
    assert list(found.values()) == offline_texts(with_batches, tmp_path)


def offline_texts(served: Running, folder: Path) -> list[str]:
    """Return the texts that `jobs.generate` writes over the same file."""
    source, output, models = folder / "in.jsonl", folder / "offline", served.settings.models
    source.write_bytes(content(LINES))
    arguments: list[Any] = [f"--input.path={source}", f"--output.path={output}", f"--models.target={models.target}"]
    arguments += [f"--models.draft={models.draft}", "--models.device=cpu", "--run.progress=none"]
    arguments += ["--input.format=openai_batch", f"--engine.max_model_len={served.settings.engine.max_model_len}"]
    assert generate.main(arguments) == 0
    return [row["text"] for row in generations(output)]
