"""What all tests share: a pair of tiny models with a tokenizer, and one Ray for the whole session."""

import os
from collections.abc import Iterator

import pytest
import ray
import transformers

from tests.text_pair import save_text_pair

os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")
transformers.logging.set_verbosity_error()


@pytest.fixture(scope="session")
def text_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Folders of a target and a draft with a tokenizer."""
    return save_text_pair(tmp_path_factory.mktemp("text_pair"))


@pytest.fixture(scope="session")
def ray_address() -> Iterator[str]:
    """The address of a local Ray with more logical CPUs than the machine may have."""
    context = ray.init(num_cpus=6, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield str(context.address_info["gcs_address"])
    ray.shutdown()
