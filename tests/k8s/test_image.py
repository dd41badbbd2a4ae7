"""The image has no mistake that can be seen without building it."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from k8s.check_image import is_ignored, problems_with, steps_of
from tests.k8s.manifests import FOLDERS, ROOT, Object, pod_templates, render

DOCKERFILE = (ROOT / "k8s" / "Dockerfile").read_text()
IGNORED = (ROOT / ".dockerignore").read_text()


def pods() -> list[tuple[str, Object]]:
    """Return the spec of every pod in k8s/ and the folder that makes it."""
    return [
        (folder, template["spec"])
        for folder in FOLDERS
        for each in render(folder)
        for _, template in pod_templates(each)
    ]


def test_the_image_has_no_problem():
    assert problems_with(DOCKERFILE, IGNORED) == []


@pytest.mark.parametrize(
    ("text", "other", "said"),
    [
        ("ARG PYTHON_IMAGE\n\n", "ARG PYTHON_IMAGE=python:3.11.14-slim\n\n", "a default without a digest"),
        ("FROM python AS runtime", "FROM python:3.11.14-slim AS runtime", "no digest"),
        ("*python:3.11.*@sha256:*) ;;", "*) ;;", "refuses a PYTHON_IMAGE without its digest"),
        ("pip install -c constraints.txt -r", "pip install -r", "does not keep to constraints.txt"),
        (" --no-deps --no-build", " --no-build", "packages are installed after sources"),
        (" --no-build-isolation", "", "a setuptools that constraints.txt does not pin"),
        (
            "FROM packages AS packages-cpu\n",
            "FROM packages AS packages-cpu\nCOPY jobs jobs\n",
            "installed after sources",
        ),
        ("packages-cuda /opt/venv", "packages-cpu /opt/venv", "cuda: no COPY --from=packages-cuda"),
        ("AS cpu\n", "AS small\n", "there is no target cpu"),
        ("USER 1000:1000", "USER ray", "must be a number"),
        ("USER 1000:1000", "USER 0", "must be a number"),
        ("USER 1000:1000", "USER 1000\nRUN true", "stands after USER"),
        (" wget procps", " procps", "wget is not installed"),
        (" wget procps", " wget", "procps is not installed"),
        ("COPY pipeline pipeline\n", "", "the package pipeline is not copied"),
        ("COPY jobs jobs", "COPY job jobs", "no such thing"),
        ("COPY examples", "COPY tests", ".dockerignore leaves it out"),
        ("HEALTHCHECK", "#", "no HEALTHCHECK"),
        ("WORKDIR /opt/dray", "ENV HF_TOKEN=hf_x", "no secret"),
        ("WORKDIR /opt/dray", "RUN wget -O- https://example.com/x | sh", "as it comes"),
        ("COPY examples", "ADD examples", "COPY says what it does"),
    ],
)
def test_a_mistake_in_the_dockerfile_is_noticed(text, other, said):
    assert text in DOCKERFILE
    problems = problems_with(DOCKERFILE.replace(text, other), IGNORED)
    assert any(said in problem for problem in problems), problems


@pytest.mark.parametrize(
    "path", [".git", ".venv/bin/python", "out/demo", "tests/conftest.py", "k8s/overlays/job/run.yaml", ".env"]
)
def test_private_and_large_files_are_not_sent_to_the_builder(path):
    assert is_ignored(path, IGNORED)
    assert any("would be sent" in problem for problem in problems_with(DOCKERFILE, IGNORED.replace("\n*\n", "\n")))


@pytest.mark.kubernetes
def test_the_image_has_every_path_that_pods_name():
    copied = {step.arguments.split()[-1].rstrip("/") for step in steps_of(DOCKERFILE) if step.name == "COPY"}
    for path in {path for folder in FOLDERS for path in re.findall(r"/opt/dray/[\w/.-]+", repr(render(folder)))}:
        assert (ROOT / Path(path).relative_to("/opt/dray")).exists(), path
        assert any(path == place or path.startswith(f"{place}/") for place in copied), path


@pytest.mark.kubernetes
def test_every_image_is_the_project_at_its_version_and_only_workers_with_a_gpu_bring_cuda():
    (version,) = re.findall(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    for folder, pod in pods():
        is_on_gpu = "nvidia.com/gpu.product" in pod.get("nodeSelector", {})
        for container in [*pod["containers"], *pod.get("initContainers", [])]:
            home = "" if folder == "overlays/cpu-demo" else "registry.example.com/"
            name = "dray" if is_on_gpu or not home else "dray-head"
            assert container["image"] == f"{home}{name}:{version}-{'cuda' if is_on_gpu else 'cpu'}"


def test_the_program_installs_beside_its_packages_by_the_commands_of_the_dockerfile(tmp_path):
    commands = [step.arguments for step in steps_of(DOCKERFILE) if step.name == "RUN"]
    (listing,) = [each for each in commands if "tomllib" in each]
    subprocess.run(listing.replace("/build/", f"{tmp_path}/"), shell=True, cwd=ROOT, check=True)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (tmp_path / "requirements.txt").read_text().splitlines() == project["dependencies"]
    sources = tmp_path / "sources"
    for step in steps_of(DOCKERFILE):
        if step.stage == "program" and step.name == "COPY":
            *names, target = step.arguments.split()
            for name in names:
                into = sources / target / (name if target == "./" else "")
                copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
                into.parent.mkdir(parents=True, exist_ok=True)
                copy(ROOT / name, into)
    (install,) = [each for each in commands if "--target" in each]
    words = shlex.split(install.replace("/opt/dray/site", str(tmp_path / "site")))
    words[words.index("constraints.txt")] = str(ROOT / "constraints.txt")
    done = subprocess.run([sys.executable, "-m", *words], cwd=sources, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    asked = "import jobs.generate, endpoint.gate.gate; print(jobs.generate.__file__)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    found = subprocess.run([sys.executable, "-c", asked], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert found.stdout.strip() == str(tmp_path / "site" / "jobs" / "generate.py"), found.stderr


@pytest.mark.kubernetes
def test_pods_run_as_the_user_of_the_image():
    (user,) = [step.arguments for step in steps_of(DOCKERFILE) if step.name == "USER"]
    for _, pod in pods():
        context = pod["securityContext"]
        assert f"{context['runAsUser']}:{context['runAsGroup']}" == user
