"""The texts inside manifests are loaded by those who will load them: jobs.generate, Ray, Ray Serve."""

import importlib
import shlex
from pathlib import Path
from typing import Any

import pytest
from ray.serve import Application
from ray.serve.schema import ServeDeploySchema

from endpoint.gate.gate import environment
from endpoint.http.bodies import Limits
from jobs import generate
from tests.jobs.runs import prompts, write_jsonl
from tests.k8s.manifests import (
    OVERLAYS,
    as_here,
    command_of,
    made,
    of_kind,
    render,
    serve_config,
)

pytestmark = pytest.mark.kubernetes
Pair = tuple[str, str]
JOBS = (
    "overlays/cpu-demo",
    "overlays/history",
    "overlays/job",
    "overlays/job-64",
    "overlays/kueue",
    "overlays/kueue-elastic",
    "overlays/node-disk",
    "overlays/split",
    "overlays/spot",
    "overlays/stages",
    "overlays/watchdog",
)
SERVICES = ("overlays/head-ft", "overlays/head-ft-embedded", "overlays/service", "overlays/service-incremental")


@pytest.fixture(autouse=True)
def _as_in_a_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    """KubeRay sets RAY_ADDRESS, by which the commands know that GPUs may be elsewhere. Nothing here connects to it."""
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")


def test_every_overlay_but_the_bare_cluster_is_a_job_or_a_service():
    kinds = {folder: {each["kind"] for each in made(render(folder))} for folder in OVERLAYS}
    assert tuple(folder for folder in OVERLAYS if "RayJob" in kinds[folder]) == JOBS
    assert tuple(folder for folder in OVERLAYS if "RayService" in kinds[folder]) == SERVICES


def command(folder: str, home: Path) -> list[str]:
    """The command line of a job, with its ConfigMap's files in `home`."""
    objects = made(render(folder))
    for name, text in of_kind(objects, "ConfigMap")["data"].items():
        (home / name).write_text(as_here(text, home))
    return shlex.split(as_here(command_of(of_kind(objects, "RayJob")), home))


def elsewhere(folder: str, tmp_path: Path, pair: Pair) -> list[str]:
    """Flags that put other places for those which only a cloud has; everything else is as in the manifest."""
    source = write_jsonl(tmp_path / "in.jsonl", prompts(5))
    places = {"input.path": source, "output.path": tmp_path / "out", "models.target": pair[0], "models.draft": pair[1]}
    flags = [f"--{name}={place}" for name, place in places.items()]
    return [*flags, "--stages.count=2"] if folder == "overlays/stages" else flags  # the pair has two layers


@pytest.mark.parametrize("folder", JOBS)
def test_the_command_of_a_job_makes_a_plan(folder, tmp_path, text_pair, capsys):
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


def test_variables_that_kubernetes_makes_of_services_would_end_a_job(tmp_path, text_pair, monkeypatch, capsys):
    *_, flag, config = command("overlays/job", tmp_path)
    monkeypatch.setenv("DRAY_JOB_X7K2P_HEAD_SVC_SERVICE_HOST", "10.0.0.1")
    assert generate.main([flag, config, "--dry-run", *elsewhere("overlays/job", tmp_path, text_pair)]) == 2
    assert "DRAY_JOB_X7K2P_HEAD_SVC_SERVICE_HOST" in capsys.readouterr().err


@pytest.mark.parametrize("folder", SERVICES)
def test_the_configuration_of_serve_builds_the_endpoint(folder, text_pair, tmp_path):
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


@pytest.mark.parametrize("folder", SERVICES)
def test_the_gate_that_jobs_serve_would_put_before_serve_is_there(folder):
    config = serve_config(folder)
    variables = config["controller_options"]["runtime_env"]["env_vars"]
    # Not its limits: a variable DRAY_... reaches the application, too, which refuses it. So they are the gate's own.
    expected = {name: value for name, value in environment(Limits()).items() if not name.startswith("DRAY_")}
    assert variables == expected
    assert not {"max_body_bytes", "body_timeout_s"} & config["applications"][0]["args"]["serve"].keys()
