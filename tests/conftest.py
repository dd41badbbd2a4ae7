"""Fixtures of all tests: a pair of tiny models with a tokenizer, one Ray for the whole session, and a run on it."""

import os
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from importlib.util import find_spec
from io import StringIO
from pathlib import Path

import pytest
import transformers

from tests.pipeline.stores import CREDENTIALS
from tests.text_pair import save_text_pair

# Where there is no Ray, such as on a machine with a GPU and torch alone, the tests of what needs it are not collected.
_NEED_RAY = [
    "actors",
    "dray",
    "endpoint",
    "examples/test_cookbook.py",
    "faults",
    "jobs",
    "k8s",
    "network",
    "pipeline",
    "real",
    "training",
    "vllm",
]
_NEED_RAY += ["test_checks.py", "test_readme.py"]
_NEED_RAY += ["benchmarks/test_scale.py", "benchmarks/test_serving.py"]
collect_ignore = [] if find_spec("ray") else _NEED_RAY

os.environ["DRAY_KEEP_WEIGHTS"] = "off"  # the user's cache is none of ours; tests of kept weights have their own
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")
pytest_plugins = ["tests.failures"]
transformers.logging.set_verbosity_error()


def pytest_report_header() -> list[str]:
    return [f"Ray is not installed, so these are not collected: {', '.join(collect_ignore)}"] if collect_ignore else []


@pytest.fixture(scope="session")
def text_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Folders of a target and a draft with a tokenizer."""
    return save_text_pair(tmp_path_factory.mktemp("text_pair"))


@pytest.fixture(scope="session")
def ray_address() -> Iterator[str]:
    """The address of a local Ray with more logical CPUs than the machine may have."""
    import ray  # here, so that tests that need no Ray can be collected and run where it is not installed

    with pytest.MonkeyPatch.context() as patch:  # Ray's processes inherit what opens the stores of tests
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        context = ray.init(num_cpus=6, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield str(context.address_info["gcs_address"])
    ray.shutdown()


@pytest.fixture(scope="session")
def plain_run(tmp_path_factory: pytest.TempPathFactory, text_pair: tuple[str, str]) -> Path:
    """A folder with in.jsonl (30 good rows and one that cannot be read), the run out/, finished without Ray, and the
    output of its driver in out.txt and err.txt. Tests only read it; a test that changes a run copies it first."""
    from jobs import generate  # imported here, because it takes seconds that most tests need not spend
    from tests.jobs.runs import arguments, prompts, write_jsonl

    folder = tmp_path_factory.mktemp("finished")
    source = write_jsonl(folder / "in.jsonl", [*prompts(30), "{not json"])
    command = arguments(source, folder / "out", text_pair, "--engine.draft_length=fixed", "--run.local")
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        exit_code = generate.main(command)
    (folder / "out.txt").write_text(out.getvalue())
    (folder / "err.txt").write_text(err.getvalue())
    assert exit_code == 0, err.getvalue()
    return folder
