"""One line in place of a file: `dray generate FILE OUT --model MODEL`. FILE may be several, and OUT is the last."""

import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from jobs.config.arguments import SHORTS, apart, gives, spelled_out
from jobs.config.loading import config_file, load, read_sections, variable_of
from jobs.config.run import RunConfig

_Config = TypeVar("_Config", bound=RunConfig)
_WHAT = {
    "input.path": ("FILE", "no input is named: a file with prompts, such as questions.jsonl, a folder or a glob"),
    "output.path": ("OUT", "no folder is named for what is written"),
    "models.target": (
        "--model MODEL",
        "no model is named: a folder, a .gguf file, or a hub name such as Qwen/Qwen3-0.6B",
    ),
}
_NAMES_OF_FILES = set("*?[")  # in a glob


def load_run(kind: type[_Config], arguments: Sequence[str], prog: str) -> _Config:
    """Return the configuration of a run, which a file, flags, or FILE and OUT among these arguments ask for.

    Without a file of configuration `chosen` is there, to be filled with what the machine decides. Raises ValueError as
    `load` does, for what is named twice or not at all, and for a FILE that is not there.
    """
    places, flags = apart(spelled_out(arguments, kind), kind)
    if {"-h", "--help"} & set(flags):
        return load(kind, flags, prog)
    file = config_file(flags)
    sections: dict[str, Any] = {} if file is None else read_sections(file)

    def is_said(name: str) -> bool:
        return gives(flags, name) or variable_of(name) in os.environ or _in_file(sections, name) is not None

    given = _places_as_fields(places, is_said("input.path"))
    for name, values in given.items():
        shown, known = " ".join(values), _in_file(sections, name)
        if gives(flags, name):
            raise ValueError(f"{shown} and --{name} both say what {name} is; keep one of them")
        if known is not None:
            raise ValueError(
                f"{shown} and {file} both say what {name} is: the file has {known}; to take {shown} in its place, "
                f"write --{name} {shown}"
            )
        _check(name, values)
    missing = [name for name in _WHAT if name not in given and not is_said(name)]
    if missing and file is None:
        load(kind, [*flags, *(f"--{name}=x" for name in (*given, *missing))], prog)  # what else is wrong comes first
        raise ValueError(_explain(missing, given, flags, prog))
    # Names of files do not go through pydantic-settings, which takes commas, brackets and quotes for marks of its own.
    config = load(kind, [*flags, *(f"--{name}=x" for name in given)], prog)
    if "input.path" in given:
        config = replace(config, input=replace(config.input, path=given["input.path"]))
    if "output.path" in given:
        config = replace(config, output=replace(config.output, path=given["output.path"][0]))
    return replace(config, chosen={}) if given and file is None else config


def _places_as_fields(places: list[str], has_input: bool) -> dict[str, list[str]]:
    """Return FILE and OUT by the names of their fields. One alone is OUT only where the input is given elsewhere."""
    if len(places) == 1:
        return {"output.path" if has_input else "input.path": places}
    *files, out = places or [""]
    fields = {"input.path": files, "output.path": [out]}
    return fields if places else {}


def _in_file(sections: dict[str, Any], name: str) -> Any:
    section, _, field = name.partition(".")
    fields = sections.get(section)
    return fields.get(field) if isinstance(fields, dict) else None


def _check(name: str, values: list[str]) -> None:
    """Raise ValueError for an input that is not there, and for an output that is a file."""
    for value in values:
        path = Path(value).expanduser()
        if "://" in value:
            continue
        if name == "output.path" and path.is_file():
            raise ValueError(
                f"OUT {value!r} is a file, and a run is a folder; name a folder, such as {path.stem}/ (dray export "
                "makes one file of a run)"
            )
        if name == "input.path" and not path.exists() and not _NAMES_OF_FILES & set(value):
            beside = [each.name for each in path.parent.iterdir()] if path.parent.is_dir() else []
            near = get_close_matches(path.name, beside, n=1)
            meant = f"; did you mean {path.with_name(near[0])}?" if near else f" (looked in {path.parent.absolute()})"
            raise ValueError(f"no input file {value!r}{meant}")


def _explain(missing: list[str], given: dict[str, list[str]], flags: list[str], prog: str) -> str:
    """Return what is missing, and the line that would have it, with what was given in its place."""
    names = {name: short for short, name in SHORTS.items()}
    words = [
        *(
            " ".join(map(shlex.quote, given[name])) if name in given else _WHAT[name][0]
            for name in _WHAT
            if name in given or name in missing
        ),
        *(f"--{names[each[2:]]}" if each[2:] in names else each for each in flags),
    ]
    return f"{_WHAT[missing[0]][1]}; type\n  {prog} {' '.join(words)}"
