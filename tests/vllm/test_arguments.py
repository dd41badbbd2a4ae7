"""What vLLM lacks, and what Dray sets itself, is refused by name before anything is loaded."""

import os
import re
from typing import Any

import pytest

from actors.vllm.arguments import check, machine_variables, prepare_environment, speculative_config, without_drafts
from tests.vllm.conftest import vllm_settings

HEAD = {"method": "eagle3", "model": "heads/one", "num_speculative_tokens": 3}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"vllm": {"gpu_memory_utilisation": 0.5}}, "did you mean gpu_memory_utilization"),
        ({"vllm": {"max_num_seqs": 4}}, "engine.vllm.max_num_seqs is set by Dray; say it by engine.num_slots"),
        (
            {"vllm": {"structured_outputs_config": {"backend": "xgrammar"}}},
            "engine.vllm.structured_outputs_config is set by Dray; say it by sampling.structured",
        ),
        ({"vllm": {"reasoning_parser": "qwen3"}}, "is set by Dray; say it by chat.reasoning"),
        ({"vllm": {"trust_remote_code": True}}, "engine.vllm.trust_remote_code cannot be set: Dray never runs code"),
        ({"vllm": {"lora": "/no/such/folder"}}, "which is not the folder of a LoRA adapter"),
        ({"vllm": {"speculative_config": HEAD}, "drafter": "ngram"}, "drop one of them"),
        (
            {"vllm_env": {"VLLM_NO_SUCH_THING": "1"}},
            "engine.vllm_env sets VLLM_NO_SUCH_THING, which this vLLM does not",
        ),
        ({"vllm_env": {"PATH": "/bin"}}, "only names beginning with VLLM_"),
        ({"vllm_env": {"VLLM_API_KEY": "hush"}}, "a secret would stand in the run's files"),
        ({"vllm_env": {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}}, "vLLM's core runs in the actor's process"),
        ({"drafter": "suffix"}, "vLLM needs the package arctic-inference"),
    ],
)
def test_what_cannot_be_said_to_vllm_is_refused_by_name(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        check(vllm_settings(has_draft=False, **options))


def test_what_the_machine_sets_is_recorded_without_secrets_places_and_what_is_set_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in os.environ if name.startswith("VLLM_")]:
        monkeypatch.delenv(name)
    for name, value in (("VLLM_API_KEY", "hush"), ("VLLM_HOST_IP", "10.0.0.1"), ("VLLM_CPU_KVCACHE_SPACE", "2")):
        monkeypatch.setenv(name, value)
    machine_variables.cache_clear()
    prepare_environment({})
    monkeypatch.setenv("VLLM_DIST_IDENT", "as vLLM does when it is loaded")
    assert machine_variables() == {"VLLM_CPU_KVCACHE_SPACE": "2"}
    machine_variables.cache_clear()


def test_settings_without_drafts_have_no_head_either() -> None:
    settings = vllm_settings(has_draft=False, vllm={"enforce_eager": True, "speculative_config": HEAD})
    assert speculative_config(settings) == HEAD
    assert speculative_config(without_drafts(settings)) is None
    assert without_drafts(settings).engine.vllm == {"enforce_eager": True}
    assert speculative_config(without_drafts(vllm_settings(has_draft=True))) is None
