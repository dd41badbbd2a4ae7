"""What a manifest may name: variables, ports and secrets that a program knows.

A name that no program reads does nothing and says nothing, so a misspelt one is found only here.
"""

import re
from functools import cache
from pathlib import Path

import huggingface_hub
import ray
from ray.scripts.scripts import start

from jobs.config import loading
from jobs.config.fields import all_fields, level_fields
from jobs.config.run import RunConfig

PORTS = {  # of a Ray node: KubeRay adds `metrics` itself and finds the others by these names
    "gcs": 6379,
    "dashboard": 8265,
    "client": 10001,
    "serve": 8000,
    "metrics": 8080,
    "as-metrics": 44217,
    "dash-metrics": 44227,
}
GPU, GPU_KIND = "nvidia.com/gpu", "nvidia.com/gpu.product"
SECRETS: dict[str, set[str] | None] = {  # made by the reader of k8s/README.md: name -> keys, None for any
    "dray-api-keys": {"keys"},
    "dray-hub": {"token"},
    "dray-object-store": None,
    "dray-redis": {"password"},
}
HF_HOME = "/models/hf"
_PLAIN = {"HOME", "MODELS", "PYTHONUNBUFFERED", "TMPDIR", "CUDA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"}
_PLAIN |= {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_ENDPOINT_URL"}
_NAME = re.compile(r"\b(?:RAY|HF)_[A-Za-z0-9_]+")


@cache
def variables() -> frozenset[str]:
    """Return the names of all environment variables that a program in the image reads."""
    folder = Path(ray.__file__).parent
    in_ray = {name for path in folder.rglob("*.py") for name in _NAME.findall(path.read_text(errors="replace"))}
    # Ray's core makes the name of a variable of each of its options, and the compiled names are in it.
    in_core = {name.decode() for name in re.findall(rb"\bRAY_[A-Za-z0-9_]+", (folder / "_raylet.so").read_bytes())}
    hub = Path(huggingface_hub.__file__).parent
    in_hub = {name for path in hub.glob("*.py") for name in _NAME.findall(path.read_text())}
    fields = (*level_fields(RunConfig), *all_fields(RunConfig))
    ours = {*loading.READ_BY_DECODING, *(loading.variable_of(each.name) for each in fields)}
    return frozenset(in_ray | in_core | in_hub | ours | _PLAIN)


@cache
def start_parameters() -> frozenset[str]:
    """Return the flags of `ray start`, which a group's rayStartParams are."""
    return frozenset(name.lstrip("-") for each in start.params for name in (*each.opts, *each.secondary_opts))
