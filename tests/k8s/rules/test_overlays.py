"""Everything that `kubectl apply -k` would send is what Kubernetes, KubeRay and a platform team would take."""

import re
import shutil
import subprocess
from itertools import combinations
from pathlib import Path
from textwrap import dedent

import pytest
import yaml

from tests.k8s.manifests import (
    FOLDERS,
    K8S,
    OVERLAYS,
    cluster_spec,
    ground,
    load_objects,
    name_of,
    of_kind,
    render,
    run_config,
)
from tests.k8s.rules import schemas
from tests.k8s.rules.lint import problems_with

pytestmark = pytest.mark.kubernetes
SERVICES = {f"overlays/{name}" for name in ("head-ft", "head-ft-embedded", "service", "service-incremental")}


@pytest.mark.parametrize("folder", FOLDERS)
def test_what_is_rendered_has_no_problem(folder):
    assert problems_with(render(folder), ground(folder)) == []


@pytest.mark.parametrize("folder", OVERLAYS)
def test_an_overlay_makes_one_ray_object_and_no_part_of_the_ground(folder):
    objects = render(folder)
    assert sum(schemas.is_kuberay(each) for each in objects) == 1
    assert not {name_of(each) for each in objects} & {name_of(each) for each in ground()}


def test_overlays_can_stand_side_by_side():
    names = {folder: {name_of(each) for each in render(folder)} for folder in OVERLAYS}
    for one, other in combinations(OVERLAYS, 2):
        if not {one, other} <= SERVICES:  # one service, in one way or another
            assert not names[one] & names[other], f"{one} and {other} would overwrite each other"


def test_without_kuberays_definitions_the_error_says_how_to_get_them(monkeypatch):
    monkeypatch.delenv(schemas.VARIABLE, raising=False)
    with pytest.raises(FileNotFoundError, match="helm pull kuberay-operator"):
        schemas.crd_folder()


def test_the_readme_names_every_folder_and_no_other():
    readme = (K8S / "README.md").read_text()
    rows = set(re.findall(r"^\| `((?:base|overlays)/[a-z0-9-]+)` \|", readme, re.MULTILINE))
    there = {str(path.parent.relative_to(K8S)) for path in K8S.glob("*/*/kustomization.yaml")}
    assert rows == there == {*FOLDERS, "base/raycluster"}
    for folder in re.findall(r"-k k8s/([a-z0-9/-]+)", readme):
        assert folder in there


def shown(name: str, folder: Path, corpus: str = "corpus-1") -> str:
    """Return what `kubectl kustomize` makes of an overlay that the README shows, written into a folder."""
    text = (K8S / "README.md").read_text()
    (block,) = re.findall(rf"```yaml\n *# {name}/kustomization.yaml\n(.*?)```", text, re.DOTALL)
    overlay = folder / name
    overlay.mkdir(parents=True)
    (overlay / "kustomization.yaml").write_text(dedent(block).replace("corpus-1", corpus))
    (folder / "k8s").symlink_to(K8S)
    shutil.copy(K8S / "overlays" / "job" / "run.yaml", overlay)
    config = of_kind(render("overlays/service"), "RayService")["spec"]["serveConfigV2"]
    patch = [{"op": "replace", "path": "/spec/serveConfigV2", "value": config.replace("qwen3-8b", "my-model")}]
    (overlay / "serve.yaml").write_text(yaml.safe_dump(patch))
    done = subprocess.run(["kubectl", "kustomize", str(overlay)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("my-corpus", ["s3://my-bucket", "nvidia.com/gpu.product: NVIDIA-A100-SXM4-80GB"]),
        ("my-models", ["YOUR-SHARED-STORAGE"]),
        ("my-endpoint", ["my-model", "nvidia.com/gpu.product: NVIDIA-A100-SXM4-80GB"]),
        ("my-ground", ["- 10.0.0.0/8", "- 172.16.0.0/12", "- 169.254.0.0/16"]),
    ],
)
def test_an_overlay_that_the_readme_shows_can_be_applied(name, own, tmp_path):
    text = shown(name, tmp_path)
    assert problems_with(load_objects(text), ground()) == []
    images = set(re.findall(r"image: (\S+)", text))
    assert all(each.startswith("YOUR.REGISTRY/dray:") for each in images), images
    assert all(each in text for each in own)


def test_the_readme_waits_for_the_endpoint_as_long_as_kuberay_does():
    service = of_kind(render("overlays/service"), "RayService")["metadata"]
    patience = service["annotations"]["ray.io/initializing-timeout"]
    command = f"wait --for=condition=Ready --timeout={patience} rayservice/{service['name']}\n"
    assert command in (K8S / "README.md").read_text()


def test_the_readme_waits_for_clusters_to_end_before_it_deletes_what_they_need():
    (block,) = re.findall(r"## Taking it away\n\n```sh\n(.*?)```", (K8S / "README.md").read_text(), re.DOTALL)
    before, waits, after = block.partition("kubectl -n dray wait --for=delete raycluster --all")
    assert waits
    assert not re.search(r"my-models|base/namespace|kuberay-operator", before)
    assert not re.search(r"delete -k (my-corpus|my-endpoint|k8s/overlays)", after)


def test_two_corpora_at_once_share_no_name_and_no_budget(tmp_path):
    one, other = (load_objects(shown("my-corpus", tmp_path / corpus, corpus)) for corpus in ("corpus-1", "corpus-2"))
    assert not {name_of(each) for each in one} & {name_of(each) for each in other}
    budgets = [of_kind(each, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"] for each in (one, other)]
    specs = [cluster_spec(of_kind(each, "RayJob")) for each in (one, other)]
    heads = [spec["headGroupSpec"]["template"]["metadata"]["labels"] for spec in specs]
    for number, budget in enumerate(budgets):
        labels = [{**head, "ray.io/node-type": "head"} for head in heads]
        assert [budget.items() <= each.items() for each in labels] == [number == 0, number == 1]


def blocks_of_commands() -> list[str]:
    return [dedent(each) for each in re.findall(r"```sh\n(.*?)```", (K8S / "README.md").read_text(), re.DOTALL)]


def test_all_commands_of_the_readme_are_for_the_root_of_the_repository():
    made = r"(my-\w+|keys|kuberay-operator)(/|$)"  # by the reader, or by an earlier command
    for block in blocks_of_commands():
        assert not re.search(r"\.\./|\bcd ", block), block
        for path in re.findall(
            r"(?<![\w.:/@=-])(?:\./)?([\w-]+/[\w./-]+|keys)\b", re.sub(r"#.*|https?:\S+|\$\S+", "", block)
        ):
            is_image = path.startswith(
                ("kuberay/", "rayjob/", "job/", "svc/", "deployment/", "raycluster/", "rayservice/", "daemonset/")
            )
            assert is_image or re.match(made, path) or (K8S.parent / path).exists(), f"{path} in {block}"


def test_the_operator_waits_longer_for_a_head_than_by_default_and_as_long_as_the_documents_say():
    values = yaml.safe_load((K8S / "kuberay-values.yaml").read_text())
    (variable,) = values["env"]
    assert variable["name"] == "RAYJOB_STATUS_CHECK_TIMEOUT_SECONDS"
    assert int(variable["value"]) > 300
    for text in ((K8S / "README.md").read_text(), (K8S.parent / "docs" / "operations.md").read_text()):
        assert f"{variable['value']} in `k8s/kuberay-values.yaml`" in text
    installs = [line for block in blocks_of_commands() for line in block.splitlines() if "helm install" in line]
    assert installs
    assert all("--values k8s/kuberay-values.yaml" in line for line in installs)


def test_weights_on_a_node_are_those_of_the_run():
    job = of_kind(render("overlays/node-disk"), "RayJob")
    (container,) = cluster_spec(job)["workerGroupSpecs"][0]["template"]["spec"]["initContainers"]
    assert set(container["args"]) == {run_config("overlays/node-disk")["models"][name] for name in ("target", "draft")}
