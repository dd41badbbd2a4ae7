"""A YAML file with some of its fields set: all else stays as it is, comments too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml


def with_fields(text: str, fields: Mapping[str, Any]) -> str:
    """Return the text of a configuration with these values of fields such as `engine.num_slots`.

    Raises ValueError where that cannot be done in place.
    """
    expected = yaml.safe_load(text) or {}
    for name, value in fields.items():
        section, field = name.split(".")
        expected[section] = {**(expected.get(section) or {}), field: value}
        text = _with_field(text, section, field, yaml.safe_dump(value, default_flow_style=True).split("\n")[0])
    if yaml.safe_load(text) != expected:
        listed = ", ".join(f"{name}: {value}" for name, value in fields.items())
        raise ValueError(f"the file has aliases or the like, which are not edited; set in it yourself: {listed}")
    return text


def _with_field(text: str, section: str, field: str, value: str) -> str:
    sections = _entries(yaml.compose(text, yaml.SafeLoader))
    if section not in sections:
        return f"{text.rstrip()}\n{section}:\n  {field}: {value}\n".lstrip()
    node = sections[section]
    if not isinstance(node, yaml.MappingNode):  # empty
        return f"{text[: node.start_mark.index]} {{{field}: {value}}}{text[node.end_mark.index :]}"
    fields = _entries(node)
    if field in fields:
        old = fields[field]
        return text[: old.start_mark.index] + value + text[old.end_mark.index :]
    start = node.start_mark
    if node.flow_style:  # {num_slots: 16}
        return f"{text[: start.index + 1]}{field}: {value}{', ' * bool(fields)}{text[start.index + 1 :]}"
    return f"{text[: start.index]}{field}: {value}\n{' ' * start.column}{text[start.index :]}"


def _entries(node: Any) -> dict[str, Any]:
    """Return the values of a mapping by their keys; nothing of an empty node."""
    return {key.value: value for key, value in node.value} if isinstance(node, yaml.MappingNode) else {}
