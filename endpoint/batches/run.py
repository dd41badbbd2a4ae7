"""The run directory of a batch, which is that of a job over the uploaded file, and its results as files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, Literal

from actors.identity import as_begun, described_run, engine_identity, rows_identity
from actors.workers.batch_worker import BATCH_INPUT
from decoding.sampling_params import SamplingParams
from endpoint.batches.batch import Batch
from endpoint.batches.store import FileStore, StoredFile, result_id
from endpoint.service.served_model import ServedModel
from pipeline.counts import Counts
from pipeline.export.openai_batch import NotRun, export_results
from pipeline.id_set import IdSet
from pipeline.inputs.files import list_files
from pipeline.inputs.units import WorkUnit, plan_units
from pipeline.requests.texts import KINDS
from pipeline.run.commit import Receipt, read_receipt
from pipeline.run.directory import RunDirectory
from pipeline.run.unit_rows import read_ahead
from pipeline.storage.location import Location
from pipeline.text.codec import TextCodec


def sampling_of(endpoint: str) -> SamplingParams:
    """Return the parameters of rows that give none of their own: those of the endpoint."""
    return SamplingParams(max_tokens=KINDS[endpoint].default_max_tokens)


class RunMaker:
    """What all batches of one model have in common."""

    def __init__(self, served: ServedModel, codec: TextCodec, rows_per_unit: int) -> None:
        """Make runs of this model's engines, in units of `rows_per_unit` rows."""
        self._served, self._codec, self._rows_per_unit = served, codec, rows_per_unit
        self._engine_identity: Mapping[str, Any] | None = None  # computed once: it reads every byte of the weights

    def open(self, path: Location, content: Location, endpoint: str) -> RunDirectory:
        """Return the run over an uploaded file at `path`; create it if it does not exist.

        Raises ValueError if it was begun with another model, or its input has changed.
        """
        settings = replace(self._served.settings, sampling=sampling_of(endpoint))
        files = list_files(content.name)
        if self._engine_identity is None:
            self._engine_identity = engine_identity(settings, self._codec)
        identity = {**self._engine_identity, **rows_identity(settings, BATCH_INPUT, files)}
        if identity.get("moment", "") is None:
            begun = RunDirectory.open(path).run["identity"] if RunDirectory.exists(path) else {}
            identity["moment"] = begun.get("moment", datetime.now().isoformat())
        if not RunDirectory.exists(path):
            served = self._served
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


@dataclass(frozen=True)
class Progress:
    """The committed units of a run: their receipts by unit, so that none counts twice."""

    receipts: dict[int, Receipt]

    @classmethod
    def of(cls, run_directory: RunDirectory) -> tuple[Progress, list[WorkUnit]]:
        """Return what is committed, and the units that are missing."""
        committed, units = run_directory.committed_unit_ids(), list(run_directory.units())
        done = [unit.unit_id for unit in units if unit.unit_id in committed]
        receipts = read_ahead(partial(read_receipt, run_directory), done, num_at_once=16)
        missing = [unit for unit in units if unit.unit_id not in committed]
        return cls(dict(zip(done, receipts, strict=True))), missing

    def add(self, receipt: Receipt) -> None:
        """Count a unit, once."""
        self.receipts[receipt.unit_id] = receipt

    @property
    def counts(self) -> Counts:
        """The counts of all of them."""
        return sum((receipt.counts for receipt in self.receipts.values()), Counts())

    @property
    def unit_ids(self) -> IdSet:
        """The units that are counted."""
        return IdSet(self.receipts)


def write_results(
    files: FileStore,
    batch: Batch,
    run_directory: RunDirectory,
    codec: TextCodec,
    committed: IdSet,
    not_run: NotRun | None,
    times: tuple[float, float],
) -> tuple[str | None, str | None]:
    """Write the files of answers and of errors; return their ids, None for one without lines.

    Rows of units that are not in `committed` get `not_run`. `times` are now and the seconds that the files are kept.
    Writing them again gives the same files. Raises OSError.
    """
    assert batch.model is not None, "the input was checked"
    owner, output_id, errors_id = batch.owner, result_id(batch.id, "output"), result_id(batch.id, "errors")
    with files.writing(owner, output_id) as results, files.writing(owner, errors_id) as errors:
        num_results, num_errors = export_results(
            run_directory, results, errors, batch.model, codec, committed=committed, not_run=not_run
        )

    def added(file_id: str, name: Literal["output", "errors"], num_lines: int) -> str | None:
        if not num_lines:
            files.delete(owner, file_id)
            return None
        now, keep_s = times
        file = StoredFile(
            id=file_id,
            bytes=files.content(owner, file_id).info().size,
            created_at=int(now),
            expires_at=int(now + keep_s),
            filename=f"{batch.id}_{name}.jsonl",
            purpose="batch_output",
        )
        files.add(owner, file)
        return file_id

    return added(output_id, "output", num_results), added(errors_id, "errors", num_errors)
