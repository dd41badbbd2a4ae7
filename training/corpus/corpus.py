"""Corpus: texts of a target from runs and Parquet, as examples that are read one after the other."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

from decoding.checkpoint.generation import end_token_ids_of
from decoding.checkpoint.supported import model_folder, read_config
from pipeline.run.directory import RunDirectory
from pipeline.run.fingerprint import model_fingerprint, tokenizer_fingerprint
from pipeline.text.codec import TextCodec
from training.corpus.files import CorpusFile, RunFacts, parts_of_run, plain_files, refuse_missing
from training.corpus.options import CorpusOptions
from training.corpus.rows import Example, RowReader


@dataclass(frozen=True)
class Corpus:
    """The rows of a fixed list of files, in the order of the paths and of each run's input.

    A run may still be in progress: its parts are those that were committed when the corpus was opened.
    """

    options: CorpusOptions
    files: tuple[CorpusFile, ...]
    reader: RowReader = field(repr=False)

    @classmethod
    def open(cls, options: CorpusOptions, target: str, tokenizer: str | None = None) -> Corpus:
        """List the files at `options.path` and check them for this target; `tokenizer` is the target's unless given.

        Raises ValueError, in one line, for a corpus without rows, for a file without the columns that it needs, for a
        damaged file, and for a run of another target, tokenizer or chat template; OSError if a store does not answer.
        """
        folder = model_folder(target)
        tokenizer_folder = model_folder(tokenizer) if tokenizer else folder
        codec = TextCodec.load(tokenizer_folder)
        reader = RowReader(options, tokenizer_folder, _end_token_id(folder, codec))
        files: list[CorpusFile] = []
        expected: dict[str, str] = {}
        for path in options.paths:
            if RunDirectory.exists(path):
                expected = expected or {
                    "target": model_fingerprint(folder),
                    "tokenizer": tokenizer_fingerprint(tokenizer_folder),
                }
                run_directory = RunDirectory.open(path)
                if run_directory.has("turns"):
                    raise ValueError(
                        f"{path}: its rows ran a program, and a draft learns from rows of one generation; name another "
                        "run"
                    )
                columns = run_directory.generations_schema.names
                refuse_missing(path, [], columns, options)
                files += parts_of_run(run_directory, RunFacts.of(run_directory, folder, expected, codec))
            else:
                files += plain_files(path, options)
        corpus = cls(options, tuple(_first_rows(files, options.max_rows)), reader)
        if next(corpus.examples(), None) is None:
            raise ValueError(
                f"corpus.path {options.path!r} has no rows with a text: {len(files)} files with "
                f"{sum(file.num_rows for file in files)} rows; name a run that has committed a part, or other files"
            )
        return corpus

    def examples(self, held_out: bool | None = None) -> Iterator[Example]:
        """Yield the rows in order: those that are held out, those that are not, or (None) all.

        Rows without output tokens are skipped. Raises ValueError for a file that has changed.
        """
        for file, group, num_rows in self.pieces:
            yield from self.reader.examples(file, group, num_rows, held_out)

    @property
    def pieces(self) -> list[tuple[CorpusFile, int, int]]:
        """The corpus in parts that are read one at a time: file, row group, and how many of its first rows."""
        return [(file, group, num_rows) for file in self.files for group, num_rows in file.row_groups()]

    @property
    def num_rows(self) -> int:
        """Rows with a text. Like the other counts it is exact, and read from all texts where no receipt says it."""
        return self._totals[0]

    @property
    def num_output_tokens(self) -> int:
        """Output tokens of all rows."""
        return self._totals[1]

    @property
    def runs(self) -> list[RunFacts]:
        """What the runs say whose parts are in the corpus."""
        facts = {file.run.path: file.run for file in self.files if file.run is not None}
        return list(facts.values())

    def fingerprint(self) -> str:
        """Return a digest of what the rows are: files, tokenizer and options, for provenance and for going on.

        A part of a run counts by its run and its rows, wherever the run directory is now.
        """
        digest = hashlib.sha256(
            f"{self.options.held_out_share} {tokenizer_fingerprint(self.reader.tokenizer)}\n".encode()
        )
        for file in self.files:
            facts = file.run
            if facts is not None:
                line = f"{facts.digest} {facts.seed} {file.first_ordinal} {file.size}"
            else:
                options = self.options
                read = f"{options.prompt_column} {options.output_column} {options.temperature}"
                line = f"{file.name} {file.size} {file.version} {read}"
            digest.update(f"{line} {file.num_rows} {self.options.kind_column}\n".encode())
        return digest.hexdigest()

    @cached_property
    def _totals(self) -> tuple[int, int]:
        """The number of rows with a text, and of their output tokens."""
        num_rows = num_tokens = 0
        for file in self.files:
            if file.num_output_tokens is not None:
                num_rows, num_tokens = num_rows + file.num_rows, num_tokens + file.num_output_tokens
                continue
            for group, num_taken in file.row_groups():
                for example in self.reader.examples(file, group, num_taken, None):
                    num_rows, num_tokens = num_rows + 1, num_tokens + len(example.output_token_ids)
        return num_rows, num_tokens


def _first_rows(files: list[CorpusFile], max_rows: int | None) -> Iterator[CorpusFile]:
    """Yield the files that hold the first `max_rows` rows, the last one cut to those of them that it has."""
    if max_rows is None:
        yield from files  # also those without a row, which the fingerprint counts
        return
    left = max_rows
    for file in files:
        if left > 0:
            yield file if file.num_rows <= left else replace(file, num_rows=left, num_output_tokens=None)
        left -= file.num_rows


def _end_token_id(folder: str, codec: TextCodec) -> int | None:
    """Return what a text of the model ends with: the tokenizer's end token, if the model ends a text there."""
    ends = end_token_ids_of(folder, read_config(folder))
    own = codec.tokenizer.eos_token_id
    return own if own in ends or not ends else min(ends)
