"""`python -m checks.docstrings [PATH ...]`: docstrings of functions begin with a verb, and all texts name who acts.

Properties, classes and modules are things, so their docstrings begin with a noun.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

from checks import ROOT, print_violations, tracked_files

VERBS = frozenset((Path(__file__).parent / "verbs.txt").read_text().split())
_HEADLESS = ("as", "for", "it", "its", "of", "so", "that", "they", "those", "where", "who", "whoever", "whose")
_RIDDLES = re.compile(r"\b(whoever|whomever|nobody|somebody|anybody|everybody|so many|of that kind)\b", re.IGNORECASE)
_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def main(paths: list[str]) -> int:
    """Print each violation in the tracked Python files under the paths; return 1 if there is one, else 0."""
    files = [name for name in tracked_files("*.py") if name.startswith(tuple(paths))]
    found = (line for file in files for line in violations(file, (ROOT / file).read_text()))
    return print_violations(found, f"{len(files)} files say what they do")


def violations(file: str, text: str) -> Iterator[str]:
    """Yield one `file:line: message` for each rule that the text of a Python file breaks."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, _Documented) and (docstring := ast.get_docstring(node)):
            first = re.split(r"\W+", docstring.lstrip('`"'), maxsplit=1)[0].lower()
            place = f"{file}:{getattr(node, 'lineno', 1)}"
            if first in _HEADLESS:
                yield f"{place}: the docstring begins with {first!r}; say the thing's name"
            elif _is_an_action(node) and not file.startswith("tests/") and first not in VERBS:
                yield f"{place}: the docstring begins with {first!r}; begin with a verb (checks/verbs.txt)"
            yield from (f"{place}: {word!r} in a docstring; name who acts" for word in _RIDDLES.findall(docstring))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and (word := _RIDDLES.search(token.string)):
            yield f"{file}:{token.start[0]}: {word[0]!r} in a comment; name who acts"


def _is_an_action(node: _Documented) -> bool:
    """Tell whether a docstring belongs to a function that is called, not to a property, a class or a module."""
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not any(
        "property" in ast.unparse(decorator) for decorator in node.decorator_list
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or [""]))
