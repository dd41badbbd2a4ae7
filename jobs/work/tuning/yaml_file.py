"""TunedFile: the YAML file that gets the best setting. All else in it stays as it is, comments too."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from jobs.config.as_yaml import as_yaml
from jobs.config.fields import all_fields
from jobs.config.tune import TuneConfig
from jobs.driver.chosen import ASKED_OF_COMMAND
from jobs.driver.plan import Plan

_MARK = "# Written by `dray tune`"  # at the beginning of a file that may be written again


@dataclass(frozen=True)
class TunedFile:
    """The file to write, and what it has besides the best setting."""

    path: Path
    text: str

    @classmethod
    def of(cls, config: TuneConfig, plan: Plan) -> TunedFile | None:
        """Return the file that is named, or a copy of that of --config; None if neither is there.

        Raises ValueError or OSError for one that cannot be written.
        """
        own, named = config.config_file, config.tune.write
        if named is not None:
            path = Path(named).expanduser()
            if path.exists():
                return cls(path, path.read_text(encoding="utf-8"))
        elif own is None:
            return None
        else:
            path = own.with_name(f"{own.stem}.tuned{own.suffix}")
            if path.exists() and not path.read_text(encoding="utf-8").startswith(_MARK):
                raise ValueError(
                    f"{path} is there, and `dray tune` has not written it; name another file in tune.write"
                )
        if own is not None:
            return cls(path, f"{_MARK} from {own.name}.\n{own.read_text(encoding='utf-8')}")
        without = [each.name for each in all_fields(type(config)) if each.name.startswith("tune.")]
        return cls(path, f"{_MARK}.\n{as_yaml(plan.config, [*ASKED_OF_COMMAND, *without])}")

    def write(self, fields: Mapping[str, Any]) -> None:
        """Write the file with these fields. Raises ValueError or OSError if that cannot be done."""
        self.path.write_text(self.with_fields(fields), encoding="utf-8")

    def with_fields(self, fields: Mapping[str, Any]) -> str:
        """Return the text with these values of fields such as `engine.num_slots`.

        Raises ValueError where that cannot be done in place.
        """
        with suppress(yaml.YAMLError, AttributeError, TypeError):  # no YAML, or no sections
            expected, text = yaml.safe_load(self.text) or {}, self.text
            for name, value in fields.items():
                section, field = name.split(".")
                expected[section] = {**(expected.get(section) or {}), field: value}
                text = _with_field(text, section, field, yaml.safe_dump(value, default_flow_style=True).split("\n")[0])
            if yaml.safe_load(text) == expected:
                return text
        raise ValueError(
            f"{self.path} cannot get {', '.join(fields)}: it has aliases there, or is no YAML with sections; write it "
            "without aliases, or leave tune.write out: the best setting is printed as flags, too"
        )


def _with_field(text: str, section: str, field: str, value: str) -> str:
    root: Any = yaml.compose(text, yaml.SafeLoader)
    node = _entries(root).get(section)
    if node is None:
        if root is not None and root.flow_style:  # {input: {path: in.jsonl}}
            return _first_in(text, root, f"{section}: {{{field}: {value}}}")
        return f"{text.rstrip()}\n{section}:\n  {field}: {value}\n".lstrip()
    if not isinstance(node, yaml.MappingNode):  # empty
        return f"{text[: node.start_mark.index]} {{{field}: {value}}}{text[node.end_mark.index :]}"
    if (old := _entries(node).get(field)) is not None:
        return text[: old.start_mark.index] + value + text[old.end_mark.index :]
    return _first_in(text, node, f"{field}: {value}")


def _first_in(text: str, node: Any, entry: str) -> str:
    """Return the text with an entry before the first one of a mapping."""
    start, first = node.start_mark, node.start_mark.index + 1
    if node.flow_style:
        return f"{text[:first]}{entry}{', ' * bool(node.value)}{text[first:]}"
    return f"{text[: start.index]}{entry}\n{' ' * start.column}{text[start.index :]}"


def _entries(node: Any) -> dict[str, Any]:
    """Return the values of a mapping by their keys; nothing of an empty node."""
    return {key.value: value for key, value in node.value} if isinstance(node, yaml.MappingNode) else {}
