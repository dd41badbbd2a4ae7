"""Failed rows: the exceptions that end the work on a row, and the error row that is written about it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

Code = Literal["invalid_value", "unsupported_parameter", "unknown_parameter", "missing_required_parameter"]
Stage = Literal["read", "template", "encode", "params", "generate", "program", "validate"]


# The beginnings of messages about the process over a row, which another process may write.
_OF_PROCESSES = ("memory ran out", "the target was lost", "the process that ran this row")


def is_of_process(message: str) -> bool:
    """Tell whether a row's error is about the process that ran it, by its message."""
    return message.startswith(_OF_PROCESSES)


def storable(text: str) -> str:
    """Return the text with half surrogate pairs spelled out ("\\ud800"), so that UTF-8, hence Arrow, can hold it."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def shown_name(name: str, max_chars: int = 64) -> str:
    """Return a name that a request has as errors may show it: its first characters, escaped unless printable ASCII."""
    return "".join(
        character if character.isascii() and character.isprintable() else ascii(character)[1:-1]
        for character in name[:max_chars]
    )


class RowError(Exception):
    """The failure of one row. Its neighbours go on: the caller turns this into an `ErrorRow` and continues.

    `kind` becomes the row's `error_type`: the name of the exception behind it, or "ValueError" for bad input. `text` is
    the last of `num_tries` texts of a row that `run.validate` refused.
    """

    def __init__(
        self,
        stage: Stage,
        message: str,
        kind: str = "ValueError",
        *,
        text: str | None = None,
        num_tries: int | None = None,
    ) -> None:
        self.stage: Stage = stage
        self.message = storable(message)
        self.kind = storable(kind)
        self.text, self.num_tries = text, num_tries
        super().__init__(self.message)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(RowError, text=self.text, num_tries=self.num_tries), (self.stage, self.message, self.kind)


def wrong_type(stage: Stage, what: str, expected: str, value: object) -> RowError:
    """Return the failure of a row whose `what` ("body.messages") has another type than the one that is expected."""
    return RowError(stage, f"{what}: expected {expected}, got {type(value).__name__}", "TypeError")


class FieldError(RowError):
    """A field of a request that is wrong, missing or not supported. `where` is its path ("tools[0].function.name").

    `code` says which of these it is, by the names of the OpenAI API.
    """

    def __init__(
        self,
        where: str,
        reason: str,
        *,
        is_unsupported: bool = False,
        code: Code = "invalid_value",
        stage: Stage = "template",
    ) -> None:
        self.where, self.reason = where, reason
        self.code: Code = "unsupported_parameter" if is_unsupported else code
        super().__init__(stage, f"{where}: {reason}")

    def inside(self, prefix: str) -> FieldError:
        """Return the same error of a field of a line, in which the request's fields have this prefix ("body.")."""
        return FieldError(f"{prefix}{self.where}", self.reason, code=self.code, stage="params")


class LongTextError(RowError):
    """A text that is too long for the tokens that it may have: `max_tokens` hold at most `max_characters`."""

    def __init__(self, num_characters: int, max_characters: int, max_tokens: int) -> None:
        self.num_characters, self.max_characters = num_characters, max_characters
        super().__init__(
            "encode", f"the text has {num_characters} characters; {max_tokens} tokens hold at most {max_characters}"
        )


class TemplateError(RowError):
    """A chat template that failed, or that refused the messages (`raise_exception`).

    `reason` is the refusal's message if that is a literal of the template, which quotes no message; None otherwise.
    """

    def __init__(self, error: Exception, reason: str | None) -> None:
        self.reason = reason
        super().__init__("template", f"the chat template failed: {error}", type(error).__name__)


@dataclass(frozen=True, kw_only=True)
class ErrorRow:
    """A dead letter: a row of `errors/part-*.parquet`, whose columns `schema.ERROR_COLUMNS` describes."""

    row_id: int
    id: str | int | None
    file: str
    row_number: int
    stage: Stage
    error_type: str
    message: str
    attempt: int
    text: str | None = None
    num_tries: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", storable(self.id) if isinstance(self.id, str) else self.id)
        object.__setattr__(self, "error_type", storable(self.error_type))
        object.__setattr__(self, "message", storable(self.message))
