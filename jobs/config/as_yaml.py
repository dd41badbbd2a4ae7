"""A configuration as a file: the YAML that says the same, with or without what each field means."""

from collections.abc import Collection, Iterator, Mapping
from textwrap import wrap
from typing import Any

import yaml

from jobs.config.fields import Field, all_fields, value_in

_COLUMNS = 100


def as_yaml(config: Any, without: Collection[str] = ()) -> str:
    """Return the file for a configuration: all that differs from the defaults, but for the fields `without`."""
    return "".join(f"{line}\n" for line in _lines(config, without))


def as_commented_yaml(config: Any, without: Collection[str], usual: Collection[str]) -> str:
    """Return the same with what each field means, and with fields that are `usual` and not set as comments."""
    return "".join(f"{line}\n" for line in _lines(config, without, usual, has_comments=True))


def _lines(
    config: Any, without: Collection[str], usual: Collection[str] = (), *, has_comments: bool = False
) -> Iterator[str]:
    begun: str | None = None
    for field in all_fields(type(config)):
        section, _, name = field.name.rpartition(".")
        value = _plain(value_in(config, field.name))
        is_set = field.is_required or value != _plain(field.default)
        if field.name in without or not (is_set or field.name in usual):
            continue
        if section != begun:
            yield from _header(section, begun, has_comments)
            begun = section
        indent = "  " * len(section.split(".")) if section else ""
        if has_comments:
            yield from _comment(field, indent)
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


def _comment(field: Field, indent: str) -> Iterator[str]:
    yield from (f"{indent}# {line}" for line in wrap(field.description, _COLUMNS - len(indent)))


def _plain(value: Any) -> Any:
    """Return a value as YAML has it."""
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, tuple | list) else value
