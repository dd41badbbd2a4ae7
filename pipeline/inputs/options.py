"""How to read an input: its format and what its columns mean."""

from __future__ import annotations

import json
import string
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any, Literal, get_args

from pipeline.errors import RowError
from pipeline.inputs.files import COMPRESSIONS, InputFile, compression_of, refuse_unreadable, split_lines
from pipeline.inputs.values import whole
from pipeline.storage.location import Location

Format = Literal["auto", "parquet", "jsonl", "csv", "text", "openai_batch"]
PromptsAre = Literal["auto", "chat", "text"]
_ALL = ("all",)  # of carry_columns
_REQUEST_COLUMNS = {"custom_id", "method", "url", "body"}  # of a line of an OpenAI batch

_EXTENSIONS: dict[Format, str] = {
    "parquet": "parquet pq",
    "jsonl": "jsonl ndjson json",
    "csv": "csv tsv",
    "text": "txt text",
}
_FORMAT_OF_EXTENSION = {extension: format_ for format_, all_ in _EXTENSIONS.items() for extension in all_.split()}
_MAX_BAD_LINES = 100  # before the first line that tells the format


@dataclass(frozen=True)
class PromptTemplate:
    """A prompt made from a row's columns, such as "Question: {question}\\nAnswer:".

    It is a sequence of literal texts, each followed by the column named beside it ("" after the last).
    """

    pieces: tuple[tuple[str, str], ...]

    @classmethod
    def parse(cls, template: str) -> PromptTemplate:
        """Parse a text in which {name} is a column and {{ }} are braces.

        Raises ValueError for anything else in braces, and for a template without a column.
        """
        try:
            parsed = list(string.Formatter().parse(template))
        except ValueError as error:
            raise ValueError(f"prompt_template {template!r}: {error}; write {{{{ and }}}} for braces") from error
        for _, name, spec, conversion in parsed:
            if name == "" or spec or conversion or set(name or "") & set(".[]"):
                raise ValueError(
                    f"prompt_template {template!r}: only {{column}} is understood in braces; "
                    "write {{ and }} for braces that belong to the text"
                )
        pieces = tuple((literal, name or "") for literal, name, _, _ in parsed)
        if not any(name for _, name in pieces):
            raise ValueError(f"prompt_template {template!r} names no column: every row would get the same prompt")
        return cls(pieces)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the template reads."""
        return tuple(dict.fromkeys(name for _, name in self.pieces if name))

    def fill(self, columns: Mapping[str, Any]) -> str:
        """Return the prompt of a row. Raises RowError (stage "template") for a column that is absent or null."""
        return "".join(literal + (_text(columns, name) if name else "") for literal, name in self.pieces)


def _text(columns: Mapping[str, Any], name: str) -> str:
    value = columns.get(name)
    if whole(value) is None:
        problem = f"is {'null' if value is None else 'NaN'}" if name in columns else f"is not among {sorted(columns)}"
        raise RowError("template", f"prompt_template: column {name!r} {problem}", "KeyError")
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True)
class InputOptions:
    """What a run reads. A row has a prompt or messages, never both; text files have prompts alone."""

    format: Format = "auto"
    """Format of the input; auto goes by file names."""
    prompt_column: str = "prompt"
    """Column with the prompt as text."""
    messages_column: str = "messages"
    """Column with chat messages; a row has a prompt or messages."""
    prompts_are: PromptsAre = "auto"
    """What a prompt is: chat, a user's message that the model answers; text, which it continues as it is. auto is chat
    where the model has a chat template and texts are written, but not for a prompt that bears marks of the template."""
    prompt_template: str | None = None
    """Prompt made from columns, in place of prompt_column, such as "Question: {question}", or the path of a file."""
    id_column: str | None = None
    """Column with your own id of a row, copied to the output."""
    override_column: str = "sampling"
    """Column with a row's own sampling parameters, an object or JSON text of one; it need not exist."""
    carry_columns: tuple[str, ...] = ()
    """Columns copied to the output as they are; `all` for every other column than prompt, messages, id and sampling."""
    csv_separator: str = ","
    """What separates the fields of a CSV file, such as ; or \\t for a tab."""
    # The columns that the chat template's variables come from. Where this is set, also to (), Parquet reads them and
    # the columns named above, and no others; None reads all, and a row then fails by any cell that cannot be read.
    template_columns: tuple[str, ...] | None = None
    # What `prompts_are` means for the model (`settle_prompts`). None: prompts are texts. Else each is a user's message,
    # unless it has one of these marks.
    text_marks: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.format not in get_args(Format):
            raise ValueError(f"input format {self.format!r}: choose one of {', '.join(get_args(Format))}")
        if self.prompts_are not in get_args(PromptsAre):
            choices = ", ".join(get_args(PromptsAre))
            raise ValueError(f"input prompts_are {self.prompts_are!r}: choose one of {choices}")
        if self.csv_separator == "\\t":
            object.__setattr__(self, "csv_separator", "\t")
        if len(self.csv_separator) != 1 or self.csv_separator in '"\r\n':
            raise ValueError(f"csv_separator must be one character, such as ; or \\t, got {self.csv_separator!r}")
        if self.prompt_column == self.messages_column:
            raise ValueError(f"prompt_column and messages_column are both {self.prompt_column!r}; name two columns")
        if twice := sorted({name for name in self.carry_columns if self.carry_columns.count(name) > 1}):
            raise ValueError(f"carry_columns names {twice} more than once")

    def carried_of(self, columns: Iterable[str]) -> tuple[str, ...]:
        """Return the names of the columns to carry from an input that has these columns."""
        if self.carry_columns != _ALL:
            return self.carry_columns
        used = {self.messages_column, self.override_column, self.id_column}
        used |= _REQUEST_COLUMNS if self.format == "openai_batch" else set()
        used |= {self.prompt_column} if self.template is None else set()
        return tuple(name for name in columns if name not in used)

    def asks(self, prompt: str) -> bool:
        """Tell whether a prompt is a user's message. An empty one is not: as a text it is refused, as it should be."""
        marks = self.text_marks
        return marks is not None and prompt != "" and not any(mark in prompt for mark in marks)

    @cached_property
    def template(self) -> PromptTemplate | None:
        """The parsed `prompt_template`. Raises ValueError if it cannot be parsed."""
        return None if self.prompt_template is None else PromptTemplate.parse(self.prompt_template)


def resolve_options(files: Sequence[InputFile], options: InputOptions) -> InputOptions:
    """Return the options with the format that "auto" means, by file names and, for OpenAI batches, by the first line.

    Raises ValueError if the names do not tell the format or disagree: a run reads one format.
    """
    if options.format != "auto":
        return options
    formats = {_format_of(file.path): file.path for file in files}
    if len(formats) > 1:
        examples = ", ".join(f"{path} ({format_})" for format_, path in formats.items())
        raise ValueError(f"the input mixes formats: {examples}; name files of one format, with a glob such as *.jsonl")
    (format_,) = formats
    if format_ == "jsonl":
        first = next(filter(None, map(first_object, files)), {})
        if {"custom_id", "url", "body"} <= first.keys():
            format_ = "openai_batch"
    return replace(options, format=format_)


def settle_prompts(
    options: InputOptions, template_marks: tuple[str, ...] | None, why_text: str | None = None
) -> tuple[InputOptions, str]:
    """Return the options with what `prompts_are` means for a model and a task, and the reason in words.

    `template_marks` are those of the model's chat template, None if it has none; `why_text` says why the task takes
    prompts as texts, if it does. Raises ValueError for chats that cannot be.
    """
    if why_text is None and options.format == "openai_batch":
        why_text = "each line of an OpenAI batch file says what it asks for"
    elif why_text is None and template_marks is None:
        why_text = "the model has no chat template (chat.chat_template gives it one)"
    if options.prompts_are == "text":
        return replace(options, text_marks=None), "as input.prompts_are says"
    if options.prompts_are == "auto":
        return replace(options, text_marks=None if why_text else template_marks), (
            f"since {why_text or 'the model has a chat template'}"
        )
    if why_text is not None:
        raise ValueError(f"input.prompts_are is 'chat', but {why_text}; leave it out, or set it to 'text'")
    return replace(options, text_marks=()), "as input.prompts_are says"


def first_object(file: InputFile) -> dict[str, Any] | None:
    """Return the object on the first line of a file that has one; None if the first hundred have none."""
    with refuse_unreadable(file.path, "jsonl"):
        for line in islice(split_lines(Location.parse(file.path)), _MAX_BAD_LINES + 1):
            with suppress(ValueError, RecursionError):
                value = json.loads(line.data)
                if isinstance(value, dict):
                    return value
    return None


def _format_of(path: str) -> Format:
    name = path.partition("?")[0] if "://" in path else path
    extension = (name.rpartition(".")[0] if compression_of(name) else name).lower().rpartition(".")[2]
    if extension not in _FORMAT_OF_EXTENSION:
        raise ValueError(
            f"{path}: its name does not tell its format (known: {', '.join(_FORMAT_OF_EXTENSION)}, text formats also "
            f"with {', '.join(COMPRESSIONS)}); set input.format, or name the files to read by a glob, such as "
            f"{path.rpartition('/')[0]}/*.parquet"
        )
    return _FORMAT_OF_EXTENSION[extension]
