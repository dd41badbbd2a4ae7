"""engine.backend: what a configuration may ask of each engine, and what a run may say of its texts."""

from dataclasses import replace
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import pytest

from actors.engines import backend_of
from actors.engines.backend import exactness_found
from actors.placement import StageSettings
from actors.settings import EngineSettings, GeneratorSettings, ModelSettings
from jobs.config.loading import load
from jobs.config.run import RunConfig
from jobs.generate import main
from tests.jobs.runs import arguments, prompts, write_jsonl

MODELS = ModelSettings(target="unused", device="cpu", dtype="float32")


def settings(models: ModelSettings = MODELS, **engine: Any) -> GeneratorSettings:
    return GeneratorSettings(models=models, engine=EngineSettings(**engine))


def test_a_run_is_refused_in_one_line_where_vllm_is_not_installed(tmp_path, text_pair, capsys):
    if find_spec("vllm") is not None:
        pytest.skip("vLLM is installed here")
    source = write_jsonl(tmp_path / "prompts.jsonl", prompts(2))
    assert main(arguments(source, tmp_path / "out", text_pair, "--engine.backend=vllm", "--engine.drafter=none")) == 2
    error = capsys.readouterr().err.strip()
    assert error.count("\n") == 0
    assert error.startswith("error: engine.backend is 'vllm', but vLLM is not installed in this environment; install")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--engine.verification=coupled"], "engine.verification is 'coupled', for Dray's own engine: vLLM verifies"),
        (["--engine.draft_length=adaptive"], "engine.draft_length is 'adaptive', for Dray's own engine: vLLM drafts"),
        (["--engine.max_prefill_tokens=64"], "vLLM's is engine.vllm.max_num_batched_tokens"),
        (["--engine.drafter=hybrid"], "engine.drafter 'hybrid' is for Dray's own engine; vLLM has"),
        (["--placement=split", "--engine.drafter=model"], "placement 'split' are for Dray's own engine"),
        (["--stages.count=2"], "stages.count and stages.tensor_parallel are for Dray's own engine"),
    ],
)
def test_what_only_drays_engine_has_is_refused_by_name_with_vllm(options, said):
    given = ["--input.path=x", "--output.path=y", "--models.target=t", "--models.draft=d", "--engine.backend=vllm"]
    with pytest.raises(ValueError, match="engine") as raised:
        load(RunConfig, [*given, *options], "test")
    assert said in str(raised.value)


def test_what_vllm_does_anyway_may_be_said():
    given = ["--input.path=x", "--output.path=y", "--models.target=t", "--engine.backend=vllm"]
    config = load(RunConfig, [*given, "--engine.verification=rejection", "--engine.draft_length=fixed"], "test")
    assert not backend_of(config.generator).is_repeatable


def test_vllms_own_arguments_are_refused_with_drays_engine():
    with pytest.raises(ValueError, match=r"engine\.vllm is .*, which only engine\.backend 'vllm' reads"):
        backend_of(settings(vllm={"enforce_eager": True})).check()
    with pytest.raises(ValueError, match=r"engine\.backend must be 'dray' or 'vllm', got 'sglang'"):
        backend_of(settings(backend="sglang"))
    with pytest.raises(ValueError, match=r"stages\.count"):
        backend_of(replace(settings(backend="vllm"), stages=StageSettings(count=2))).check()


def test_only_what_was_proved_is_called_proved():
    def said(models: ModelSettings = MODELS, **engine: Any) -> str:
        return backend_of(settings(models, **engine)).exactness

    assert said() == "proved"
    assert said(verification="rejection") == "no"
    assert said(replace(MODELS, dtype="bfloat16")) == "no"
    assert said(backend="vllm") == "no"
    switch = {"VLLM_BATCH_INVARIANT": "1"}
    assert said(backend="vllm", vllm_env=switch) == "no", "it does nothing on a processor"
    assert said(replace(MODELS, device="cuda"), backend="vllm", vllm_env=switch) == "batch-invariant"


def test_what_the_engines_found_out_when_they_loaded_counts_where_nothing_is_proved():
    invariant, other = {"is_batch_invariant": True}, {"is_batch_invariant": False}
    assert exactness_found("no", "coupled", [invariant, invariant]) == "batch-invariant"
    assert exactness_found("no", "coupled", [invariant, other]) == "no"
    kinds = [{**invariant, "kernels": kind} for kind in ("avx2", "avx512-bf16", "amx-bf16", "amx-bf16-emulated")]
    for one, another in pairwise(kinds):
        assert exactness_found("no", "coupled", [one, one]) == "batch-invariant"
        assert exactness_found("no", "coupled", [one, another]) == "no"
    assert exactness_found("no", "coupled", []) == "no"
    assert exactness_found("no", "rejection", [invariant]) == "no"
    assert exactness_found("proved", "coupled", [other]) == "proved"


def test_the_gpus_of_an_actor_are_those_that_vllm_takes():
    def check_gpus(num_gpus: float, **vllm: Any) -> None:
        models = replace(MODELS, device="cuda")
        backend_of(settings(models, backend="vllm", vllm=vllm)).check_gpus("actors", num_gpus)

    check_gpus(1)
    check_gpus(4, tensor_parallel_size=4)
    check_gpus(0.5, gpu_memory_utilization=0.4)
    with pytest.raises(ValueError, match=r"vLLM runs 4 processes .* set actors\.num_gpus to 4"):
        check_gpus(1, tensor_parallel_size=4)
    with pytest.raises(ValueError, match="more of the GPU's memory than its share"):
        check_gpus(0.5)
