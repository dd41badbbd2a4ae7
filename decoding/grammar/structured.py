"""Structured: what the output of a request must be, by one of five kinds of grammar. Checked when it is made."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

KINDS = ("json_schema", "json_object", "regex", "choice", "grammar")
_MAX_CHARACTERS = 1 << 20  # of a grammar as text: more would take minutes to compile, or be a mistake


@dataclass(frozen=True, kw_only=True)
class Structured:
    """The form of an output; exactly one of the first five fields is set.

    Names and meanings follow vLLM's `structured_outputs` where it has them (its `json` is `json_schema` here). The
    order of a schema's properties is the order in which they are written. An invalid value is a ValueError that names
    the field, the value and what is allowed; whether a grammar can be compiled is known later
    (`decoding/grammar/definition.py`).
    """

    json_schema: Mapping[str, Any] | str | None = None
    """JSON Schema that the output fulfils: an object, or JSON text of one."""
    json_object: bool | None = None
    """True: the output is any JSON object."""
    regex: str | None = None
    """Regular expression that the whole output matches, in the syntax of Rust's crate `regex`."""
    choice: tuple[str, ...] | None = None
    """Texts, of which the output is one."""
    grammar: str | None = None
    """Context-free grammar of the output, in llguidance's dialect of Lark, with a rule `start`."""
    disable_any_whitespace: bool = False
    """For json_schema and json_object: no white space between the tokens of JSON."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}  # where a configuration is read

    def __post_init__(self) -> None:
        """Check every field; a schema given as text is parsed, and a list of choices becomes a tuple."""
        given = [name for name in KINDS if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"sampling.structured must have exactly one of {', '.join(KINDS)}, got {given or 'none'}")
        if isinstance(self.json_schema, str):
            try:
                object.__setattr__(self, "json_schema", json.loads(self.json_schema))
            except RecursionError as error:
                raise ValueError(
                    "sampling.structured.json_schema is not JSON that can be read: too many levels"
                ) from error
            except ValueError as error:
                raise ValueError(f"sampling.structured.json_schema is not JSON: {error}") from error
        if self.json_schema is not None and not isinstance(self.json_schema, Mapping):
            raise ValueError(f"sampling.structured.json_schema must be an object, got {self.json_schema!r}")
        if self.json_object is not None and self.json_object is not True:
            raise ValueError(f"sampling.structured.json_object must be true or left out, got {self.json_object!r}")
        for name in ("regex", "grammar"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str) and value):
                raise ValueError(f"sampling.structured.{name} must be a text of at least one character, got {value!r}")
        if self.choice is not None:
            is_list = isinstance(self.choice, list | tuple) and self.choice
            if not is_list or not all(isinstance(text, str) and text for text in self.choice):
                raise ValueError(f"sampling.structured.choice must be a list of non-empty texts, got {self.choice!r}")
            object.__setattr__(self, "choice", tuple(self.choice))
        if not isinstance(self.disable_any_whitespace, bool):
            value = self.disable_any_whitespace
            raise ValueError(f"sampling.structured.disable_any_whitespace must be true or false, got {value!r}")
        if self.disable_any_whitespace and not self.is_json:
            raise ValueError(
                "sampling.structured.disable_any_whitespace is for json_schema and json_object; with "
                f"{given[0]} leave it out"
            )
        if len(self.key) > _MAX_CHARACTERS:
            raise ValueError(
                f"sampling.structured.{given[0]} must have at most {_MAX_CHARACTERS} characters, got {len(self.key)}"
            )

    @classmethod
    def of(cls, value: Any) -> "Structured":
        """Return the value itself, or the one that a mapping describes. Raises ValueError for anything else.

        Entries of the mapping that are None count as absent: a struct of Parquet has all fields.
        """
        if isinstance(value, Structured):
            return value
        if not isinstance(value, Mapping):
            raise ValueError(f"sampling.structured must be an object with one of {', '.join(KINDS)}, got {value!r}")
        known = cls.__dataclass_fields__
        if unknown := sorted(str(name) for name in value if name not in known):
            raise ValueError(f"sampling.structured has no {unknown}; it has {', '.join(known)}")
        return cls(**{name: each for name, each in value.items() if each is not None})

    @property
    def kind(self) -> str:
        """Which of the five fields is set."""
        return next(name for name in KINDS if getattr(self, name) is not None)

    def as_dict(self) -> dict[str, Any]:
        """Return a mapping that `of` reads, as JSON can hold it; a schema is JSON text, which keeps its order."""
        value = json.dumps(self.schema) if self.json_schema is not None else getattr(self, self.kind)
        return {self.kind: value, **({"disable_any_whitespace": True} if self.disable_any_whitespace else {})}

    @property
    def schema(self) -> Mapping[str, Any]:
        """The JSON Schema of an output that is JSON; that of any object for `json_object`."""
        return self.json_schema if isinstance(self.json_schema, Mapping) else {"type": "object"}

    @property
    def is_json(self) -> bool:
        """Whether the output is JSON."""
        return self.json_schema is not None or self.json_object is not None

    @cached_property
    def key(self) -> str:
        """JSON text that is equal for equal grammars. Raises ValueError for a schema that JSON cannot hold."""
        value = getattr(self, self.kind)
        try:
            json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair is no character
            return json.dumps([self.kind, self.disable_any_whitespace, value], allow_nan=False)
        except UnicodeEncodeError as error:
            raise ValueError(f"sampling.structured.{self.kind} must be what UTF-8 can hold: {error}") from error
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"sampling.structured.{self.kind} must be what JSON can hold: {error}") from error
