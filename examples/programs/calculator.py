"""A calculator loop: the model writes a sum up to its equals sign, a tool computes it, and the model goes on behind it.

`dray generate --config examples/configs/calculator.yaml`
"""

import ast
import operator
import re
from typing import Any

_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}
_SUM = re.compile(r"\d[\d x+*-]*\s*$")


def calculate(expression: str) -> str:
    """Return the value of a sum of whole numbers, such as "3 x 90 + 15"; "?" for what is none."""
    try:
        return str(_value(ast.parse(expression.replace("x", "*").strip(), mode="eval").body))
    except (SyntaxError, ValueError, RecursionError):
        return "?"


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        value: int = _OPERATORS[type(node.op)](_value(node.left), _value(node.right))
        return value
    raise ValueError("not a sum")


async def solve(generate: Any, row: dict[str, Any]) -> str:
    """Write on behind the row's prompt, with every sum computed by the tool; return what was written."""
    text, sampling = row["prompt"], {"stop": ["="], "max_tokens": 40}
    for _ in range(8):
        turn = await generate(text, sampling)
        text += turn.text
        found = _SUM.search(text)
        if turn.stop_reason != "=" or found is None:
            break
        text += f"= {await generate.call(calculate, expression=found[0])}"
        sampling["structured"] = {"regex": "[^0-9](?s:.*)"}  # no further digit behind the value
    return str(text[len(row["prompt"]) :])
