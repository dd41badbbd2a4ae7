"""The texts inside a manifest: the command, the configuration of a run or of Serve, and the runtime environment."""

import importlib.util
import re
import shlex
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from ray.serve.schema import ServeDeploySchema

from endpoint.deployment import APP_NAME, REPLICA_NAME
from endpoint.gate.gate import INGRESS_NAME
from endpoint.service.served_model import deployment_name
from jobs.config.loading import load
from jobs.config.run import RunConfig
from jobs.config.serve import ServeConfig
from tests.k8s.manifests import IMAGE_HOME, ROOT, Object, cluster_spec, command_of, groups, pod_templates
from tests.k8s.rules import known
from tests.k8s.rules.pods import mount_at, variables_in

_SECTIONS = {"input", "output", "models", "actors"}  # of a run's configuration
_SERVED_BY = {"import_path": "jobs.serve:application", "name": APP_NAME, "route_prefix": "/"}


def config_of(ray: Object, config_maps: dict[str, Object]) -> Any:
    """Return the configuration of a RayJob's run or of a RayService's application; None if there is no whole one."""
    texts = [text for each in config_maps.values() for text in each.get("data", {}).values()]
    try:
        if ray["kind"] == "RayService":
            config = yaml.safe_load(ray["spec"]["serveConfigV2"])["applications"][0]["args"]
            return config if isinstance(config["serve"]["max_replicas"], int) and config["models"] else None
        config = yaml.safe_load(texts[0]) if ray["kind"] == "RayJob" and texts else None
    except (yaml.YAMLError, KeyError, TypeError):  # reported elsewhere
        return None
    return config if isinstance(config, dict) and config.keys() >= _SECTIONS else None


def problems_with_configuration(name: str, text: str) -> Iterator[str]:
    """Yield what is wrong with a configuration of a run, as a ConfigMap has it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_text(text)
        try:
            load(RunConfig, ["--config", str(path)], "lint")
        except ValueError as error:
            yield f"{name}: {error}"
    for inside in re.findall(rf"{IMAGE_HOME}/([^\s,\]}}\"']+)", text):
        if not (ROOT / inside).exists():
            yield f"{name}: the image has no {IMAGE_HOME}/{inside}"


def problems_with_output(job: Object, config: Any) -> Iterator[str]:
    """Yield what is wrong with where a run writes: on a pod's own disk it would be lost."""
    if config is None:
        yield "its ConfigMap has no configuration with input, output, models and actors"
        return
    path = config["output"]["path"]
    for name, template in pod_templates(job) if "://" not in path else ():
        claims = {each["name"] for each in template["spec"].get("volumes", []) if "persistentVolumeClaim" in each}
        mount = mount_at(template["spec"]["containers"][0], path)
        if name != "submitter" and (mount is None or mount["name"] not in claims or mount.get("readOnly")):
            yield f"{name}: what is written to {path} is lost with the pod"


def problems_with_job(job: Object, config_maps: dict[str, Object]) -> Iterator[str]:
    """Yield what is wrong with the texts of a RayJob: its command and its runtime environment."""
    spec = job["spec"]
    try:
        environment = yaml.safe_load(spec.get("runtimeEnvYAML", "{}"))
    except yaml.YAMLError as error:
        yield f"runtimeEnvYAML: it is no YAML: {error}"
        return
    if not isinstance(environment, dict):
        yield "runtimeEnvYAML: it is no mapping"
        return
    variables = environment.get("env_vars", {})
    yield from variables_in([{"name": name, "value": value} for name, value in variables.items()])
    yield from _time_to_stop(job, variables, config_maps)
    if re.search(r"[;&|<>$`]", spec["entrypoint"]):
        yield f"entrypoint: the submitter's shell would take a part of it as its own: {spec['entrypoint']}"
    python, dash_m, module, *arguments = [*shlex.split(command_of(job)), "", "", ""]
    if (python, dash_m) != ("python", "-m") or not module or importlib.util.find_spec(module) is None:
        yield f"entrypoint: no command of ours: {spec['entrypoint']}"
    flags = dict(pairwise(arguments))
    if (path := flags.get("--config")) is None:
        yield "entrypoint: it names no --config"
        return
    for name, template in pod_templates(job):
        container, volumes = template["spec"]["containers"][0], template["spec"].get("volumes", [])
        if name == "submitter":
            continue
        mount = mount_at(container, path)
        names = {each["name"]: each.get("configMap", {}).get("name") for each in volumes}
        held = config_maps.get(names.get(mount["name"], "") if mount else "", {}).get("data", {})
        if mount is None or Path(path).name not in held:
            yield f"{name}: no ConfigMap is mounted that has {path}"


def problems_with_service(service: Object) -> Iterator[str]:
    """Yield what is wrong with the configuration of Serve in a RayService."""
    try:
        config: Any = yaml.safe_load(service["spec"]["serveConfigV2"])
        ServeDeploySchema.model_validate(config, extra="forbid")
    except (yaml.YAMLError, ValueError) as error:
        yield f"serveConfigV2: {error}"
        return
    http = config.get("http_options", {})
    if http.get("port", 8000) != known.PORTS["serve"]:
        asked = known.PORTS["serve"]
        yield f"serveConfigV2: Serve listens on port {http.get('port')}, and Services and probes ask {asked}"
    if http.get("host") != "0.0.0.0":
        yield f"serveConfigV2: Serve listens at {http.get('host')}, where no other pod reaches it"
    if config.get("proxy_location", "EveryNode") != "EveryNode":
        place = config["proxy_location"]
        yield f"serveConfigV2: with proxy_location {place} workers, which the Service leads to, do not answer"
    controller = config.get("controller_options", {}).get("runtime_env", {}).get("env_vars", {})
    yield from variables_in([{"name": name, "value": value} for name, value in controller.items()])
    for application in config["applications"]:
        for key, value in _SERVED_BY.items():
            if application.get(key) != value:
                yield f"serveConfigV2: {key} is {value!r}, not {application.get(key)!r}"
        adapters = (application.get("args", {}).get("serve") or {}).get("adapters") or {}
        engines = {deployment_name(REPLICA_NAME, adapter) for adapter in (None, *adapters)}
        for deployment in application.get("deployments", []):
            if deployment["name"] not in {INGRESS_NAME, *engines}:
                yield f"serveConfigV2: the application has no deployment {deployment['name']!r}"
        yield from _application(application.get("args", {}), config, service)


def _application(arguments: Any, config: Any, service: Object) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "serve.yaml"
        path.write_text(yaml.safe_dump(arguments))
        try:
            load(ServeConfig, ["--config", str(path)], "lint")
        except ValueError as error:
            yield f"serveConfigV2: {error}"
            return
    serve = arguments.get("serve", {})
    if serve.get("open") or not serve.get("key_files"):
        yield "serveConfigV2: without serve.key_files everyone who reaches the port is answered"
    for name, group in groups(service):
        spec = group["template"]["spec"]
        secrets = {each["name"]: each.get("secret", {}).get("secretName", "") for each in spec.get("volumes", [])}
        for key_file in serve.get("key_files", []):
            mount = mount_at(spec["containers"][0], key_file)
            secret = secrets.get(mount["name"], "") if mount else ""
            if Path(key_file).name not in (known.SECRETS.get(secret) or ()):
                yield f"{name}: no Secret is mounted that has {key_file}"
        if name != "head":
            yield from _time_to_end(name, spec, serve)
    ends = {"request_timeout_s": config.get("http_options", {}).get("request_timeout_s", 0)}
    ends["rayClusterDeletionDelaySeconds"] = service["spec"].get("rayClusterDeletionDelaySeconds", 60)
    for what, seconds in ends.items():
        if serve.get("request_timeout_s", 600) >= seconds:
            yield f"{what}: {seconds} s are over before serve.request_timeout_s, {serve.get('request_timeout_s', 600)}"


def _time_to_end(name: str, spec: Object, serve: Any) -> Iterator[str]:
    """A worker that goes drains until its last request has ended."""
    command = spec["containers"][0].get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", [])
    seconds, needed = int(command[2]) if command[2:3] and command[2].isdigit() else 0, serve.get("drain_timeout_s", 60)
    if seconds <= needed:
        yield f"{name}: preStop takes {seconds} s at most, and an engine may drain for {needed}"


def _time_to_stop(job: Object, variables: dict[str, str], config_maps: dict[str, Object]) -> Iterator[str]:
    """A job that is stopped has run.grace_period_s, then Ray ends it, then Kubernetes the head's pod."""
    given = str(variables.get("RAY_JOB_STOP_WAIT_TIME_S", "3"))
    wait_s = float(given) if given.isdigit() else 0.0
    pod_s = cluster_spec(job)["headGroupSpec"]["template"]["spec"].get("terminationGracePeriodSeconds", 30)
    texts = [text for each in config_maps.values() for text in each.get("data", {}).values()]
    graces = [float(each) for text in texts for each in re.findall(r"^ *grace_period_s: *([\d.]+)", text, re.MULTILINE)]
    run_s = max(graces, default=120.0)
    if not run_s < wait_s < pod_s:
        yield f"a stopped run gets {run_s:g} s, Ray waits {wait_s:g} and its pod {pod_s}: each must be longer"
