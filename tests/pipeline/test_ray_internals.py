"""The private names of Ray that `pipeline/ray_internals.py` uses exist, and no other file uses any."""

import ast
import inspect
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import ray

from pipeline.ray_internals import SERVE_CONTROLLER, SERVE_NAMESPACE

ROOT = Path(__file__).parents[2]
HOME = Path("pipeline/ray_internals.py")
DATA, SERVE = "ray.data._internal.execution", "ray.serve._private"
# A class or function of Ray, and the attribute or parameter of it that is used.
USED = [
    ("ray.actor", "ActorHandle", "_actor_id"),
    ("ray._private.state", "actors", "actor_id"),
    ("ray._private.state", "GlobalState", "get_draining_nodes"),
    ("ray.data", "DataContext", "custom_execution_callback_classes"),
    (f"{DATA}.execution_callback", "ExecutionCallback", "on_execution_step"),
    (f"{DATA}.streaming_executor", "StreamingExecutor", "_topology"),
    (f"{DATA}.operators.map_operator", "MapOperator", "_output_blocks_stats"),
    (f"{SERVE}.controller", "ServeController", "get_proxies"),
    (f"{SERVE}.controller", "ServeController", "get_serve_instance_details"),
    (f"{SERVE}.proxy", "ProxyActor", "_get_http_options"),
    (f"{SERVE}.haproxy", "HAProxyManager", "_get_http_options"),
    ("ray.actor", "ActorHandle", "_ray_actor_creation_function_descriptor"),
    ("ray.serve", "delete", "_blocking"),
    ("ray._common.tls_utils", "add_port_to_grpc_server", "address"),
    (f"{SERVE}.replica", "Replica", "add_port_to_grpc_server"),
    ("ray.serve.deployment", "Deployment", "_version"),
]
CONSTANTS = [("SERVE_CONTROLLER_NAME", SERVE_CONTROLLER), ("SERVE_NAMESPACE", SERVE_NAMESPACE)]
ATTRIBUTES = {"_actor_id", "_topology", "_output_blocks_stats", "_get_http_options", "_blocking"}
ATTRIBUTES |= {"_ray_actor_creation_function_descriptor"}


def names_in(found: Any) -> set[str]:
    """Return a function's parameters, or a class's names and the names that its methods use."""
    if inspect.isfunction(found):
        return set(inspect.signature(found).parameters)
    found = found.__ray_metadata__.modified_class if hasattr(found, "__ray_metadata__") else found
    methods = filter(inspect.isfunction, vars(found).values())
    return set(dir(found)).union(*(method.__code__.co_names for method in methods))


@pytest.mark.parametrize(("module", "owner", "name"), USED, ids=[f"{owner}.{name}" for _, owner, name in USED])
def test_this_version_of_ray_has_the_private_name(module, owner, name):
    try:
        names = names_in(getattr(import_module(module), owner))
    except (ImportError, AttributeError) as error:
        pytest.fail(f"Ray {ray.__version__} has no {module}.{owner} ({error}): change {HOME}")
    assert name in names, f"Ray {ray.__version__} has no {name} in {module}.{owner}: change {HOME}"


@pytest.mark.parametrize(("name", "value"), CONSTANTS)
def test_this_version_of_serve_calls_its_controller_by_this_name(name, value):
    found = getattr(import_module(f"{SERVE}.constants"), name, None)
    assert found == value, f"in Ray {ray.__version__}, {name} is {found!r}: change {HOME}"


def private_names(source: str) -> set[str]:
    """Return the private names of Ray in a Python file."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith("ray.") and "._" in alias.name}
        elif isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("ray."):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {name for name in names if "._" in name}
        elif isinstance(node, ast.Attribute):
            is_private = node.attr.startswith("_") and not node.attr.startswith("__")
            is_of_ray = ast.unparse(node.value).split(".")[0] == "ray"
            found |= {node.attr} if (is_private and is_of_ray) or node.attr in ATTRIBUTES else set()
        elif isinstance(node, ast.keyword) and node.arg in ATTRIBUTES:
            found.add(node.arg)
        elif isinstance(node, ast.Constant) and node.value in ATTRIBUTES:
            found.add(node.value)
    return found


def test_no_other_file_uses_a_private_name_of_ray():
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = [Path(name) for name in listed.splitlines() if not name.startswith("tests/") and Path(name) != HOME]
    found = {str(file): names for file in files if (names := private_names((ROOT / file).read_text()))}
    assert not found, f"private names of Ray belong into {HOME}"
    assert private_names((ROOT / HOME).read_text()) >= ATTRIBUTES, "the search finds the names that are used"
