"""Task: what is done with each row of a run, in the plan of its driver and in its workers."""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import pyarrow as pa

from actors.engine.score_translation import ScoredRow, decode_scored_row, encode_scored_row
from actors.engines.backend import Backend, Exactness
from actors.engines.loading import LoadedEngine
from actors.engines.unloaded import UnloadedEngine
from actors.programs.program import Program
from actors.programs.program_rows import ProgramRows, params_of
from actors.rows.check import TextCheck
from actors.rows.plain import PlainRows
from actors.rows.valid import ValidRows
from actors.settings import ProgramSettings, ValidateSettings
from actors.units.worker import RowKind
from decoding.sampling_params import SamplingParams
from decoding.sequence import Sequence
from pipeline.errors import RowError
from pipeline.inputs.files import InputFile
from pipeline.inputs.options import InputOptions
from pipeline.inputs.rows import InputRow
from pipeline.inputs.score import ScoreOptions
from pipeline.run.directory import RunDirectory
from pipeline.run.row_sample import RowSample
from pipeline.schema import ColumnSet
from pipeline.text.codec import TextCodec

PromptReader = Callable[[InputRow, int], tuple[list[int], int]]


@dataclass(frozen=True)
class Task:
    """What a run does with each row. These are the answers of one that writes texts; others have others."""

    runs_programs = False  # so that two attempts at a row may differ, and a row has several generations
    why_text: ClassVar[str | None] = None  # why a row's prompt is never a user's message, if it never is

    def check(self, files: Seq[InputFile], options: InputOptions, codec: TextCodec) -> None:
        """Raise ValueError for an input that this cannot be done with."""

    def check_rows(self, sampling: SamplingParams, schema: pa.Schema) -> None:
        """Raise ValueError for rows that are sampled so, and have these columns, if this cannot be done with them."""

    def identity(self) -> dict[str, Any]:
        """Return the fields of the task that decide the output, besides models, sampling and input."""
        return {}

    def exactness(self, backend: Backend) -> Exactness:
        """Return what may be said of its output before engines are loaded."""
        return backend.exactness

    def column_sets(self, has_parts: bool, *, reuses: bool) -> list[ColumnSet]:
        """Return which optional columns the output of a new run has, if parts are asked for, and texts reused."""
        asked: dict[ColumnSet, bool] = {"rounds": True, "reuse": reuses, "parts": has_parts}
        return [name for name, is_asked in asked.items() if is_asked]

    def tokens_per_row(self, sampling: SamplingParams) -> int:
        """Return the output tokens that a row may have, over its samples."""
        return sampling.n * sampling.max_tokens

    def describe(self, num_rows: int, sampling: SamplingParams) -> str:
        """Return for a reader what comes out of this number of rows."""
        most = num_rows * self.tokens_per_row(sampling)
        return f"output:  at most {most:,} tokens (rows x n x max_tokens), temperature {sampling.temperature:g}"

    def rows(self, engine: LoadedEngine, run: RunDirectory, recorded_rows: RowSample) -> RowKind:
        """Return what an engine does with the rows of a run. Raises ValueError if it cannot.

        Of `recorded_rows` the rounds are kept.
        """
        return PlainRows(engine.settings, engine.loop.engine, engine.codec, engine.loop.finish, recorded_rows)

    def prompts(self, engine: UnloadedEngine) -> PromptReader:
        """Return what reads a row as a loaded engine would, given its place in the input.

        It returns the tokens of the prompt and the most that follow, and raises RowError for a row that would fail
        before anything is generated.
        """
        rows = PlainRows(engine.settings, engine.limits, engine.codec, _write_nothing)

        def read(row: InputRow, ordinal: int) -> tuple[list[int], int]:
            sequence = rows.encode(row, ordinal).sequences[0]
            if (problem := engine.problem_with(sequence)) is not None:
                raise RowError("generate", problem)
            return list(sequence.prompt_token_ids), sequence.max_tokens

        return read


@dataclass(frozen=True)
class WriteValid(Task):
    """Texts are written until they pass a check."""

    settings: ValidateSettings

    def check_rows(self, sampling: SamplingParams, schema: pa.Schema) -> None:
        if sampling.is_greedy and self.settings.max_tries > 1:
            raise ValueError(
                f"run.validate.max_tries is {self.settings.max_tries}, but sampling.temperature is "
                f"{sampling.temperature:g} and sampling.top_k {sampling.top_k}, so tries write the same text; set a "
                "temperature above 0 (and another top_k than 1), or max_tries to 1"
            )
        TextCheck.of(self.settings, schema)

    def identity(self) -> dict[str, Any]:
        source = TextCheck.source(self.settings)
        asked = {"max_tries": self.settings.max_tries, **self.settings.checks}
        return {"validate": asked | ({} if source is None else {"source": source})}

    def column_sets(self, has_parts: bool, *, reuses: bool) -> list[ColumnSet]:
        return [*super().column_sets(has_parts, reuses=reuses), "tries"]

    def describe(self, num_rows: int, sampling: SamplingParams) -> str:
        what = ", ".join(f"{name} {value}" for name, value in self.settings.checks.items())
        tries = f"valid:   by {what[:400]}; at most {self.settings.max_tries} tries of each text"
        return f"{super().describe(num_rows, sampling)}\n  {tries}"

    def rows(self, engine: LoadedEngine, run: RunDirectory, recorded_rows: RowSample) -> RowKind:
        begun = run.run["identity"].get("validate", {})
        if begun != self.identity()["validate"]:
            raise ValueError(
                "run.validate: the function's file is not what it was when the run began; restore it, or use a new "
                "output directory"
            )
        return ValidRows(
            engine.settings,
            engine.loop.engine,
            engine.codec,
            engine.loop.finish,
            recorded_rows,
            check=TextCheck.of(self.settings, run.generations_schema),
            max_tries=self.settings.max_tries,
        )


@dataclass(frozen=True)
class Score(Task):
    """Texts are scored; none is written."""

    options: ScoreOptions
    why_text = "task 'score' takes a prompt as the text that it is"

    def check(self, files: Seq[InputFile], options: InputOptions, codec: TextCodec) -> None:
        """Raise ValueError for columns that are not there, and for labels that are the same tokens, or none."""
        self.options.check(files, options)
        tokens: dict[tuple[int, ...], str] = {}
        for label in self.options.labels:
            try:
                token_ids = tuple(codec.continuation("", (), label, is_chat=True))
            except RowError as error:
                raise ValueError(f"score.labels: {error}") from error
            if token_ids in tokens:
                same = f"{tokens[token_ids]!r} and {label!r}"
                raise ValueError(f"score.labels {same} are the same tokens; name one of them")
            tokens[token_ids] = label

    def identity(self) -> dict[str, Any]:
        return {"task": "score", "score": asdict(self.options)}

    def exactness(self, backend: Backend) -> Exactness:
        return "no"  # of scores the engines tell

    def column_sets(self, has_parts: bool, *, reuses: bool) -> list[ColumnSet]:
        return ["scores"]

    def tokens_per_row(self, sampling: SamplingParams) -> int:
        return 0

    def describe(self, num_rows: int, sampling: SamplingParams) -> str:
        options = self.options
        if options.labels:
            what = f"{len(options.labels)} labels behind each prompt"
        elif options.columns:
            what = f"column {options.columns[0]!r} behind each prompt"
        else:
            what = "each prompt's own text"
        kept = f"; of each row the best by {options.best_by} is kept" if options.keep == "best" else ""
        return f"scores:  {what}{kept}"

    def rows(self, engine: LoadedEngine, run: RunDirectory, recorded_rows: RowSample) -> RowKind:
        footer = engine.footer
        if engine.settings.is_exact_required and not footer["is_batch_invariant"]:
            raise ValueError(
                f"run.exact is 'required', but on {footer['device']} in {footer['dtype']} "
                "scores depend on the batch by rounding (docs/scoring.md); set run.exact to 'any'"
            )
        return ScoredRows(self.options, engine)

    def prompts(self, engine: UnloadedEngine) -> PromptReader:
        def read(row: InputRow, ordinal: int) -> tuple[list[int], int]:
            scored = encode_scored_row(row, engine.codec, self.options).scored
            if (problem := engine.limits.problem_with_text(scored)) is not None:
                raise RowError("generate", problem)
            return [*scored.prompt_token_ids, *max(scored.continuations, key=len)], 0

        return read


@dataclass(frozen=True)
class RunProgram(Task):
    """Rows are programs."""

    program: ProgramSettings
    runs_programs = True
    why_text = "a program gets a row's prompt as it is"

    def identity(self) -> dict[str, Any]:
        assert self.program.function is not None, "without a program rows are generations"
        source = Program.load(self.program.function).digest
        return {"program": {"function": self.program.function, "source": source}}

    def column_sets(self, has_parts: bool, *, reuses: bool) -> list[ColumnSet]:
        return ["rounds", "turns"]

    def tokens_per_row(self, sampling: SamplingParams) -> int:
        return super().tokens_per_row(sampling) * self.program.max_turns

    def rows(self, engine: LoadedEngine, run: RunDirectory, recorded_rows: RowSample) -> RowKind:
        return ProgramRows(self.program, engine.settings, run, engine.loop, engine.codec, recorded_rows)

    def prompts(self, engine: UnloadedEngine) -> PromptReader:
        """Return what checks a row's parameters: what its program will ask for is not known before it runs."""

        def read(row: InputRow, ordinal: int) -> tuple[list[int], int]:
            params_of(row, engine.settings.sampling, engine.codec)
            return [], 0

        return read


async def _write_nothing(sequences: list[Sequence]) -> None:
    raise AssertionError("an engine that is not loaded writes nothing")


@dataclass(frozen=True)
class ScoredRows(RowKind):
    """Rows whose texts are scored."""

    options: ScoreOptions
    engine: LoadedEngine

    def encode(self, row: InputRow, ordinal: int) -> ScoredRow:
        return encode_scored_row(row, self.engine.codec, self.options)

    async def finish(self, rows: list[ScoredRow]) -> None:
        await self.engine.loop.score([row.scored for row in rows])

    def decode(self, row: ScoredRow) -> list[dict[str, Any]]:
        """Return an output row for each text that is kept. Raises RowError if one of them failed."""
        return decode_scored_row(row, self.engine.codec, self.options)
