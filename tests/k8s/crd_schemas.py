"""The schemas of KubeRay's custom resources, as the API server applies them: defaults set, nothing unknown.

The definitions are not in this repository; KUBERAY_CRDS names their folder (k8s/README.md says how to get them). The
variable is not called DRAY_...: the commands refuse such names that are no fields.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import celpy
import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from jsonschema.validators import extend

VARIABLE = "KUBERAY_CRDS"
_LISTED = {"RayCluster": "rayclusters", "RayJob": "rayjobs", "RayService": "rayservices"}
Schema = dict[str, Any]


def crd_folder() -> Path:
    """Where the definitions are; raises FileNotFoundError that says how to get them."""
    folder = Path(os.environ.get(VARIABLE, ""))
    missing = [name for name in _LISTED.values() if not (folder / f"ray.io_{name}.yaml").is_file()]
    if not os.environ.get(VARIABLE) or missing:
        raise FileNotFoundError(
            f"{VARIABLE} must name a folder with KubeRay's definitions (ray.io_rayjobs.yaml and others); "
            "get them with: helm pull kuberay-operator --untar --repo https://ray-project.github.io/kuberay-helm, "
            f"and set {VARIABLE}=kuberay-operator/crds"
        )
    return folder


def problems_with(each: Schema) -> list[str]:
    """What the API server would refuse an object of KubeRay for."""
    schema = _closed_schema(each["kind"])
    served = copy.deepcopy(each)
    _set_defaults(served, schema)
    validator = _Validator(schema)
    return [f"{'.'.join(map(str, error.absolute_path))}: {error.message}" for error in validator.iter_errors(served)]


def is_kuberay(each: Schema) -> bool:
    """Whether it is one of KubeRay's kinds."""
    return each.get("apiVersion") == "ray.io/v1" and each.get("kind") in _LISTED


@cache
def _closed_schema(kind: str) -> Schema:
    with open(crd_folder() / f"ray.io_{_LISTED[kind]}.yaml", encoding="utf-8") as file:
        definition = yaml.load(file, yaml.CSafeLoader)
    (version,) = [each for each in definition["spec"]["versions"] if each["name"] == "v1"]
    schema: Schema = version["schema"]["openAPIV3Schema"]
    metadata = schema["properties"].pop("metadata")
    _close(schema)
    schema["properties"]["metadata"] = metadata  # the API server's own
    return schema


def _close(schema: Any) -> None:
    """Forbid what is not named, and say in JSON Schema what Kubernetes says otherwise."""
    if not isinstance(schema, dict):
        return
    if schema.pop("x-kubernetes-int-or-string", False):
        schema.pop("type", None)
        schema.setdefault("anyOf", [{"type": "integer"}, {"type": "string"}])
    elif schema.pop("nullable", False) and "type" in schema:
        schema["type"] = [schema["type"], "null"]
    is_open = "additionalProperties" in schema or schema.get("x-kubernetes-preserve-unknown-fields")
    if "properties" in schema and not is_open:
        schema["additionalProperties"] = False
    for each in schema.get("properties", {}).values():
        _close(each)
    _close(schema.get("items"))
    _close(schema.get("additionalProperties"))


def _set_defaults(value: Any, schema: Schema) -> None:
    """As the API server does before it validates: drop nulls where null is no value, then set what has a default."""
    if isinstance(value, list):
        for item in value:
            _set_defaults(item, schema.get("items") or {})
        return
    if not isinstance(value, dict):
        return
    properties, others = schema.get("properties", {}), schema.get("additionalProperties")
    for key, field in properties.items():
        if key in value and value[key] is None and "null" not in field.get("type", ""):
            del value[key]
        if key not in value and "default" in field:
            value[key] = copy.deepcopy(field["default"])
    for key, item in value.items():
        _set_defaults(item, properties.get(key) or (others if isinstance(others, dict) else {}))


def _check_list_map_keys(validator: Any, keys: list[str], value: Any, schema: Schema) -> Iterator[ValidationError]:
    if isinstance(value, list):
        seen = [json.dumps([item.get(key) for key in keys]) for item in value if isinstance(item, dict)]
        yield from (ValidationError(f"{key} is there twice") for key in sorted({k for k in seen if seen.count(k) > 1}))


def _check_list_type(validator: Any, kind: str, value: Any, schema: Schema) -> Iterator[ValidationError]:
    if kind == "set" and isinstance(value, list):
        seen = [json.dumps(item) for item in value]
        yield from (
            ValidationError(f"{item} is there twice") for item in sorted({i for i in seen if seen.count(i) > 1})
        )


def _check_rules(validator: Any, rules: list[Schema], value: Any, schema: Schema) -> Iterator[ValidationError]:
    """Rules in CEL (https://kubernetes.io/docs/reference/using-api/cel); those about changes need the object before."""
    for rule in rules:
        if "oldSelf" not in rule["rule"] and not _program(rule["rule"]).evaluate({"self": celpy.json_to_cel(value)}):
            yield ValidationError(rule.get("message", rule["rule"]))


@cache
def _program(rule: str) -> Any:
    environment = celpy.Environment()
    return environment.program(environment.compile(rule))


_Validator = extend(
    Draft202012Validator,
    {
        "x-kubernetes-list-map-keys": _check_list_map_keys,
        "x-kubernetes-list-type": _check_list_type,
        "x-kubernetes-validations": _check_rules,
    },
)
