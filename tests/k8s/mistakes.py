"""Mistakes that people make in manifests: each is one value at one place of what an overlay renders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

GONE = object()  # the value of what is not there
_HEAD = "spec.rayClusterSpec.headGroupSpec"
_HEAD_POD = f"{_HEAD}.template.spec"
_WORKERS = "spec.rayClusterSpec.workerGroupSpecs.0"
_WORKER_POD = f"{_WORKERS}.template.spec"
_WORKER = f"{_WORKER_POD}.containers.0"
_SUBMITTER = "spec.submitterPodTemplate.spec"


@dataclass(frozen=True)
class Mistake:
    """What is wrong, where, and a part of what is said about it."""

    what: str
    path: str  # keys and indexes, by dots; a "+" appends
    value: Any
    said: str
    kind: str = "RayJob"
    folder: str = "overlays/job"
    name: str = ""  # of the object, where there are several of the kind

    def make(self, objects: list[Any]) -> None:
        """Put it into rendered objects."""
        place: Any
        (place,) = [
            each for each in objects if each["kind"] == self.kind and self.name in ("", each["metadata"]["name"])
        ]
        *way, last = self.path.split(".")
        for key in way:
            place = place[int(key)] if isinstance(place, list) else place.setdefault(key.replace("~", "."), {})
        last = last.replace("~", ".")
        if last == "+":
            place.append(self.value)
        elif self.value is GONE:
            del place[int(last) if isinstance(place, list) else last]
        else:
            place[int(last) if isinstance(place, list) else last] = self.value


def _service(what: str, path: str, value: Any, said: str) -> Mistake:
    return Mistake(what, path, value, said, "RayService", "overlays/service")


def _network(what: str, path: str, value: Any, said: str) -> Mistake:
    return Mistake(what, path, value, said, "NetworkPolicy", "base/namespace", "redis")


MISTAKES = (
    # the schema
    Mistake("a field misspelt", "spec.backofLimit", 3, "backofLimit"),
    Mistake("a field misspelt deep in a pod", f"{_WORKER_POD}.tolerationz", [], "tolerationz"),
    Mistake("a number as text", "spec.backoffLimit", "3", "not of type"),
    Mistake("a variable as a number", f"{_WORKER}.env.0.value", 7, "not of type"),
    Mistake("a start parameter as a number", f"{_HEAD}.rayStartParams.num-cpus", 0, "not of type"),
    Mistake("an enum's value misspelt", "spec.rayClusterSpec.autoscalerOptions.upscalingMode", "Fast", "not one of"),
    Mistake("no such authentication", "spec.rayClusterSpec.authOptions.mode", "Token", "not one of"),
    Mistake("a quantity that is none", f"{_WORKER}.resources.limits.memory", "64 GB", "64 GB"),
    Mistake("a variable twice", f"{_WORKER}.env.+", {"name": "HOME", "value": "/"}, "twice"),
    Mistake(
        "a deletion rule without a condition",
        "spec.deletionStrategy.deletionRules.0.condition",
        {"ttlSeconds": 1},
        "requires either",
    ),
    Mistake(
        "old and new deletion rules",
        "spec.deletionStrategy.onSuccess",
        {"policy": "DeleteCluster"},
        "cannot be used together",
    ),
    Mistake("a group without a name", f"{_WORKERS}.groupName", GONE, "groupName"),
    Mistake(
        "an alpha field that does not exist yet",
        "spec.rayClusterSpec.idleTerminationOptions",
        {},
        "idleTerminationOptions",
    ),
    Mistake("a kind that nobody knows", "kind", "RayJobs", "no schema is known"),
    Mistake("a budget's field misspelt", "spec.minAvailabel", 1, "minAvailabel", "PodDisruptionBudget"),
    # the operator
    Mistake("a long name", "metadata.name", "dray-" + "x" * 43, "48 characters"),
    Mistake("a name with a dot", "metadata.name", "dray.job", "DNS-1035"),
    Mistake("no such way to submit", "spec.submissionMode", "Bogus", "none of"),
    Mistake("a submitter in HTTPMode", "spec.submissionMode", "HTTPMode", "HTTPMode has no submitter"),
    Mistake("a submitter in SidecarMode", "spec.submissionMode", "SidecarMode", "not in SidecarMode"),
    Mistake("suspended with deletion rules", "spec.suspend", True, "only with shutdownAfterJobFinishes"),
    Mistake("shutdown and deletion rules", "spec.shutdownAfterJobFinishes", True, "not beside"),
    Mistake("a time to live without shutdown", "spec.ttlSecondsAfterFinished", 60, "only with shutdown"),
    Mistake("nothing ends the cluster", "spec.deletionStrategy", GONE, "nothing ends the cluster"),
    Mistake(
        "workers deleted under the autoscaler",
        "spec.deletionStrategy.deletionRules.0.policy",
        "DeleteWorkers",
        "does not go with autoscaling",
    ),
    Mistake(
        "the job goes before its cluster",
        "spec.deletionStrategy.deletionRules.1.condition.ttlSeconds",
        1,
        "longer ttlSeconds",
    ),
    Mistake("a deadline of nothing", "spec.activeDeadlineSeconds", 0, "above 0"),
    Mistake("a runtime environment that is no YAML", "spec.runtimeEnvYAML", "env_vars: {a: [", "no YAML"),
    Mistake("a runtime environment that is a list", "spec.runtimeEnvYAML", "- a", "no mapping"),
    Mistake("more workers at least than at most", f"{_WORKERS}.minReplicas", 9, "not between"),
    Mistake("pods that restart under autoscaler v2", f"{_WORKER_POD}.restartPolicy", "Always", "it is Never"),
    Mistake("resources in two places", f"{_HEAD}.resources", {"CPU": "0"}, "takes one of them"),
    Mistake("labels as a start parameter", f"{_WORKERS}.rayStartParams.labels", "a=b", "labels beside it"),
    Mistake("authentication by an old Ray", "spec.rayClusterSpec.rayVersion", "2.51.0", "needs 2.52.0"),
    Mistake("a version that is none", "spec.rayClusterSpec.rayVersion", "nightly", "no version"),
    Mistake(
        "autoscaler options without autoscaler", "spec.rayClusterSpec.enableInTreeAutoscaling", False, "do nothing"
    ),
    Mistake(
        "Redis by environment",
        f"{_HEAD_POD}.containers.0.env.+",
        {"name": "RAY_REDIS_ADDRESS", "value": "r:1"},
        "without gcsFaultTolerance",
    ),
    Mistake(
        "two groups of one name",
        _WORKERS.replace(".0", ".1") + ".groupName",
        "on-demand",
        "two groups",
        folder="overlays/spot",
    ),
    _service("no such upgrade", "spec.upgradeStrategy.type", "Rolling", "Rolling"),
    _service(
        "an incremental upgrade without options",
        "spec.upgradeStrategy.type",
        "NewClusterWithIncrementalUpgrade",
        "stepSizePercent",
    ),
    _service("a time that is none", "metadata.annotations.ray~io/initializing-timeout", "soon", "no time"),
    # ours
    Mistake("authentication left empty", "spec.rayClusterSpec.authOptions", {}, "written out"),
    Mistake(
        "an autoscaler of the default version", "spec.rayClusterSpec.autoscalerOptions.version", GONE, "version v2"
    ),
    Mistake("work on the head", f"{_HEAD}.rayStartParams.num-cpus", GONE, "num-cpus"),
    Mistake("another Ray than the image's", "spec.rayClusterSpec.rayVersion", "2.59.0", "is not the pinned"),
    Mistake("requests below limits", f"{_WORKER}.resources.requests.memory", "32Gi", "is not its limit"),
    Mistake("a GPU without a limit", f"{_WORKER}.resources.limits.nvidia~com/gpu", GONE, "only in requests"),
    Mistake("no resources", f"{_SUBMITTER}.containers.0.resources", GONE, "request and limit of cpu"),
    Mistake("a mount without a volume", f"{_WORKER}.volumeMounts.0.name", "temp", "no volume is called"),
    Mistake(
        "the autoscaler's mount without a volume",
        "spec.rayClusterSpec.autoscalerOptions.volumeMounts.0.name",
        "x",
        "has no volume",
    ),
    Mistake("two mounts on a path", f"{_WORKER}.volumeMounts.1.mountPath", "/tmp", "is there twice"),
    Mistake(
        "a claim that is nowhere",
        f"{_WORKER_POD}.volumes.3.persistentVolumeClaim.claimName",
        "model",
        "which is nowhere",
    ),
    Mistake("a ConfigMap that is nowhere", f"{_WORKER_POD}.volumes.4.configMap.name", "dray", "which is nowhere"),
    Mistake("a service account that is nowhere", f"{_WORKER_POD}.serviceAccountName", "default", "which is nowhere"),
    Mistake("a priority that is nowhere", f"{_HEAD_POD}.priorityClassName", "high", "which is nowhere"),
    Mistake("root", f"{_WORKER_POD}.securityContext.runAsUser", 0, "runAsUser"),
    Mistake("perhaps root", f"{_SUBMITTER}.securityContext.runAsNonRoot", GONE, "runAsNonRoot"),
    Mistake("no seccomp", f"{_HEAD_POD}.securityContext.seccompProfile", GONE, "seccompProfile"),
    Mistake(
        "privileges",
        f"{_SUBMITTER}.containers.0.securityContext.allowPrivilegeEscalation",
        True,
        "allowPrivilegeEscalation",
    ),
    Mistake("a capability", f"{_WORKER}.securityContext.capabilities.add", ["SYS_PTRACE"], "capabilities"),
    Mistake(
        "a root that can be written",
        f"{_WORKER}.securityContext.readOnlyRootFilesystem",
        False,
        "readOnlyRootFilesystem",
    ),
    Mistake(
        "an autoscaler without security",
        "spec.rayClusterSpec.autoscalerOptions.securityContext",
        GONE,
        "autoscaler: securityContext",
    ),
    Mistake("no pod for the submitter", "spec.submitterPodTemplate", GONE, "restricted namespace"),
    Mistake("the host's network", f"{_WORKER_POD}.hostNetwork", True, "hostNetwork"),
    Mistake("the host's disk", f"{_WORKER_POD}.volumes.0", {"name": "tmp", "hostPath": {"path": "/tmp"}}, "hostPath"),
    Mistake("services as variables", f"{_WORKER_POD}.enableServiceLinks", GONE, "enableServiceLinks"),
    Mistake(
        "workers with a token of Kubernetes",
        f"{_WORKER_POD}.automountServiceAccountToken",
        GONE,
        "automountServiceAccountToken",
    ),
    Mistake("a head with a token of Kubernetes", f"{_HEAD_POD}.automountServiceAccountToken", True, "is not false"),
    Mistake(
        "the autoscaler's token in the hands of jobs",
        f"{_HEAD_POD}.containers.0.volumeMounts.+",
        {"name": "autoscaler-token", "mountPath": "/token"},
        "which only the autoscaler needs",
    ),
    Mistake(
        "an autoscaler without its token",
        "spec.rayClusterSpec.autoscalerOptions.volumeMounts.2",
        GONE,
        "its token belongs to",
    ),
    Mistake(
        "a token of Kubernetes in a wrong place",
        "spec.rayClusterSpec.autoscalerOptions.volumeMounts.2.mountPath",
        "/var/run/secrets",
        "its token belongs to",
    ),
    Mistake(
        "certificates that are nowhere",
        f"{_HEAD_POD}.volumes.7.projected.sources.1.configMap.name",
        "kube-root-ca",
        "which is nowhere",
    ),
    Mistake(
        "a token of Kubernetes that nobody needs",
        f"{_HEAD_POD}.volumes.+",
        {"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}},
        "for nobody",
        folder="overlays/kueue",
    ),
    Mistake("an image that changes", f"{_WORKER}.image", "registry.example.com/dray:latest", "no tag that stays"),
    Mistake(
        "an image without a tag",
        f"{_HEAD_POD}.containers.0.image",
        "registry.example.com:5000/dray",
        "no tag that stays",
    ),
    Mistake(
        "a secret in plain text", f"{_WORKER}.env.+", {"name": "HF_TOKEN", "value": "hf_x"}, "a secret in plain text"
    ),
    Mistake("a volume without a limit", f"{_WORKER_POD}.volumes.0.emptyDir", {}, "without sizeLimit"),
    Mistake(
        "an object store larger than its memory",
        f"{_WORKERS}.rayStartParams.object-store-memory",
        "9000000000",
        "fit into /dev/shm",
    ),
    Mistake(
        "a memory volume that eats the memory", f"{_WORKER_POD}.volumes.2.emptyDir.sizeLimit", "48Gi", "more than half"
    ),
    Mistake("GPUs without toleration", f"{_WORKER_POD}.tolerations", GONE, "does not tolerate"),
    Mistake("GPUs of any kind", f"{_WORKER_POD}.nodeSelector", GONE, "does not say which"),
    Mistake("an image by its branch", f"{_WORKER}.image", "registry.example.com/dray:main", "no tag that stays"),
    Mistake("an image by half a version", f"{_WORKER}.image", "registry.example.com/dray:0.1", "no tag that stays"),
    Mistake("a worker that is not drained", f"{_WORKER}.lifecycle", GONE, "no preStop"),
    Mistake(
        "a drain longer than the pod's grace",
        f"{_WORKER_POD}.terminationGracePeriodSeconds",
        30,
        "as long as the pod has",
    ),
    Mistake(
        "a script that is not there",
        f"{_WORKER}.lifecycle.preStop.exec.command.1",
        "/opt/dray/k8s/stop.sh",
        "not in the repository",
    ),
    Mistake("no namespace", "metadata.namespace", GONE, "has no namespace"),
    Mistake(
        "a budget that no controller backs", "spec.maxUnavailable", 0, "minAvailable as a number", "PodDisruptionBudget"
    ),
    Mistake(
        "a budget over all heads",
        "spec.selector.matchLabels.app~kubernetes~io/instance",
        GONE,
        "more than this cluster's head",
        "PodDisruptionBudget",
    ),
    Mistake(
        "a budget over no head",
        "spec.selector.matchLabels.app~kubernetes~io/instance",
        "x",
        "does not select",
        "PodDisruptionBudget",
    ),
    Mistake(
        "a budget for heads that answer no more",
        "spec.unhealthyPodEvictionPolicy",
        GONE,
        "not healthy on its node",
        "PodDisruptionBudget",
    ),
    _network("open to everybody", "spec.ingress", [{"ports": [{"port": 8000}]}], "open to everybody"),
    _network("open to any pod", "spec.ingress", [{"from": [{"podSelector": {}}]}], "open to any pod"),
    _network(
        "open to the world", "spec.ingress", [{"from": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]}], "open to addresses"
    ),
    _network(
        "Ray's own port open to others",
        "spec.ingress",
        [{"from": [{"podSelector": {"matchLabels": {"app": "x"}}}], "ports": [{"port": 6379}]}],
        "opens ports of Ray",
    ),
    _network(
        "Ray's own port in a range that is open to others",
        "spec.ingress",
        [{"from": [{"podSelector": {"matchLabels": {"app": "x"}}}], "ports": [{"port": 6000, "endPort": 7000}]}],
        "opens ports of Ray",
    ),
    _network(
        "Ray's own port open to others by its name",
        "spec.ingress",
        [{"from": [{"podSelector": {"matchLabels": {"app": "x"}}}], "ports": [{"port": "gcs"}]}],
        "opens ports of Ray",
    ),
    _network("to any pod of any namespace", "spec.egress", [{"to": [{"namespaceSelector": {}}]}], "out to any pod"),
    _network("to any pod of the namespace", "spec.egress", [{"to": [{"podSelector": {}}]}], "out to any pod"),
    _network("everything may leave", "spec.egress", [{}], "lets everything out"),
    _network(
        "any port of the world",
        "spec.egress",
        [{"to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["169.254.0.0/16"]}}]}],
        "by any port",
    ),
    _network(
        "any port of another namespace",
        "spec.egress",
        [{"to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "redis"}}}]}],
        "by any port",
    ),
    _network(
        "any port of a protocol",
        "spec.egress",
        [{"to": [{"podSelector": {"matchLabels": {"app": "x"}}}], "ports": [{"protocol": "TCP"}]}],
        "by any port",
    ),
    _network(
        "the metadata service open",
        "spec.egress",
        [{"to": [{"ipBlock": {"cidr": "0.0.0.0/0"}}], "ports": [{"port": 80}]}],
        "the metadata service",
    ),
    _network(
        "the metadata service open by IPv6",
        "spec.egress",
        [{"to": [{"ipBlock": {"cidr": "::/0", "except": ["fe80::/10"]}}], "ports": [{"port": 80}]}],
        "the metadata service",
    ),
)
