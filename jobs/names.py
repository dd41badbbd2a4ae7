"""Names of the commands, in groups, and what each does. No command is imported for that."""

import ast
import sys
from collections.abc import Sequence
from inspect import cleandoc
from pathlib import Path
from shutil import get_terminal_size
from textwrap import fill
from typing import Any, TextIO

_FOLDER = Path(__file__).parent
WHOLE_WORDS: dict[str, Any] = {"break_on_hyphens": False, "break_long_words": False}
GROUPS: dict[str, Sequence[str]] = {
    "make": ("init", "tune", "generate", "retry", "best", "compact", "export", "publish"),
    "look": ("status", "show", "report", "diff", "doctor", "completion"),
    "draft": ("train_draft", "eval_draft", "swap_draft", "convert_draft"),
    "serve": ("serve",),
    "trust": ("verify", "audit", "prove", "models"),
}


def commands() -> list[str]:
    """Return the names of all commands."""
    return sorted(name for group in GROUPS.values() for name in group)


def typed(name: str) -> str:
    """Return the name of a command as it is typed, such as train-draft."""
    return name.replace("_", "-")


def called(name: str) -> str:
    """Return how a command is called."""
    return f"dray {typed(name)}"


def wrapped(text: str, indent: str = "") -> str:
    """Return a text whose paragraphs fit on the terminal; those with spaces in a row are tables, and stay."""
    layout: dict[str, Any] = {"initial_indent": indent, "subsequent_indent": indent, "break_on_hyphens": False}
    width, parts = get_terminal_size().columns, cleandoc(text).split("\n\n")
    return "\n\n".join(part if "  " in part else fill(part, width, **layout) for part in parts)


def tell(text: object, stream: TextIO | None = None) -> None:
    """Print a message on `stream`, by default stderr. On a terminal lines end between words; indented ones stay."""
    stream = stream or sys.stderr
    width = get_terminal_size().columns if stream.isatty() else 0
    lines = (line if line.startswith(" ") else fill(line, width, **WHOLE_WORDS) for line in str(text).split("\n"))
    print("\n".join(lines) if width else text, file=stream)


def summary(name: str) -> str:
    """Return what a command does: the first line of its docstring behind the colon. The command is not imported."""
    tree = ast.parse((_FOLDER / f"{name}.py").read_text(encoding="utf-8"))
    line = (ast.get_docstring(tree) or "").partition("\n")[0]
    return line.partition("`: ")[2].partition(". ")[0].removesuffix(".")
