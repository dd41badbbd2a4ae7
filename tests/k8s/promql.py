"""What a query of PromQL gives over hand-made series, as far as the alerts on the endpoint go.

It follows https://prometheus.io/docs/prometheus/latest/querying: samples are found for five minutes, vectors match by
all labels but the name. `increase` is exact, where Prometheus extrapolates to the ends of the range.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import promql_parser as promql

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
_FOUND_FOR_S = 300.0


@dataclass(frozen=True)
class Series:
    """A metric's name, labels, and samples: seconds and value, in order."""

    name: str
    labels: dict[str, str]
    samples: list[tuple[float, float]]


def evaluate(query: str, series: list[Series], at_s: float) -> Vector:
    """The answer at a time, by labels; raises NotImplementedError at what the alerts do not use."""
    return _vector(promql.parse(query), series, at_s)


def _vector(node: promql.Expr, series: list[Series], at_s: float) -> Vector:
    if isinstance(node, promql.ParenExpr):
        return _vector(node.expr, series, at_s)
    if isinstance(node, promql.VectorSelector):
        return {
            labels: samples[-1][1] for labels, samples in _samples(node, series, at_s, _FOUND_FOR_S).items() if samples
        }
    if isinstance(node, promql.Call):
        return _function(node, series, at_s)
    if isinstance(node, promql.AggregateExpr) and str(node.op) == "sum" and node.modifier is not None:
        return _sum(_vector(node.expr, series, at_s), set(node.modifier.labels))
    if isinstance(node, promql.BinaryExpr):
        return _binary(node, series, at_s)
    raise NotImplementedError(node.prettify())


def _binary(node: promql.BinaryExpr, series: list[Series], at_s: float) -> Vector:
    left, operator = _vector(node.lhs, series, at_s), str(node.op)
    if isinstance(node.rhs, promql.NumberLiteral) and operator == ">":
        return {labels: value for labels, value in left.items() if value > node.rhs.val}
    right = _vector(node.rhs, series, at_s)
    set_operators: dict[str, Callable[[], Vector]] = {
        "unless": lambda: {labels: value for labels, value in left.items() if labels not in right},
        "or": lambda: right | left,
    }
    if operator not in set_operators:
        raise NotImplementedError(node.prettify())
    return set_operators[operator]()


def _function(node: promql.Call, series: list[Series], at_s: float) -> Vector:
    (matrix,) = node.args
    if not isinstance(matrix, promql.MatrixSelector) or node.func.name not in ("increase", "absent_over_time"):
        raise NotImplementedError(node.prettify())
    selector = matrix.vector_selector
    found = _samples(selector, series, at_s, matrix.range.total_seconds())
    if node.func.name == "increase":
        # What falls was counted anew from 0.
        return {
            labels: sum(after - before if after >= before else after for (_, before), (_, after) in pairwise(samples))
            for labels, samples in found.items()
            if len(samples) > 1
        }
    if any(found.values()):
        return {}
    return {frozenset((m.name, m.value) for m in selector.matchers.matchers if m.op == promql.MatchOp.Equal): 1.0}


def _sum(vector: Vector, by: set[str]) -> Vector:
    sums: Vector = {}
    for labels, value in vector.items():
        kept = frozenset(each for each in labels if each[0] in by)
        sums[kept] = sums.get(kept, 0.0) + value
    return sums


def _samples(
    selector: promql.VectorSelector, series: list[Series], at_s: float, seconds: float
) -> dict[Labels, list[tuple[float, float]]]:
    """Those of a range that ends at a time, of each series that is selected."""
    end_s = at_s - (selector.offset.total_seconds() if selector.offset else 0.0)
    return {
        frozenset(each.labels.items()): [sample for sample in each.samples if end_s - seconds < sample[0] <= end_s]
        for each in series
        if each.name == selector.name and all(_matches(m, each.labels) for m in selector.matchers.matchers)
    }


def _matches(matcher: promql.Matcher, labels: dict[str, str]) -> bool:
    value = labels.get(matcher.name, "")
    if matcher.op in (promql.MatchOp.Equal, promql.MatchOp.NotEqual):
        return (value == matcher.value) is (matcher.op == promql.MatchOp.Equal)
    return (re.fullmatch(matcher.value, value) is not None) is (matcher.op == promql.MatchOp.Re)
