"""Prompts made from a row's columns: "Question: {question}\\nAnswer:"."""

from __future__ import annotations

import json
import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.errors import RowError


@dataclass(frozen=True)
class PromptTemplate:
    """A sequence of literal texts, each followed by the column named beside it ("" after the last)."""

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
    if value is None:
        problem = "is null" if name in columns else f"is not among {sorted(columns)}"
        raise RowError("template", f"prompt_template: column {name!r} {problem}", "KeyError")
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)
