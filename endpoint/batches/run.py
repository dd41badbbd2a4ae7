"""What the drivers of batches share: their models, whose units go to replicas, the runs of batches, and their results.

The run directory of a batch is that of a job over the uploaded file.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, Literal, Protocol, cast

from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, ReplicaUnavailableError

from actors.engine.requests import OtherModelError
from actors.identity import as_begun, described_run, engine_identity, rows_identity
from actors.workers.batch_worker import BATCH_INPUT, UnitOrder
from decoding.sampling_params import SamplingParams
from endpoint.batches.batch import Batch, InputRules
from endpoint.batches.store import BatchStore, FileStore, StoredFile, result_id
from endpoint.service.served_model import ServedModel
from pipeline.export.openai_batch import NotRun, export_results
from pipeline.id_set import IdSet
from pipeline.inputs.files import list_files
from pipeline.inputs.units import WorkUnit, plan_units
from pipeline.logs import Event
from pipeline.requests.texts import KINDS
from pipeline.run.commit import Receipt, read_receipt
from pipeline.run.directory import RunDirectory
from pipeline.run.reading import read_ahead
from pipeline.storage.location import Location
from pipeline.streaming.calls import UnitError
from pipeline.text.codec import TextCodec

Outcome = Receipt | UnitError | OtherModelError | None
_AGAIN_S = 1.0
_log = logging.getLogger(__name__)


def sampling_of(endpoint: str) -> SamplingParams:
    """Return the parameters of rows that give none of their own: those of the endpoint."""
    return SamplingParams(max_tokens=KINDS[endpoint].default_max_tokens)


class UnitWriter(Protocol):
    """A doer of units: `ReplicaUnits`, or `actors.workers.replica.Replica` in its own process."""

    async def write_unit(self, order: UnitOrder) -> Outcome:
        """Do a unit; return its receipt, why it could not be done, or None if it may not begin."""


class BatchModel:
    """A model that batches may ask for, and what their runs have in common."""

    def __init__(
        self, served: ServedModel, codec: TextCodec, units: UnitWriter, rows_per_unit: int, max_units: int
    ) -> None:
        """Make runs of units of `rows_per_unit` rows, of which at most `max_units` are under way at once."""
        self.served, self.codec, self.units, self._rows_per_unit = served, codec, units, rows_per_unit
        self.places = asyncio.Semaphore(max_units)
        self._engine_identity: Mapping[str, Any] | None = None  # computed once: it reads every byte of the weights

    def open_run(self, path: Location, content: Location, endpoint: str) -> RunDirectory:
        """Return the run over an uploaded file at `path`; create it if it does not exist.

        Raises ValueError if it was begun with another model, or its input has changed.
        """
        settings = replace(self.served.settings, sampling=sampling_of(endpoint))
        files = list_files(content.name)
        if self._engine_identity is None:
            self._engine_identity = engine_identity(settings, self.codec)
        identity = {**self._engine_identity, **rows_identity(settings, BATCH_INPUT, files)}
        if identity.get("moment", "") is None:
            begun = RunDirectory.open(path).run["identity"] if RunDirectory.exists(path) else {}
            identity["moment"] = begun.get("moment", datetime.now().isoformat())
        if not RunDirectory.exists(path):
            served = self.served
            described = described_run(settings, identity, served.service.exact)
            run = {
                "carried": {},
                "id_type": "string",
                "has_parts": True,
                "settings": {"endpoint": endpoint, "model": served.name, "models": {"target": served.target}},
                **described,
            }
            try:
                return RunDirectory.create(path, run, plan_units(files, BATCH_INPUT, self._rows_per_unit))
            except ValueError:
                if not RunDirectory.exists(path):
                    raise  # else another driver has just created it
        run_directory = RunDirectory.open(path)
        run_directory.refuse_if_changed(as_begun(identity, run_directory.run["identity"]))
        return run_directory


def receipts_of(run_directory: RunDirectory) -> tuple[dict[int, Receipt], list[WorkUnit]]:
    """Return the receipts of committed units, by unit so that none counts twice, and the units that are missing."""
    committed, units = run_directory.committed_unit_ids(), list(run_directory.units())
    done = [unit.unit_id for unit in units if unit.unit_id in committed]
    receipts = read_ahead(partial(read_receipt, run_directory), done, num_at_once=16)
    return dict(zip(done, receipts, strict=True)), [unit for unit in units if unit.unit_id not in committed]


class ReplicaUnits:
    """Replicas behind a Ray Serve deployment, which does a unit where it has least to do."""

    def __init__(self, handle: Any) -> None:
        """Give units to the replicas behind `handle`."""
        self._handle = handle

    async def write_unit(self, order: UnitOrder) -> Outcome:
        """Return what a replica returns. The ledger counts those that die over the unit, and bounds them."""
        while True:
            response = self._handle.write_unit.remote(order)
            try:
                return cast(Outcome, await response)
            except asyncio.CancelledError:
                response.cancel()
                raise
            except RayTaskError as error:  # not of a unit: those come as data
                return UnitError(f"a replica failed: {type(error.cause).__name__}")
            except (RayError, ReplicaUnavailableError, DeploymentUnavailableError, BackPressureError) as error:
                _log.warning(Event("replica lost", unit=order.unit.unit_id, error_type=type(error).__name__))
            await asyncio.sleep(_AGAIN_S)


@dataclass(frozen=True, kw_only=True)
class Workshop:
    """What the drivers of all batches share."""

    files: FileStore
    batches: BatchStore
    models: Mapping[str | None, BatchModel]  # by the adapter's name; None is the endpoint's own model
    ledgers: Any  # the actor of their Ledgers
    max_units: int  # of one batch at once
    max_rows: int
    max_line_bytes: int
    keep_s: float
    clock: Callable[[], float]

    def rules(self, endpoint: str) -> InputRules:
        """Return what the input file of a batch of this endpoint must be."""
        served = [model.served for model in self.models.values()]
        names: dict[str | None, str] = {None: self.models[None].served.name}
        names |= {name: each.name for each in served for name in each.service.names}
        return InputRules(endpoint, names, self.max_rows, self.max_line_bytes)


def write_results(
    shop: Workshop, batch: Batch, run_directory: RunDirectory, committed: IdSet, not_run: NotRun | None
) -> tuple[str | None, str | None]:
    """Write the files of answers and of errors; return their ids, None for one without lines.

    Rows of units that are not in `committed` get `not_run`. Writing them again gives the same files. Raises OSError.
    """
    assert batch.model is not None, "the input was checked"
    files, codec = shop.files, shop.models.get(batch.adapter, shop.models[None]).codec  # the latter: an adapter is gone
    owner, output_id, errors_id = batch.owner, result_id(batch.id, "output"), result_id(batch.id, "errors")
    with files.writing(owner, output_id) as results, files.writing(owner, errors_id) as errors:
        num_results, num_errors = export_results(
            run_directory, results, errors, batch.model, codec, committed=committed, not_run=not_run
        )

    def added(file_id: str, name: Literal["output", "errors"], num_lines: int) -> str | None:
        if not num_lines:
            files.delete(owner, file_id)
            return None
        now = shop.clock()
        file = StoredFile(
            id=file_id,
            bytes=files.content(owner, file_id).info().size,
            created_at=int(now),
            expires_at=int(now + (batch.output_keep_s or shop.keep_s)),
            filename=f"{batch.id}_{name}.jsonl",
            purpose="batch_output",
        )
        files.add(owner, file)
        return file_id

    return added(output_id, "output", num_results), added(errors_id, "errors", num_errors)
