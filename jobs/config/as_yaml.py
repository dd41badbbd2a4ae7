"""A configuration as a file: the YAML that says the same, with or without what each field means."""

from collections.abc import Collection, Iterator, Mapping
from textwrap import wrap
from typing import Any

import yaml

from jobs.config.fields import all_fields, value_in

_COLUMNS = 76  # of 80, as the plan indents it


def as_yaml(config: Any, without: Collection[str] = (), commented: Collection[str] | None = None) -> str:
    """Return the file for a configuration: all that differs from the defaults, but for the fields `without`.

    With `commented` it says what each field means, and has these fields as comments where they are not set.
    """
    return "".join(f"{line}\n" for line in _lines(config, without, commented))


def _lines(config: Any, without: Collection[str], commented: Collection[str] | None) -> Iterator[str]:
    begun: str | None = None
    for field in all_fields(type(config)):
        section, _, name = field.name.rpartition(".")
        value = _plain(value_in(config, field.name))
        is_set = field.is_required or value != _plain(field.default)
        if field.name in without or not (is_set or field.name in (commented or ())):
            continue
        if section != begun:
            yield from _header(section, begun, commented is not None)
            begun = section
        indent = "  " * len(section.split(".")) if section else ""
        if commented is not None:
            yield from (f"{indent}# {line}" for line in wrap(field.description, _COLUMNS - len(indent)))
        text = yaml.safe_dump({name: value}, allow_unicode=True, sort_keys=False, width=_COLUMNS).splitlines()
        yield from (f"{indent}{'' if is_set else '# '}{line}" for line in text)


def _header(section: str, before: str | None, is_apart: bool) -> Iterator[str]:
    """Yield the lines that begin a section, such as `learn.train`, behind another one."""
    names, known = section.split("."), (before or "").split(".")
    if is_apart and before is not None:
        yield ""
    for depth, name in enumerate(names if section else ()):
        if names[: depth + 1] != known[: depth + 1]:
            yield f"{'  ' * depth}{name}:"


def _plain(value: Any) -> Any:
    """Return a value as YAML has it."""
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, tuple | list) else value
