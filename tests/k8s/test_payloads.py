"""The texts inside manifests are loaded by those who will load them: jobs.generate, Ray, Ray Serve."""

from __future__ import annotations

import importlib
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.runtime_env import RuntimeEnv
from ray.serve import Application
from ray.serve.schema import ServeDeploySchema

from endpoint.gate.gate import environment
from endpoint.http.bodies import Limits
from jobs import generate
from jobs.config.fields import all_fields
from jobs.config.serve import ServeConfig
from tests.jobs.runs import prompts, write_jsonl
from tests.k8s.manifests import (
    CONFIG_HOME,
    OVERLAYS,
    as_here,
    cluster_spec,
    of_kind,
    pod_templates,
    render,
    run_config,
    serve_config,
)

pytestmark = pytest.mark.kubernetes
Pair = tuple[str, str]
JOBS = (
    "overlays/cpu-demo",
    "overlays/job",
    "overlays/job-64",
    "overlays/kueue",
    "overlays/kueue-elastic",
    "overlays/node-disk",
    "overlays/split",
    "overlays/spot",
    "overlays/stages",
)
SERVICES = ("overlays/head-ft", "overlays/service")


@pytest.fixture(autouse=True)
def _as_in_a_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    """KubeRay sets RAY_ADDRESS, by which the commands know that GPUs may be elsewhere. Nothing here connects to it."""
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")


def test_every_overlay_but_the_bare_cluster_is_a_job_or_a_service() -> None:
    kinds = {folder: {each["kind"] for each in render(folder)} for folder in OVERLAYS}
    assert tuple(folder for folder in OVERLAYS if "RayJob" in kinds[folder]) == JOBS
    assert tuple(folder for folder in OVERLAYS if "RayService" in kinds[folder]) == SERVICES


def command(folder: str, home: Path) -> list[str]:
    """The command line of a job, with its ConfigMap's files in `home`."""
    objects = render(folder)
    for name, text in of_kind(objects, "ConfigMap")["data"].items():
        (home / name).write_text(as_here(text, home))
    return shlex.split(as_here(of_kind(objects, "RayJob")["spec"]["entrypoint"], home))


def elsewhere(folder: str, tmp_path: Path, pair: Pair) -> list[str]:
    """Flags that put other places for those which only a cloud has; everything else is as in the manifest."""
    source = write_jsonl(tmp_path / "in.jsonl", prompts(5))
    places = {"input.path": source, "output.path": tmp_path / "out", "models.target": pair[0], "models.draft": pair[1]}
    flags = [f"--{name}={place}" for name, place in places.items()]
    return [*flags, "--stages.count=2"] if folder == "overlays/stages" else flags  # the pair has two layers


@pytest.mark.parametrize("folder", JOBS)
def test_the_command_of_a_job_makes_a_plan(
    folder: str, tmp_path: Path, text_pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    python, dash_m, module, *arguments = command(folder, tmp_path)
    assert (python, dash_m) == ("python", "-m")
    places = (
        elsewhere(folder, tmp_path, text_pair)
        if folder != "overlays/cpu-demo"
        else [f"--output.path={tmp_path / 'out'}"]
    )
    code = importlib.import_module(module).main([*arguments, "--dry-run", *places, "--engine.max_model_len=64"])
    said = capsys.readouterr()
    assert code == 0, said.err
    assert "units:" in said.out


def test_the_demo_generates_the_bundled_prompts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    *_, flag, config = command("overlays/cpu-demo", tmp_path)
    assert generate.main([flag, config, "--dry-run", f"--output.path={tmp_path / 'out'}"]) == 0
    assert "300 rows" in capsys.readouterr().out


def test_variables_that_kubernetes_makes_of_services_would_end_a_job(
    tmp_path: Path, text_pair: Pair, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    *_, flag, config = command("overlays/job", tmp_path)
    monkeypatch.setenv("DRAY_JOB_X7K2P_HEAD_SVC_SERVICE_HOST", "10.0.0.1")
    assert generate.main([flag, config, "--dry-run", *elsewhere("overlays/job", tmp_path, text_pair)]) == 2
    assert "DRAY_JOB_X7K2P_HEAD_SVC_SERVICE_HOST" in capsys.readouterr().err


@pytest.mark.parametrize("folder", JOBS)
def test_the_configuration_is_where_the_command_looks_for_it(folder: str) -> None:
    objects = render(folder)
    for _, template in [each for each in pod_templates(of_kind(objects, "RayJob")) if each[0] != "submitter"]:
        mounts = template["spec"]["containers"][0]["volumeMounts"]
        (name,) = [mount["name"] for mount in mounts if mount["mountPath"] == CONFIG_HOME]
        (volume,) = [volume for volume in template["spec"]["volumes"] if volume["name"] == name]
        assert volume["configMap"]["name"] == of_kind(objects, "ConfigMap")["metadata"]["name"]


@pytest.mark.parametrize("folder", JOBS)
def test_a_job_that_is_stopped_has_time_to_stop(folder: str) -> None:
    spec = of_kind(render(folder), "RayJob")["spec"]
    wait_s = int(RuntimeEnv(**yaml.safe_load(spec["runtimeEnvYAML"]))["env_vars"]["RAY_JOB_STOP_WAIT_TIME_S"])
    run = run_config(folder)["run"]
    head = spec["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    assert run.get("grace_period_s", 120) < wait_s < head["terminationGracePeriodSeconds"]


@pytest.mark.parametrize("folder", SERVICES)
def test_the_configuration_of_serve_builds_the_endpoint(folder: str, text_pair: Pair, tmp_path: Path) -> None:
    (application,) = ServeDeploySchema.model_validate(serve_config(folder), extra="forbid").applications
    assert application.route_prefix == "/"
    module, _, name = application.import_path.partition(":")
    sections: dict[str, Any] = application.args
    sections["models"] |= {"target": text_pair[0], "draft": text_pair[1]}
    sections["engine"] |= {"max_model_len": 64}
    (tmp_path / "keys").write_text("a-key-of-somebody-who-may-ask\n")
    assert sections["serve"]["key_files"] == ["/etc/dray-keys/keys"], "where the pods have them"
    sections["serve"]["key_files"] = [str(tmp_path / "keys")]
    assert isinstance(getattr(importlib.import_module(module), name)(sections), Application)


@pytest.mark.parametrize(
    ("section", "key"), [("serve", "max_replica"), ("engine", "num_slot"), ("models", "targt"), ("sampling", "seed")]
)
def test_a_misspelt_field_of_the_endpoint_is_refused_when_it_is_built(section: str, key: str, text_pair: Pair) -> None:
    build = importlib.import_module("jobs.serve").application
    sections = {"models": {"target": text_pair[0]}}
    sections.setdefault(section, {})[key] = "x"
    with pytest.raises(ValueError, match=section):
        build(sections)


@pytest.mark.parametrize("place", ["", "http_options", "applications.0"])
def test_a_key_that_serve_would_pass_over_is_noticed(place: str) -> None:
    config = inner = serve_config("overlays/service")
    for key in filter(None, place.split(".")):
        inner = inner[int(key)] if isinstance(inner, list) else inner[key]
    inner["max_queued_request"] = 5
    ServeDeploySchema.model_validate(config)  # Serve takes it
    with pytest.raises(ValueError, match="max_queued_request"):
        ServeDeploySchema.model_validate(config, extra="forbid")


@pytest.mark.parametrize("folder", SERVICES)
def test_the_gate_that_jobs_serve_would_put_before_serve_is_there(folder: str) -> None:
    config = serve_config(folder)
    variables = config["controller_options"]["runtime_env"]["env_vars"]
    # Not its limits: a variable DRAY_... reaches the application, too, which refuses it. So they are the gate's own.
    expected = {name: value for name, value in environment(Limits()).items() if not name.startswith("DRAY_")}
    assert variables == expected
    assert not {"max_body_bytes", "body_timeout_s"} & config["applications"][0]["args"]["serve"].keys()


@pytest.mark.parametrize("folder", SERVICES)
def test_requests_have_the_time_they_are_promised(folder: str) -> None:
    spec = of_kind(render(folder), "RayService")["spec"]
    config = yaml.safe_load(spec["serveConfigV2"])
    serve = config["applications"][0]["args"]["serve"]
    assert serve["request_timeout_s"] < config["http_options"]["request_timeout_s"]
    assert serve["request_timeout_s"] <= serve["drain_timeout_s"]
    assert serve["request_timeout_s"] < spec["rayClusterDeletionDelaySeconds"]
    for group in cluster_spec({"kind": "RayService", "spec": spec})["workerGroupSpecs"]:
        pod = group["template"]["spec"]
        drain_s = int(pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][2])
        assert serve["drain_timeout_s"] < drain_s < pod["terminationGracePeriodSeconds"]


def test_the_service_takes_its_keys_from_the_secret_that_it_mounts() -> None:
    serve = serve_config("overlays/service")["applications"][0]["args"]["serve"]
    key_fields = [each.name.removeprefix("serve.") for each in all_fields(ServeConfig) if "key" in each.name]
    named = [name for name in key_fields if "/etc/dray-keys/keys" in str(serve.get(name))]
    assert named or not key_fields, (
        f"jobs.serve takes keys by {key_fields}: overlays/service must name /etc/dray-keys/keys there"
    )


@pytest.mark.parametrize("folder", JOBS)
def test_nothing_is_written_where_it_is_lost(folder: str) -> None:
    output = run_config(folder)["output"]["path"]
    if "://" in output:
        return
    for name, template in pod_templates(of_kind(render(folder), "RayJob")):
        if name != "submitter":
            mounts = {each["name"]: each["mountPath"] for each in template["spec"]["containers"][0]["volumeMounts"]}
            claims = [each["name"] for each in template["spec"]["volumes"] if "persistentVolumeClaim" in each]
            assert any(output.startswith(f"{mounts[claim]}/") for claim in claims if claim in mounts), name
