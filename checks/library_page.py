"""docs/python.md: the package `dray`, made of its docstrings and signatures."""

import inspect
import re
from collections.abc import Iterator
from typing import get_overloads

import dray

_TAIL = """\
[examples/notebook.ipynb](../examples/notebook.ipynb) shows this on the bundled pair. The fields of `options` and of
`SamplingParams` are in [Configuration](configuration.md), the columns in [Output schema](schema.md).
[In your own pipeline](pipelines.md) is about Ray Data, and about tokens without texts.
"""


def library_page(note: str) -> str:
    """Return the page about the package."""
    head = inspect.cleandoc(dray.__doc__ or "").partition("\n\n")[2]
    entries = (line for name in dray._HOMES for line in _entry(name))
    return "\n".join(("# In Python\n", note, _markdown(head), *entries, _TAIL))


def _entry(name: str) -> Iterator[str]:
    """Yield the heading of a function or a class, its signature, and its docstring."""
    yield f"## `dray.{name}`\n"
    thing = getattr(dray, name)
    if inspect.isfunction(thing):
        returned = inspect.signature(next(iter(get_overloads(thing)), thing)).return_annotation
        signature = str(inspect.signature(thing).replace(return_annotation=returned)).replace("'", "")
        yield f"`{name}{signature}`\n"
    yield _markdown(inspect.getdoc(thing) or "")


def _markdown(docstring: str) -> str:
    """Return a docstring with a fence around each block of code, which is indented there."""
    return re.sub(r"(?:^ {4}.*\n?|^\n(?= {4}))+", _fenced, docstring, flags=re.MULTILINE).rstrip("\n") + "\n"


def _fenced(found: re.Match[str]) -> str:
    code = re.sub("^ {4}", "", found[0].strip("\n"), flags=re.MULTILINE)
    return f"\n```python\n{code}\n```\n"
