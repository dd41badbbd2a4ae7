"""A row that failed: the exception that says so, and the row that is written about it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Literal

Stage = Literal["read", "template", "encode", "params", "generate"]


def storable(text: str) -> str:
    """The text with half surrogate pairs spelled out ("\\ud800"), so that UTF-8, hence Arrow, can hold it."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


class RowError(Exception):
    """One row cannot go on. Its neighbours can: the caller turns this into an `ErrorRow` and continues.

    `kind` becomes the row's `error_type`: the name of the exception behind it, or "ValueError" for bad input.
    """

    def __init__(self, stage: Stage, message: str, kind: str = "ValueError") -> None:
        self.stage: Stage = stage
        self.message = storable(message)
        self.kind = storable(kind)
        super().__init__(self.message)

    def __reduce__(self) -> tuple[Any, ...]:
        return RowError, (self.stage, self.message, self.kind)


class LongTextError(RowError):
    """A text that cannot be written in as many tokens as there may be."""

    def __init__(self, num_characters: int, most_characters: int, most_tokens: int) -> None:
        """It has so many characters; `most_tokens` hold at most `most_characters`."""
        self.num_characters, self.most_characters = num_characters, most_characters
        super().__init__(
            "encode", f"the text has {num_characters} characters; {most_tokens} tokens hold at most {most_characters}"
        )


class TemplateError(RowError):
    """A chat template that failed, or that refused the messages in words of its own (`raise_exception`).

    `said` is what it refused them with, where that stands in the template word for word: nothing of the messages is
    in it. It is None otherwise.
    """

    def __init__(self, error: Exception, said: str | None) -> None:
        self.said = said
        super().__init__("template", f"the chat template failed: {error}", type(error).__name__)


@contextmanager
def only_this_row(stage: Stage) -> Iterator[None]:
    """Turn whatever a row's own content provokes into a RowError: no single row may stop a job.

    What says nothing about the row (memory, disk) passes.
    """
    try:
        yield
    except (RowError, MemoryError, OSError):
        raise
    except Exception as error:
        raise RowError(stage, str(error), type(error).__name__) from error


@dataclass(frozen=True)
class ErrorRow:
    """A dead letter: which row failed, at which stage, and why. A row of `errors/part-*.parquet`.

    `row_number` is the row's place in `file`, from 0, blank lines and a CSV header not counted. `id` is the
    user's own id where the row was good enough to have one. `attempt` is how often `jobs.retry` has tried the row again
    in vain.
    """

    row_id: int
    id: str | None
    file: str
    row_number: int
    stage: Stage
    error_type: str
    message: str
    attempt: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", None if self.id is None else storable(self.id))
        object.__setattr__(self, "error_type", storable(self.error_type))
        object.__setattr__(self, "message", storable(self.message))

    def to_dict(self) -> dict[str, Any]:
        """The row as a dict in the order of `schema.ERRORS`."""
        return asdict(self)
