"""`python -m checks.rooms [PACKAGE ...]`: the tree of rooms, each with its sentence, and the rules that rooms keep.

A room is a folder of Python files. The first line of its `__init__` says what it is for. It has at most ten modules, a
module of a package at most 300 lines, and what a configuration names (a backend, a task) is compared with that name in
one room only; elsewhere the type that it stands for is asked.
"""

import ast
import sys
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from checks import ROOT, print_violations, tracked_files

PACKAGES = ("dray", "jobs", "endpoint", "actors", "training", "pipeline", "decoding", "benchmarks", "checks")
_MOST_MODULES, _MOST_LINES = 10, 300
_ENTRANCES = ("__init__.py", "__main__.py")
_UNCOUNTED = ("jobs",)  # one module for each command
_LONG = ("benchmarks", "checks")  # their files have no limit
# Rooms and modules that are still too large, with their present sizes: they may only shrink.
_STILL_TOO_LARGE: dict[str, int] = {}
_ROOMS_OF_NAMES = {
    "verification": (("coupled", "rejection", "unadjusted"), ("decoding/sampling/", "decoding/choices.py")),
    "backend": (("dray", "vllm"), ("actors/engines/",)),
    "placement": (("colocated", "split", "staged"), ("actors/placement.py", "actors/settings.py")),
    "task": (("generate", "score", "program"), ("actors/tasks.py", "jobs/config/run.py")),
}


def main(packages: Sequence[str]) -> int:
    """Print the tree, and what breaks a rule; return 1 if something does, else 0."""
    files = [PurePath(name) for package in packages for name in tracked_files(f"{package}/*.py")]
    rooms: dict[PurePath, list[PurePath]] = {}
    for file in files:
        rooms.setdefault(file.parent, []).append(file)
    for room in sorted(rooms):
        indent = "  " * (len(room.parts) - 1)
        print(f"{indent}{room.name}/".ljust(24), _sentence(room))
    violations = [line for room in rooms for line in of_room(room, rooms[room])]
    violations += [line for file in files for line in of_file(file, (ROOT / file).read_text())]
    return print_violations(violations, f"{len(rooms)} rooms keep the rules")


def _sentence(room: PurePath) -> str:
    entrance = ROOT / room / "__init__.py"
    docstring = ast.get_docstring(ast.parse(entrance.read_text())) if entrance.exists() else None
    return docstring.splitlines()[0] if docstring else ""


def of_room(room: PurePath, files: Sequence[PurePath]) -> Iterator[str]:
    """Yield a line for each rule that a room breaks."""
    modules = [file for file in files if file.name not in _ENTRANCES]
    if not _sentence(room):
        yield f"{room}/__init__.py: the first line says what the room is for"
    if str(room) not in _UNCOUNTED:
        yield from _sized(str(room), len(modules), "modules", _MOST_MODULES)


def of_file(file: PurePath, text: str) -> Iterator[str]:
    """Yield a line for each rule that a module breaks."""
    if file.parts[0] not in _LONG:
        yield from _sized(str(file), len(text.splitlines()), "lines", _MOST_LINES)
    for what, (names, rooms) in _ROOMS_OF_NAMES.items():
        if not str(file).startswith(rooms) and file.parts[0] not in _LONG:
            for line in _compared(text, what, names):
                yield f"{file}:{line}: a {what} is compared with its name; ask the type in {', '.join(rooms)}"


def _sized(name: str, size: int, what: str, most: int) -> Iterator[str]:
    """Yield a line if something is too large, or smaller than the list of what is too large says."""
    known = _STILL_TOO_LARGE.get(name, most)
    if size > known:
        yield f"{name}: {size} {what}; at most {known} are allowed"
    elif size < known != most:
        yield f"{name}: {size} {what}; the list in checks/rooms.py still allows {known}, so lower that"


def _compared(text: str, what: str, names: Sequence[str]) -> Iterator[int]:
    """Yield the lines on which something of this name is compared with one of the names."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            is_asked = any(ast.unparse(side).split(".")[-1] == what for side in sides)
            constants = [each.value for side in sides for each in ast.walk(side) if isinstance(each, ast.Constant)]
            if is_asked and any(name in constants for name in names):
                yield node.lineno
        elif isinstance(node, ast.Match) and ast.unparse(node.subject).split(".")[-1] == what:
            yield node.lineno


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or PACKAGES))
