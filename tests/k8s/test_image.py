"""The image has no mistake that can be seen without building it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from k8s.check_image import is_ignored, problems_with, steps_of
from tests.k8s.manifests import FOLDERS, ROOT, Object, cluster_spec, pod_templates, ray_objects, render
from tests.k8s.rules.lint import pinned

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


def test_the_image_has_no_problem() -> None:
    assert problems_with(DOCKERFILE, IGNORED) == []


@pytest.mark.parametrize(
    ("text", "other", "said"),
    [
        ("python:3.11.14-slim-bookworm\n", "python:3-slim\n", "no tag with a whole version"),
        ("pip install -c constraints.txt .", "pip install .", "does not keep to constraints.txt"),
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
def test_a_mistake_in_the_dockerfile_is_noticed(text: str, other: str, said: str) -> None:
    assert text in DOCKERFILE
    problems = problems_with(DOCKERFILE.replace(text, other), IGNORED)
    assert any(said in problem for problem in problems), problems


@pytest.mark.parametrize(
    "path", [".git", ".venv/bin/python", "out/demo", "tests/conftest.py", "k8s/overlays/job/run.yaml", ".env"]
)
def test_private_and_large_files_are_not_sent_to_the_builder(path: str) -> None:
    assert is_ignored(path, IGNORED)
    assert any("would be sent" in problem for problem in problems_with(DOCKERFILE, IGNORED.replace("\n*\n", "\n")))


@pytest.mark.kubernetes
def test_the_image_has_every_path_that_pods_name() -> None:
    copied = {step.arguments.split()[-1] for step in steps_of(DOCKERFILE) if step.name == "COPY"}
    for path in {path for folder in FOLDERS for path in re.findall(r"/opt/dray/[\w/.-]+", repr(render(folder)))}:
        assert (ROOT / Path(path).relative_to("/opt/dray")).exists(), path
        assert any(path == place or path.startswith(f"{place}/") for place in copied), path


@pytest.mark.kubernetes
def test_every_image_is_the_project_at_its_version() -> None:
    (version,) = re.findall(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    for folder, pod in pods():
        for container in pod["containers"]:
            device = "cpu" if folder == "overlays/cpu-demo" else "cuda"
            assert container["image"].endswith(f"dray:{version}-{device}")


@pytest.mark.kubernetes
def test_ray_is_one_version_everywhere() -> None:
    for folder in FOLDERS:
        for ray in ray_objects(render(folder)):
            assert cluster_spec(ray)["rayVersion"] == pinned("ray")


@pytest.mark.kubernetes
def test_pods_run_as_the_user_of_the_image() -> None:
    (user,) = [step.arguments for step in steps_of(DOCKERFILE) if step.name == "USER"]
    for _, pod in pods():
        context = pod["securityContext"]
        assert f"{context['runAsUser']}:{context['runAsGroup']}" == user
