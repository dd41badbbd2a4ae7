"""The texts inside manifests that no schema checks when they are applied: commands, configurations, environments."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from ray.serve.schema import DeploymentSchema, HTTPOptionsSchema, ServeApplicationSchema, ServeDeploySchema

from tests.k8s.manifests import ROOT

IMAGE_HOME = "/opt/dray"  # where the image has the repository
CONFIG_HOME = "/etc/dray"  # where pods have their ConfigMap
_PARTS: dict[str, type[BaseModel]] = {
    "http_options": HTTPOptionsSchema,
    "applications": ServeApplicationSchema,
    "deployments": DeploymentSchema,
}


def as_here(text: str, config_home: str) -> str:
    """Return a text of a pod with the paths of this machine."""
    return text.replace(IMAGE_HOME, str(ROOT)).replace(CONFIG_HOME, config_home)


def unknown_keys(value: Any, model: type[BaseModel] = ServeDeploySchema, where: str = "") -> list[str]:
    """Return the keys of a configuration of Serve that Serve would ignore in silence."""
    fields = {name for field, info in model.model_fields.items() for name in (field, info.alias) if name}
    found = [f"{where}{key}" for key in value if key not in fields]
    for key, part in _PARTS.items():
        inner = value.get(key, [])
        for each in inner if isinstance(inner, list) else [inner]:
            found += unknown_keys(each, part, f"{where}{key}.")
    return found
