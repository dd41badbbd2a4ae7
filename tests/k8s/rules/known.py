"""What a manifest may name: variables, ports, labels, taints, GPUs and secrets that a program or a platform knows.

A name that no program reads does nothing and says nothing, so a misspelt one is found only here.
"""

from __future__ import annotations

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
AGENT_PORT = 52365  # of the agent on every node, whose health page KubeRay's probes ask
RESOURCES = {"cpu", "memory", "ephemeral-storage", "nvidia.com/gpu"}
TAINTS = {  # key -> operator, value and effect of a toleration
    "nvidia.com/gpu": ("Exists", None, "NoSchedule"),
    "cloud.google.com/gke-spot": ("Equal", "true", "NoSchedule"),
    "kubernetes.azure.com/scalesetpriority": ("Equal", "spot", "NoSchedule"),
}
SPOT = {  # label of a node -> its value on machines that may be taken away: GKE, EKS, Karpenter, AKS
    "cloud.google.com/gke-spot": "true",
    "eks.amazonaws.com/capacityType": "SPOT",
    "karpenter.sh/capacity-type": "spot",
    "kubernetes.azure.com/scalesetpriority": "spot",
}
TOPOLOGIES = {"topology.kubernetes.io/zone", "kubernetes.io/hostname"}
GPU, GPU_KIND = "nvidia.com/gpu", "nvidia.com/gpu.product"
GPUS = {  # as GPU feature discovery names them
    "NVIDIA-A10G",
    "NVIDIA-A100-SXM4-40GB",
    "NVIDIA-A100-SXM4-80GB",
    "NVIDIA-B200",
    "NVIDIA-H100-80GB-HBM3",
    "NVIDIA-H200",
    "NVIDIA-L4",
    "NVIDIA-L40S",
}
SECRETS: dict[str, set[str] | None] = {  # made by the reader of k8s/README.md: name -> keys, None for any
    "dray-api-keys": {"keys"},
    "dray-hub": {"token"},
    "dray-object-store": None,
    "dray-redis": {"password"},
}
MOUNTS = {  # elsewhere a volume would hide something of the image, or is looked for by nothing
    "/data",
    "/dev/shm",
    "/etc/dray",
    "/etc/dray-keys",
    "/home/ray",
    "/models",
    "/shared",
    "/tmp",
    "/var/run/secrets/kubernetes.io/serviceaccount",
}
HF_HOME = "/models/hf"
POD_FIELDS = {"metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "status.hostIP", "status.podIP"}
KUEUE_LABELS = {"kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"}
KUEUE_ANNOTATIONS = {"kueue.x-k8s.io/elastic-job": "true"}
ENUMS = {
    "imagePullPolicy": {"Always", "IfNotPresent", "Never"},
    "restartPolicy": {"Always", "OnFailure", "Never"},
    "effect": {"NoSchedule", "PreferNoSchedule", "NoExecute"},
    "operator": {"Exists", "Equal", "In", "NotIn", "DoesNotExist", "Gt", "Lt"},
    "protocol": {"TCP", "UDP"},
    "whenUnsatisfiable": {"ScheduleAnyway", "DoNotSchedule"},
    "medium": {"Memory"},
    "dnsPolicy": {"ClusterFirst", "Default"},
    "fsGroupChangePolicy": {"OnRootMismatch", "Always"},
    "terminationMessagePolicy": {"File", "FallbackToLogsOnError"},
}
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
    ours = {*loading._ENGINE_VARIABLES, *(loading._variable(each.name) for each in fields)}
    return frozenset(in_ray | in_core | in_hub | ours | _PLAIN)


@cache
def start_parameters() -> frozenset[str]:
    """Return the flags of `ray start`, which a group's rayStartParams are."""
    return frozenset(name.lstrip("-") for each in start.params for name in (*each.opts, *each.secondary_opts))
