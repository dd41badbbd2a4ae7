"""A batch goes on after whatever ended its process, ends when it must, and counts every row once."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import ActorDiedError

from actors.engine.translation import decode_row, encode_row
from actors.engines.loading import load_codec
from actors.workers.batch_worker import BATCH_INPUT, UnitOrder
from actors.workers.replica import Replica
from decoding import Engine, EngineOptions
from decoding.sequence import Sequence
from endpoint.batches.batch import ENDED, Batch, BatchSettings
from endpoint.batches.process import Batches
from endpoint.batches.run import BatchModel, Outcome, ReplicaUnits, sampling_of
from endpoint.batches.store import BatchStore, FileStore, StoredFile, new_id
from endpoint.service.served_model import ServedModel
from endpoint.service.service import ServiceSettings
from pipeline.inputs.files import list_files
from pipeline.inputs.rows import InputRow, read_unit
from pipeline.inputs.units import plan_units
from pipeline.streaming.calls import PlaceFailedError, UnitError
from tests.clock import Clock
from tests.endpoint.batches.asking import COMPLETIONS, content, line, texts
from tests.endpoint.batches.driving import batch_model, make_batches
from tests.endpoint.in_process import MODEL, settings_of
from tests.pipeline.stores import CREDENTIALS, running_s3_server, s3_uri

NUM_ROWS, ROWS_PER_UNIT = 12, 4
LINES = [line(number, temperature=1, seed=None) for number in range(NUM_ROWS)]
SERVICE = ServiceSettings(model=MODEL)


@dataclass
class Watched:
    """Units that a replica does, with a word to say before and after each."""

    replica: Replica
    before: Callable[[int], Awaitable[object]] | None = None
    after: Callable[[int], object] | None = None
    num_done: int = 0

    async def write_unit(self, order: UnitOrder) -> Outcome:
        if self.before is not None:
            await self.before(self.num_done)
        outcome = await self.replica.write_unit(order)
        self.num_done += 1
        if self.after is not None:
            self.after(self.num_done)
        return outcome


@dataclass
class Case:
    """One batch on storage, and what drives it."""

    folder: Path
    pair: tuple[str, str]
    clock: Clock = field(default_factory=Clock)
    root: str = ""  # the folder, unless given

    def __post_init__(self) -> None:
        self.clock.now, self.root = 1000.0, self.root or str(self.folder)
        self.settings = BatchSettings(path=self.root, rows_per_unit=ROWS_PER_UNIT)
        self.files = FileStore(self.root, self.clock)
        self.file_id, self.batch_id = new_id("file"), new_id("batch")
        with self.files.writing("me", self.file_id) as stream:
            stream.write(content(LINES))
        values = {"bytes": 1, "created_at": 0, "expires_at": 9999, "filename": "f"}
        self.files.add("me", StoredFile(id=self.file_id, purpose="batch", **values))
        self.store = BatchStore(self.files.root, self.files.temporary)
        self.store.create(
            Batch(
                id=self.batch_id,
                owner="me",
                endpoint=COMPLETIONS,
                input_file_id=self.file_id,
                model=MODEL,
                created_at=1000,
                expires_at=2000,
            )
        )

    @property
    def batch(self) -> Batch:
        found = BatchStore(self.files.root, self.files.temporary).read("me", self.batch_id)
        assert found is not None
        return found

    @property
    def run_path(self) -> Path:
        return self.folder / "me" / "batches" / self.batch_id / "run"

    def batches(self, units: Any, pair: tuple[str, str] | None = None, **options: Any) -> Batches:
        """Return drivers as a new process has them."""
        settings = settings_of(pair or self.pair)
        codec = load_codec(settings)
        own = {name: options.pop(name) for name in ("fingerprint",) if name in options}
        max_units = options.get("max_units", 2)
        rows = self.settings.rows_per_unit
        model = batch_model(settings, codec, SERVICE, units, rows_per_unit=rows, max_units=max_units, **own)
        adapters = options.pop("adapters", ())
        return make_batches([model, *adapters], self.settings, clock=self.clock, **options)

    async def drive(self, batches: Batches, until: Callable[[], bool] | None = None) -> None:
        """Drive until the batch has ended or something else holds, then end the process as a kill does."""
        running = asyncio.create_task(batches.run())
        async with asyncio.timeout(100):
            while not (until() if until is not None else self.batch.status in ENDED):
                assert not running.done()
                await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    def results(self, file_id: str | None) -> dict[str, Any]:
        if file_id is None:
            return {}
        found = [json.loads(each) for each in b"".join(self.files.chunks("me", file_id)).splitlines()]
        return {each["custom_id"]: each for each in found}

    def check_complete(self, expected: dict[str, str]) -> None:
        """Check that each row has its text, once."""
        batch = self.batch
        assert (batch.status, batch.num_rows, batch.num_completed, batch.num_failed) == (
            "completed",
            NUM_ROWS,
            NUM_ROWS,
            0,
        )
        assert texts(self.results(batch.output_file_id)) == expected
        assert batch.error_file_id is None


class DyingReplicas:
    """A deployment whose replica dies in the step that reads a prompt with this word; another one then comes."""

    def __init__(self, pair: tuple[str, str], killer: str) -> None:
        self._pair, self._killer = pair, killer
        self.num_deaths = 0
        self._replica = self._new()
        self.write_unit = self

    def remote(self, order: UnitOrder) -> Any:
        return _Response(self._write(order))

    async def _write(self, order: UnitOrder) -> Outcome:
        replica, dead = self._replica
        unit = asyncio.ensure_future(replica.write_unit(order))
        died = asyncio.ensure_future(dead.wait())
        await asyncio.wait({unit, died}, return_when=asyncio.FIRST_COMPLETED)
        died.cancel()
        if dead.is_set():
            unit.cancel()
            await asyncio.gather(unit, return_exceptions=True)
            raise ActorDiedError
        return unit.result()

    def _new(self) -> tuple[Replica, asyncio.Event]:
        replica, dead = Replica(settings_of(self._pair)), asyncio.Event()
        loop, codec = replica._loop, replica._codec
        finish = loop.stream

        def stream(sequences: list[Sequence], *arguments: Any, **options: Any) -> Any:
            if any(self._killer in codec.decode(each.prompt_token_ids) for each in sequences):
                self.num_deaths += 1
                self._replica = self._new()
                dead.set()
            return finish(sequences, *arguments, **options)

        loop.stream = stream  # type: ignore[method-assign]
        return replica, dead


class _Response:
    def __init__(self, coroutine: Any) -> None:
        self._task = asyncio.ensure_future(coroutine)

    def __await__(self) -> Any:
        return self._task.__await__()

    def cancel(self) -> None:
        self._task.cancel()


@pytest.fixture
def case(tmp_path: Path, text_pair: tuple[str, str]) -> Case:
    return Case(tmp_path, text_pair)


@pytest.fixture(scope="module")
def expected(text_pair: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The texts of all rows, of a batch that nothing disturbs."""
    case = Case(tmp_path_factory.mktemp("undisturbed"), text_pair)
    asyncio.run(case.drive(case.batches(Replica(settings_of(text_pair)))))
    return texts(case.results(case.batch.output_file_id))


def test_a_process_that_ends_after_each_unit_costs_no_row(case, expected):
    async def scenario() -> None:
        for num_units in (1, 2):
            watched = Watched(Replica(settings_of(case.pair)))
            await case.drive(case.batches(watched, max_units=1), lambda units=watched: units.num_done >= 1)  # type: ignore[misc]
            assert len(list((case.run_path / "data").iterdir())) >= num_units
            assert case.batch.status == "in_progress"
        await case.drive(case.batches(Replica(settings_of(case.pair))))

    asyncio.run(scenario())
    case.check_complete(expected)


@pytest.mark.parametrize("first", range(6))
def test_a_state_that_cannot_be_written_is_written_later(case, expected, monkeypatch, first):
    """A kill before or after any of these writes leaves the same to the drivers that come after."""
    write, num_writes = BatchStore.replace, 0

    def failing(self: BatchStore, batch: Batch) -> None:
        nonlocal num_writes
        num_writes += 1
        if num_writes == first + 1:
            raise OSError("the disk is away")
        write(self, batch)
        if num_writes == first + 2:
            raise OSError("the answer is lost")

    monkeypatch.setattr(BatchStore, "replace", failing)
    monkeypatch.setattr("endpoint.batches.process._LOOK_EVERY_S", 0.01)
    asyncio.run(case.drive(case.batches(Replica(settings_of(case.pair)))))
    case.check_complete(expected)


def test_a_batch_on_an_object_store_is_the_same_and_is_deleted_with_its_run(tmp_path, text_pair, expected, monkeypatch):
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with running_s3_server() as server:
        case = Case(tmp_path, text_pair, root=s3_uri(server, "bucket/batches"))
        asyncio.run(case.drive(case.batches(Replica(settings_of(text_pair)))))
        case.check_complete(expected)
        store, output_id = BatchStore(case.files.root, case.files.temporary), case.batch.output_file_id
        assert output_id is not None
        case.files.delete("me", output_id)
        assert case.files.ids("me") == [case.file_id]
        assert store.delete_old("me", ended_before=5e9) == [case.batch_id]
        assert store.ids("me") == []
        assert case.files.owners() == ["me"]


def test_rows_without_a_seed_have_the_texts_of_the_offline_job(case, expected):
    settings = settings_of(case.pair)
    settings, codec = replace(settings, sampling=sampling_of(COMPLETIONS)), load_codec(settings)
    (unit,) = plan_units(list_files(case.files.content("me", case.file_id).name), BATCH_INPUT, 100)
    rows = [row for row in read_unit(unit, BATCH_INPUT, {}) if isinstance(row, InputRow)]
    encoded = [encode_row(row, ordinal, codec, settings) for ordinal, row in enumerate(rows)]
    plain = Engine.load(case.pair[0], None, EngineOptions(num_slots=4, drafter="none"), device="cpu", dtype="float32")
    for _ in plain.stream([sequence for row in encoded for sequence in row.sequences]):
        pass
    assert [decode_row(row, codec)[0]["text"] for row in encoded] == list(expected.values())


def test_a_cancelled_batch_writes_nothing_more(case):
    async def scenario() -> None:
        replica = Replica(settings_of(case.pair))
        batches: Batches | None = None

        def cancel_after_one(num_done: int) -> None:
            assert batches is not None
            case.store.ask_to_cancel(case.batch, case.clock())
            batches.wake()

        async def wait(num_done: int) -> None:
            if num_done:
                await asyncio.Event().wait()  # a unit that would never end

        units = Watched(replica, before=wait, after=cancel_after_one)
        batches = case.batches(units, max_units=1)
        await case.drive(batches)
        assert units.num_done == 1
        assert replica.stats().num_running == 0
        await case.drive(case.batches(Replica(settings_of(case.pair))), lambda: True)

    asyncio.run(scenario())
    batch = case.batch
    assert (batch.status, batch.num_completed) == ("cancelled", ROWS_PER_UNIT)
    assert len(list((case.run_path / "data").iterdir())) == 1
    assert len(case.results(batch.output_file_id)) == ROWS_PER_UNIT
    assert len(case.results(batch.error_file_id)) == NUM_ROWS - ROWS_PER_UNIT
    assert batch.changed_at["cancelling"] <= batch.changed_at["cancelled"]


def test_a_batch_whose_time_is_over_expires_with_what_it_has(case):
    async def scenario() -> None:
        async def too_long(num_done: int) -> None:
            if num_done:
                case.clock.now = 2000.0
                await asyncio.Event().wait()

        units = Watched(Replica(settings_of(case.pair)), before=too_long)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("endpoint.batches.driver._LOOK_EVERY_S", 0.01)
            await case.drive(case.batches(units, max_units=1))

    asyncio.run(scenario())
    batch = case.batch
    assert (batch.status, batch.num_completed, batch.changed_at["expired"]) == ("expired", ROWS_PER_UNIT, 2000)
    assert {each["error"]["code"] for each in case.results(batch.error_file_id).values()} == {"batch_expired"}


def test_a_row_that_kills_its_replica_is_an_error_line_and_no_other_row_is_lost(case, expected, monkeypatch):
    monkeypatch.setattr("endpoint.batches.run._AGAIN_S", 0.0)

    async def scenario() -> int:
        dying = DyingReplicas(case.pair, "hello 6")
        await case.drive(case.batches(ReplicaUnits(dying), max_units=1))
        return dying.num_deaths

    assert 2 <= asyncio.run(scenario()) <= 5
    batch = case.batch
    assert (batch.status, batch.num_completed, batch.num_failed) == ("completed", NUM_ROWS - 1, 1)
    (error,) = case.results(batch.error_file_id).values()
    assert (error["custom_id"], error["response"]["status_code"]) == ("row-6", 500)
    assert texts(case.results(batch.output_file_id)) == {k: v for k, v in expected.items() if k != "row-6"}


def test_a_batch_of_another_model_fails_with_what_it_has(case, tmp_path):
    async def scenario() -> None:
        watched = Watched(Replica(settings_of(case.pair)))
        await case.drive(case.batches(watched, max_units=1), lambda: watched.num_done >= 1)
        draft_as_target = (case.pair[1], case.pair[0])
        other = Replica(settings_of(draft_as_target))
        await case.drive(case.batches(other, draft_as_target))

    asyncio.run(scenario())
    batch = case.batch
    assert batch.status == "failed"
    assert "another model" in batch.errors[0].message
    num_done = len(case.results(batch.output_file_id))
    assert num_done >= ROWS_PER_UNIT
    assert num_done + len(case.results(batch.error_file_id)) == NUM_ROWS


def test_a_unit_that_fails_again_and_again_fails_its_batch_without_details(case, monkeypatch):
    monkeypatch.setattr("endpoint.batches.driver._FIRST_WAIT_S", 0.0)

    class Broken:
        num_calls = 0

        async def write_unit(self, order: UnitOrder) -> Outcome:
            self.num_calls += 1
            return UnitError("/secret/path is full")

    broken = Broken()
    asyncio.run(case.drive(case.batches(broken, max_units=1)))
    assert case.batch.status == "failed"
    assert broken.num_calls == 5
    assert "secret" not in case.batch.errors[0].message


def test_a_unit_goes_on_after_a_replicas_disk_was_full_for_long(case, monkeypatch):
    monkeypatch.setattr("endpoint.batches.driver._FIRST_WAIT_S", 0.0)
    replica, num_failed = Replica(settings_of(case.pair)), 0

    class Full:
        async def write_unit(self, order: UnitOrder) -> Outcome:
            nonlocal num_failed
            if num_failed < 7:
                num_failed += 1
                return PlaceFailedError("/secret/path is full")
            return await replica.write_unit(order)

    asyncio.run(case.drive(case.batches(Full(), max_units=1)))
    assert case.batch.status == "completed"
    assert num_failed == 7


def test_a_batch_whose_part_is_damaged_fails_and_is_not_tried_for_ever(case):
    async def scenario() -> None:
        watched = Watched(Replica(settings_of(case.pair)))
        await case.drive(case.batches(watched, max_units=1), lambda: watched.num_done >= 1)
        for part in (case.run_path / "data").iterdir():
            part.write_bytes(b"PAR1 and no more")
        await case.drive(case.batches(watched))

    asyncio.run(scenario())
    assert case.batch.status == "failed"
    assert "cannot read" in case.batch.errors[0].message


def test_an_engine_of_another_model_is_waited_for(case, monkeypatch):
    monkeypatch.setattr("endpoint.batches.driver._OTHER_MODEL_S", 0.0)

    async def scenario() -> int:
        replica = Replica(settings_of(case.pair))
        num_refused = 0

        class Updating:
            async def write_unit(self, order: UnitOrder) -> Outcome:
                nonlocal num_refused
                replica._settings = replace(replica._settings, fingerprint="old" if num_refused < 3 else "new")
                outcome = await replica.write_unit(order)
                num_refused += isinstance(outcome, Exception)
                return outcome

        await case.drive(case.batches(Updating(), max_units=1, fingerprint="new"))
        return num_refused

    assert asyncio.run(scenario()) == 3
    assert case.batch.num_completed == NUM_ROWS


def test_a_batch_of_an_adapter_is_written_by_it_alone_and_fails_by_name_once_it_is_gone(case, text_pair):
    """The other model stands for an adapter: what it writes differs from what the endpoint's own model writes."""

    async def scenario() -> None:
        own = Watched(Replica(settings_of(case.pair)))
        settings = settings_of((case.pair[1], case.pair[1]))
        watched = Watched(Replica(settings), after=lambda _: watched_units.append(1))
        watched_units: list[int] = []
        service = ServiceSettings(model="pirate", parent=MODEL)
        adapter = batch_model(settings, load_codec(settings), service, watched, rows_per_unit=ROWS_PER_UNIT)
        with case.files.writing("me", case.file_id) as stream:
            stream.write(content([{**each, "body": {**each["body"], "model": "pirate"}} for each in LINES]))
        await case.drive(case.batches(own, adapters=[adapter], max_units=1), lambda: bool(watched_units))
        assert own.num_done == 0
        assert (case.batch.model, case.batch.adapter) == ("pirate", "pirate")
        await case.drive(case.batches(own))
        assert own.num_done == 0, "it would be another model's text"

    asyncio.run(scenario())
    assert case.batch.status == "failed"
    assert [error.message for error in case.batch.errors] == ["The model 'pirate' is not served any more."]


def test_the_identity_of_the_weights_is_read_once_for_all_batches(case, monkeypatch, tmp_path_factory):
    settings, num_reads = settings_of(case.pair), 0

    def counting(*arguments: Any) -> dict[str, Any]:
        nonlocal num_reads
        num_reads += 1
        return {}

    monkeypatch.setattr("endpoint.batches.run.engine_identity", counting)
    served = ServedModel(settings=settings, service=ServiceSettings(model=MODEL))
    runs, folder = BatchModel(served, load_codec(settings), ReplicaUnits(None), 4, 1), tmp_path_factory.mktemp("runs")
    for name in ("one", "two"):
        runs.open_run(
            case.files.root.child(f"{folder}/{name}").at(f"{folder}/{name}"),
            case.files.content("me", case.file_id),
            COMPLETIONS,
        )
    assert num_reads == 1
