"""The schemas of every kind in k8s/: Kubernetes' own, those of KubeRay's custom resources, and our rules (rules.yaml).

KubeRay's definitions are not in this repository; KUBERAY_CRDS names their folder (k8s/README.md says how to get them).
The variable is not called DRAY_...: the commands refuse such names that are no fields.
"""

import copy
import json
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import celpy
import kubernetes_validate
import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from jsonschema.validators import extend

from tests.k8s.manifests import Object, pod_templates
from tests.k8s.monitoring.promtool import problems_with_rules

KUBERNETES = "1.34.0"
VARIABLE = "KUBERAY_CRDS"
_KUBERAY = {f"Ray{kind}": f"ray{kind.lower()}s" for kind in ("Cluster", "CronJob", "Job", "Service")}
_OF_OTHERS = ("kueue.x-k8s.io/v1beta2", "monitoring.coreos.com/v1")  # their schemas are in no package
_OURS: Object = yaml.safe_load((Path(__file__).parent / "rules.yaml").read_text())


def problems_with(each: Object) -> list[str]:
    """Return what the schemas say against an object; a kind that has no schema is a problem."""
    if is_kuberay(each):
        found = _problems_with_kuberay(each)
        for name, template in [] if found else pod_templates(each):
            pod = {"apiVersion": "v1", "kind": "Pod", **template, "metadata": {"name": "x", **template["metadata"]}}
            found += [f"{name}: {problem}" for problem in _problems_with_core(pod)]
        return found
    if each.get("apiVersion") == "monitoring.coreos.com/v1" and each["kind"] == "PrometheusRule":
        return problems_with_rules(each["spec"])
    return [] if each.get("apiVersion") in _OF_OTHERS else _problems_with_core(each)


def problems_with_ours(kind: str, each: Object) -> list[str]:
    """Return what rules.yaml says against an object of a kind, or against a part of one (Pod, Cluster)."""
    return _described(_our_validator(kind), each) if kind in _OURS else []


def is_kuberay(each: Object) -> bool:
    """Tell whether an object is of one of KubeRay's kinds."""
    return each.get("apiVersion") == "ray.io/v1" and each.get("kind") in _KUBERAY


def crd_folder() -> Path:
    """Return the folder of KubeRay's definitions; raise FileNotFoundError that says how to get them."""
    folder = Path(os.environ.get(VARIABLE, ""))
    missing = [name for name in _KUBERAY.values() if not (folder / f"ray.io_{name}.yaml").is_file()]
    if not os.environ.get(VARIABLE) or missing:
        raise FileNotFoundError(
            f"{VARIABLE} must name a folder with KubeRay's definitions (ray.io_rayjobs.yaml and others); "
            "get them with: helm pull kuberay-operator --untar --repo https://ray-project.github.io/kuberay-helm, "
            f"and set {VARIABLE}=kuberay-operator/crds"
        )
    return folder


def _described(validator: Any, value: Object) -> list[str]:
    """Return each error with its place and, where the schema gives one, its reason."""
    found = []
    for error in validator.iter_errors(value):
        reason = error.schema.get("description") if isinstance(error.schema, dict) else None
        found.append(f"{'.'.join(map(str, error.absolute_path))}: {error.message}" + (f" ({reason})" if reason else ""))
    return found


@cache
def _our_validator(kind: str) -> Draft202012Validator:
    return Draft202012Validator({**_OURS[kind], "$defs": _OURS["$defs"]})


def _problems_with_core(each: Object) -> list[str]:
    try:
        kubernetes_validate.validate(each, KUBERNETES, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [f"{'.'.join(map(str, error.path))}: {error.message}"]
    except (kubernetes_validate.SchemaNotFoundError, kubernetes_validate.InvalidSchemaError) as error:
        return [f"{each.get('apiVersion')} {each.get('kind')}: no schema is known for it ({error})"]
    return []


def _problems_with_kuberay(each: Object) -> list[str]:
    """Validate an object as the API server does: set the defaults first, and allow no unknown field."""
    schema = _closed_schema(each["kind"])
    served = copy.deepcopy(each)
    _set_defaults(served, schema)
    return _described(_Validator(schema), served)


@cache
def _closed_schema(kind: str) -> Object:
    with open(crd_folder() / f"ray.io_{_KUBERAY[kind]}.yaml", encoding="utf-8") as file:
        definition = yaml.load(file, yaml.CSafeLoader)
    (version,) = [each for each in definition["spec"]["versions"] if each["name"] == "v1"]
    schema: Object = version["schema"]["openAPIV3Schema"]
    metadata = schema["properties"].pop("metadata")
    _close(schema)
    schema["properties"]["metadata"] = metadata  # the API server has a schema of its own for it
    return schema


def _close(schema: Any) -> None:
    """Forbid unknown fields, and translate what Kubernetes writes differently from JSON Schema."""
    if not isinstance(schema, dict):
        return
    schema.pop("description", None)
    if schema.pop("x-kubernetes-int-or-string", False):
        schema.pop("type", None)
        schema.setdefault("anyOf", [{"type": "integer"}, {"type": "string"}])
    elif schema.pop("nullable", False) and "type" in schema:
        schema["type"] = [schema["type"], "null"]
    if schema.get("x-kubernetes-list-type") == "set":
        schema["uniqueItems"] = True
    is_open = "additionalProperties" in schema or schema.get("x-kubernetes-preserve-unknown-fields")
    if "properties" in schema and not is_open:
        schema["additionalProperties"] = False
    for each in schema.get("properties", {}).values():
        _close(each)
    _close(schema.get("items"))
    _close(schema.get("additionalProperties"))


def _set_defaults(value: Any, schema: Object) -> None:
    """Do as the API server before it validates: drop nulls where null is no value, then set what has a default."""
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


def _check_list_map_keys(validator: Any, keys: list[str], value: Any, schema: Object) -> Iterator[ValidationError]:
    if isinstance(value, list):
        seen = [json.dumps([item.get(key) for key in keys]) for item in value if isinstance(item, dict)]
        yield from (ValidationError(f"{key} is there twice") for key in sorted({k for k in seen if seen.count(k) > 1}))


def _check_rules(validator: Any, rules: list[Object], value: Any, schema: Object) -> Iterator[ValidationError]:
    """Apply rules in CEL (https://kubernetes.io/docs/reference/using-api/cel), less those that compare two versions."""
    for rule in rules:
        if "oldSelf" not in rule["rule"] and not _program(rule["rule"]).evaluate({"self": celpy.json_to_cel(value)}):
            yield ValidationError(rule.get("message", rule["rule"]))


@cache
def _program(rule: str) -> Any:
    environment = celpy.Environment()
    return environment.program(environment.compile(rule))


_Validator = extend(
    Draft202012Validator, {"x-kubernetes-list-map-keys": _check_list_map_keys, "x-kubernetes-validations": _check_rules}
)
