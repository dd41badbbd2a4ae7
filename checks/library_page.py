"""docs/python.md: the package `dray`, made of its docstrings and signatures, which are read and not imported."""

import ast
import re
from collections.abc import Iterator

from checks import ROOT

_TAIL = """\
[examples/notebook.ipynb](../examples/notebook.ipynb) shows this on the bundled pair. The fields of `options` and of
`SamplingParams` are in [Configuration](configuration.md), the columns in [Output schema](schema.md).
[In your own pipeline](pipelines.md) is about Ray Data, and about tokens without texts.
"""


def library_page(note: str) -> str:
    """Return the page about the package."""
    tree = _tree("dray")
    head = (ast.get_docstring(tree) or "").partition("\n\n")[2]
    (homes,) = (node.value for node in tree.body if isinstance(node, ast.Assign) and "_HOMES" in ast.unparse(node))
    entries = [entry for name, home in ast.literal_eval(homes).items() for entry in _entry(name, home)]
    return "\n".join(("# In Python\n", note, _markdown(head), *entries, _TAIL))


def _entry(name: str, module: str) -> Iterator[str]:
    """Yield the heading of a function or a class, its signature, and its docstring."""
    definitions = (each for each in _tree(module).body if isinstance(each, ast.ClassDef | ast.FunctionDef))
    first, *_, node = [each for each in definitions if each.name == name] * 2  # of overloads, the one with a docstring
    yield f"## `dray.{name}`\n"
    if isinstance(node, ast.FunctionDef) and isinstance(first, ast.FunctionDef) and first.returns is not None:
        yield f"`{name}({ast.unparse(node.args).replace('=', ' = ')}) -> {ast.unparse(first.returns)}`\n"
    yield _markdown(ast.get_docstring(node) or "")


def _markdown(docstring: str) -> str:
    """Return a docstring with a fence around each block of code, which is indented there."""
    return re.sub(r"(?:^ {4}.*\n?|^\n(?= {4}))+", _fenced, docstring, flags=re.MULTILINE).rstrip("\n") + "\n"


def _fenced(found: re.Match[str]) -> str:
    code = re.sub("^ {4}", "", found[0].strip("\n"), flags=re.MULTILINE)
    return f"\n```python\n{code}\n```\n"


def _tree(module: str) -> ast.Module:
    path = ROOT / module.replace(".", "/")
    return ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8"))
