"""Fields of a configuration, read from the frozen dataclasses that use them.

A field of such a dataclass belongs to the configuration if a docstring follows it, which becomes its help text:

    num_slots: int = 16
    \"\"\"Rows that an engine works on at once.\"\"\"

In the docstring of a field that several classes inherit, `{kind.actor}` is the class variable `actor` of each of them.
A field without a docstring is set by code alone. A field that holds another dataclass is a section, or is `Flat`.
A text that may be a list, too, is named in the class variable `several`, with the field that has the list then.
"""

import ast
import inspect
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import cache, reduce
from itertools import pairwise
from pathlib import Path
from textwrap import dedent
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from decoding.grammar.structured import Structured

_OF_FORMS = ("json_schema", "regex", "grammar")  # fields of `sampling.structured`
_FILE_NAME = re.compile(r"[\w./~:-]+\.(jinja2?|j2|txt|md|json|lark|gbnf|ebnf|ya?ml)")
_UNITS = {  # by the last word of a field's name
    "s": "seconds",
    "bytes": "bytes",
    "memory": "bytes",
    "percent": "percent",
    "tokens": "tokens",
    "len": "tokens",
    "cpus": "CPUs",
    "gpus": "GPUs",
    "actors": "actors",
    "replicas": "engines",
    "slots": "rows",
}
_CLASS_VARIABLE = re.compile(r"\{kind\.(\w+)\}")


@dataclass(frozen=True, kw_only=True)
class Flat:
    """A mark, in `Annotated`, on a field whose dataclass is no section: its fields stand beside those around it."""

    prefix: str = ""  # goes before their names
    without: frozenset[str] = frozenset()  # fields that the configuration does not have here


@dataclass(frozen=True, kw_only=True)
class Field:
    """A value of the configuration, a section of it, or a flat dataclass."""

    name: str
    annotation: Any
    default: Any  # MISSING for a required one
    help: str
    flat: Flat | None = None

    @property
    def is_section(self) -> bool:
        """Whether it holds fields with names of their own behind its name."""
        return self.flat is None and is_dataclass(self.annotation)

    @property
    def is_required(self) -> bool:
        """Whether it has no default."""
        return self.default is MISSING

    @property
    def unit(self) -> str:
        """The unit of its values, by the last word of its name; empty if it has none."""
        return _UNITS.get(self.name.replace(".", "_").rpartition("_")[2], "")

    @property
    def description(self) -> str:
        """The help text, with the unit behind it unless the text names it."""
        return f"{self.help} ({self.unit})" if self.unit and self.unit.lower() not in self.help.lower() else self.help

    @property
    def type(self) -> str:
        """The type of its values for a reader, such as `int`, `list of str` or `coupled | rejection`."""
        return "int, or text such as 8GiB" if self.unit == "bytes" else _type_name(self.annotation)


def own_fields(kind: type) -> Iterator[Field]:
    """Yield the fields of a dataclass that the configuration sets, inherited ones last."""
    docstrings, annotations = _field_docstrings(kind), get_type_hints(kind, include_extras=True)
    for each in sorted(fields(kind), key=lambda each: each.name not in inspect.get_annotations(kind)):
        annotation = annotations[each.name]
        if each.name in getattr(kind, "several", {}):
            annotation = annotation | list[str]
        flat = next((mark for mark in getattr(annotation, "__metadata__", ()) if isinstance(mark, Flat)), None)
        if flat or each.name in docstrings:
            yield Field(
                name=each.name,
                annotation=get_args(annotation)[0] if flat else annotation,
                default=each.default if each.default_factory is MISSING else each.default_factory(),
                help=_CLASS_VARIABLE.sub(lambda found: getattr(kind, found[1]), docstrings.get(each.name, "")),
                flat=flat,
            )


def level_fields(kind: type) -> Iterator[Field]:
    """Yield the values and sections of a dataclass, with those of its flat dataclasses in their places."""
    for each in own_fields(kind):
        if each.flat is None:
            yield each
            continue
        for inner in level_fields(each.annotation):
            if inner.name not in each.flat.without:
                yield replace(inner, name=each.flat.prefix + inner.name)


def all_fields(kind: type, section: str = "") -> Iterator[Field]:
    """Yield every value of a configuration under its dotted name, such as `engine.num_slots`."""
    for each in level_fields(kind):
        if each.is_section:
            yield from all_fields(each.annotation, f"{section}{each.name}.")
        else:
            yield replace(each, name=section + each.name)


def as_dict(config: Any, flat: Flat | None = None) -> dict[str, Any]:
    """Return a configuration under the names that a YAML file has for it."""
    values: dict[str, Any] = {}
    several = getattr(config, "several", {})
    for each in own_fields(type(config)):
        value = getattr(config, each.name)
        if each.flat is not None:
            values |= as_dict(value, each.flat)
        elif flat is None or each.name not in flat.without:
            name = each.name if flat is None else flat.prefix + each.name
            if isinstance(value, Structured):
                value = value.as_dict()
            value = list(getattr(config, several.get(each.name, ""), ())) or value
            values[name] = as_dict(value) if each.is_section else value
    return values


def value_in(config: Any, name: str) -> Any:
    """Return the value of a field by its dotted name, as `as_dict` has it."""
    return reduce(lambda values, part: values[part], name.split("."), as_dict(config))


@cache  # a configuration asks for the same few types many times
def _field_docstrings(kind: type) -> dict[str, str]:
    """Return the docstring of each field that has one, also of the fields that the dataclass inherits."""
    docstrings: dict[str, str] = {}
    for owner in reversed(kind.__mro__):
        if not is_dataclass(owner):
            continue
        (tree,) = ast.parse(dedent(inspect.getsource(owner))).body
        assert isinstance(tree, ast.ClassDef)
        for statement, after in pairwise(tree.body):
            match statement, after:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    docstrings[name] = " ".join(text.split())
    return docstrings


def members_of(annotation: Any) -> list[Any]:
    """Return the types that an annotation is made of, such as int and None of `int | None`."""
    return [member for each in get_args(annotation) for member in members_of(each)] or [annotation]


def _type_name(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type_name(arguments[0])
    if origin is Literal:
        return " | ".join(map(str, arguments))
    if origin in (Union, UnionType):
        return " or ".join(_type_name(each) for each in arguments if each is not NoneType)
    if origin in (tuple, list):
        return f"list of {_type_name(arguments[0])}"
    if origin is not None and issubclass(origin, Mapping):
        return f"map from {_type_name(arguments[0])} to {_type_name(arguments[1])}"
    return str(getattr(annotation, "__name__", annotation))


def text_of(value: Any) -> Any:
    """Return the text of the file that the value names, or the value itself.

    A value that is written like a file's name and names none is a ValueError. An option that is no text is returned.
    """
    if not isinstance(value, str) or "\n" in value:
        return value
    path = os.path.expanduser(value)
    if os.path.isfile(path):
        try:
            return Path(path).read_text(encoding="utf-8").removesuffix("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"the file {value!r} cannot be read as a text in UTF-8: {error}") from error
    if _FILE_NAME.fullmatch(value):
        raise ValueError(f"there is no file {value!r}; name one that is there, or give the text itself")
    return value


def form_of(value: Any) -> Any:
    """Return `sampling.structured` with the texts of the files that it names."""
    if not isinstance(value, Mapping):
        return value
    return {name: text_of(each) if name in _OF_FORMS else each for name, each in value.items()}


# By the names of fields of sections: what reads the files that their values name.
_TEXTS = ("chat_template", "system_prompt", "prompt_template", "json_schema")
READERS = {**dict.fromkeys(_TEXTS, text_of), "structured": form_of}
