"""All that is checked of manifests that are applied together, in one list of problems; empty if they are right."""

from __future__ import annotations

from typing import Any

from tests.k8s import core_kinds, crd_schemas, lint, operator_rules
from tests.k8s.manifests import name_of, pod_templates

Object = dict[str, Any]


def problems_with(objects: list[Object], ground: list[Object]) -> list[str]:
    """By the schemas, by KubeRay's operator, by our own lint; the later ones only where the earlier find nothing."""
    by_schema = [f"{name_of(each)}: {problem}" for each in objects for problem in _by_schema(each)]
    if by_schema:
        return by_schema
    by_operator = [
        f"{name_of(each)}: {problem}"
        for each in objects
        if crd_schemas.is_kuberay(each)
        for problem in operator_rules.problems_with(each)
    ]
    return by_operator + lint.problems_with(objects, ground)


def _by_schema(each: Object) -> list[str]:
    if not crd_schemas.is_kuberay(each):
        return core_kinds.problems_with(each)
    found = crd_schemas.problems_with(each)
    if not found:
        for name, template in pod_templates(each):
            found += [f"{name}: {problem}" for problem in core_kinds.problems_with_pod(template)]
    return found
