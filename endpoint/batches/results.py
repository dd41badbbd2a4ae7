"""The results of a batch as files: one of answers, one of errors."""

from __future__ import annotations

from typing import Literal

from endpoint.batches.batch import Batch
from endpoint.batches.files import FileStore, StoredFile
from endpoint.batches.ids import result_id
from pipeline.export.openai_batch import NotRun, export_results
from pipeline.id_set import IdSet
from pipeline.run.directory import RunDirectory
from pipeline.text.codec import TextCodec


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
