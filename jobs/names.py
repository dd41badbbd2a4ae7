"""Names of the commands, in groups, and what each does. No command is imported for that."""

import ast
from collections.abc import Sequence
from pathlib import Path

_FOLDER = Path(__file__).parent
_NO_COMMANDS = ("__init__", "__main__", "commands", "names", "shadows")
GROUPS: dict[str, Sequence[str]] = {
    "make": ("init", "tune", "generate", "retry", "best", "compact", "export", "publish"),
    "look": ("status", "show", "report", "doctor", "completion"),
    "draft": ("train_draft", "eval_draft", "swap_draft", "convert_draft"),
    "serve": ("serve",),
    "trust": ("verify", "prove", "models"),
}


def commands() -> list[str]:
    """Return the names of all commands: the files beside this one."""
    return sorted(path.stem for path in _FOLDER.glob("*.py") if path.stem not in _NO_COMMANDS)


def typed(name: str) -> str:
    """Return the name of a command as it is typed, such as train-draft."""
    return name.replace("_", "-")


def called(name: str) -> str:
    """Return how a command is called."""
    return f"dray {typed(name)}"


def summary(name: str) -> str:
    """Return what a command does: the first line of its docstring behind the colon. The command is not imported."""
    tree = ast.parse((_FOLDER / f"{name}.py").read_text(encoding="utf-8"))
    line = (ast.get_docstring(tree) or "").partition("\n")[0]
    return line.partition("`: ")[2].partition(". ")[0].removesuffix(".")
