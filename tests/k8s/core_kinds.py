"""Schemas of all other kinds: Kubernetes' own by kubernetes-validate, Prometheus' operator by the fields that we use.

A kind that neither knows is refused, never passed over.
"""

from __future__ import annotations

from typing import Any

import kubernetes_validate
from jsonschema import Draft202012Validator

VERSION = "1.34.0"
Object = dict[str, Any]

_TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
_METADATA = {"type": "object", "required": ["name"]}
_DURATION = {"type": "string", "pattern": r"^(0|(\d+h)?(\d+m)?(\d+s)?)$", "minLength": 1}


def _closed(required: list[str], **properties: Any) -> Object:
    return {"type": "object", "required": required, "properties": properties, "additionalProperties": False}


def _kind(spec: Object) -> Object:
    head = {"apiVersion": {"const": "monitoring.coreos.com/v1"}, "kind": {"type": "string"}, "metadata": _METADATA}
    return _closed(["apiVersion", "kind", "metadata", "spec"], **head, spec=spec)


_EXPRESSION = _closed(
    ["key", "operator"],
    key={"type": "string"},
    operator={"enum": ["In", "NotIn", "Exists", "DoesNotExist"]},
    values={"type": "array", "items": {"type": "string"}},
)
_SELECTOR = _closed([], matchLabels=_TEXTS, matchExpressions={"type": "array", "items": _EXPRESSION})
_RELABELING = _closed(
    [],
    sourceLabels={"type": "array", "items": {"type": "string"}},
    targetLabel={"type": "string"},
    regex={"type": "string"},
    replacement={"type": "string"},
    action={"enum": ["replace", "keep", "drop", "labeldrop", "labelkeep", "labelmap"]},
)
_ENDPOINT = _closed(
    ["port"],
    port={"type": "string"},
    path={"type": "string"},
    interval=_DURATION,
    relabelings={"type": "array", "items": _RELABELING},
)
_RULE = _closed(
    ["expr"],
    alert={"type": "string"},
    record={"type": "string"},
    expr={"type": "string", "minLength": 1},
    labels=_TEXTS,
    annotations=_TEXTS,
    **{"for": _DURATION},
)
_GROUP = _closed(
    ["name", "rules"], name={"type": "string"}, interval=_DURATION, rules={"type": "array", "items": _RULE}
)
# https://prometheus-operator.dev/docs/api-reference/api: the part that these manifests use
_MONITORING = {
    "PodMonitor": _kind(
        _closed(
            ["selector", "podMetricsEndpoints"],
            selector=_SELECTOR,
            namespaceSelector=_closed([], matchNames={"type": "array", "items": {"type": "string"}}),
            podMetricsEndpoints={"type": "array", "minItems": 1, "items": _ENDPOINT},
            podTargetLabels={"type": "array", "items": {"type": "string"}},
        )
    ),
    "PrometheusRule": _kind(_closed(["groups"], groups={"type": "array", "minItems": 1, "items": _GROUP})),
}


def problems_with(each: Object) -> list[str]:
    """What its schema says against an object, unknown fields and unknown kinds included."""
    schema = _MONITORING.get(each.get("kind", ""))
    if schema is not None:
        errors = Draft202012Validator(schema).iter_errors(each)
        return [f"{'.'.join(map(str, error.absolute_path))}: {error.message}" for error in errors]
    known = {"v1", "apps/v1", "batch/v1", "policy/v1", "networking.k8s.io/v1", "scheduling.k8s.io/v1"}
    if each.get("apiVersion") not in known:
        return [f"{each.get('apiVersion')} {each.get('kind')}: no schema is known for it"]
    try:
        kubernetes_validate.validate(each, VERSION, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [f"{'.'.join(map(str, error.path))}: {error.message}"]
    except kubernetes_validate.SchemaNotFoundError as error:
        return [f"{each.get('apiVersion')} {each.get('kind')}: {error}"]
    return []


def problems_with_pod(template: Object) -> list[str]:
    """A pod template by the schema of pods, which is stricter than what custom resources repeat of it."""
    pod = {"apiVersion": "v1", "kind": "Pod", **template, "metadata": {"name": "x", **template.get("metadata", {})}}
    return problems_with(pod)
