"""The models that overlays and examples name fit, with their slots, into the GPUs that they ask for."""

from typing import Any

import pytest
import yaml
from transformers import PretrainedConfig, Qwen3Config

from decoding.cache.footprint import GIB, Footprint
from decoding.checkpoint.loading import footprint_of
from k8s.sizing import GPU_GIB, SHARE, describe, main, num_slots, table
from tests.decoding.families import STATES, family_config
from tests.decoding.fp8 import checkpoints
from tests.k8s.manifests import K8S, ROOT, groups, ray_objects, render, run_config, serve_config
from tests.k8s.rules.known import GPU_KIND


def qwen3(width: int, layers: int, heads: int, *, tied: bool, inner: int | None = None) -> PretrainedConfig:
    """Return a model as its config.json on the hub describes it; `inner` is three times the width if not given."""
    sizes = {"hidden_size": width, "intermediate_size": inner or 3 * width, "num_hidden_layers": layers}
    heads_and_words = {"num_attention_heads": heads, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936}
    return Qwen3Config(**sizes, **heads_and_words, tie_word_embeddings=tied)


MODELS = {"Qwen/Qwen3-8B": qwen3(4096, 36, 32, tied=False), "Qwen/Qwen3-0.6B": qwen3(1024, 28, 16, tied=True)}
LARGE_MODELS = {"Qwen/Qwen3-32B": qwen3(5120, 64, 64, tied=False, inner=25600)}
FOLDERS = [f"overlays/{each}" for each in ("job", "job-64", "spot", "kueue", "kueue-elastic", "node-disk", "service")]
LARGE, SMALL = (GPU_GIB[name] * GIB for name in ("H100, A100 (80 GB)", "L4, A10G (24 GB)"))
KINDS = {"NVIDIA-H100-80GB-HBM3": LARGE, "NVIDIA-L4": SMALL}  # as GPU feature discovery says, in bytes
PAIR = [MODELS["Qwen/Qwen3-8B"], MODELS["Qwen/Qwen3-0.6B"]]


def config_of(folder: str) -> dict[str, Any]:
    if folder.endswith(".yaml"):
        return dict(yaml.safe_load((ROOT / folder).read_text()))
    return serve_config(folder)["applications"][0]["args"] if folder == "overlays/service" else run_config(folder)


def footprints(folder: str) -> tuple[Footprint, Footprint]:
    """Return the footprints of the target and of the draft."""
    config = config_of(folder)
    models, engine = config["models"], config["engine"]
    target, draft = (
        footprint_of(
            (MODELS | LARGE_MODELS)[models[name]], models["dtype"], engine["num_slots"], engine["max_model_len"]
        )
        for name in ("target", "draft")
    )
    return target, draft


def gpus(folder: str) -> dict[str, float]:
    """Return the memory in bytes of the GPU that each worker group asks for."""
    (ray,) = ray_objects(render(folder))
    return {
        name: KINDS[group["template"]["spec"]["nodeSelector"][GPU_KIND]]
        for name, group in groups(ray)
        if name != "head"
    }


@pytest.mark.kubernetes
@pytest.mark.parametrize("folder", FOLDERS)
def test_target_draft_and_slots_fit_into_the_gpu_that_is_asked_for(folder):
    assert sum(each.total for each in footprints(folder)) <= SHARE * min(gpus(folder).values())


def test_the_example_fits_into_the_gpu_that_it_names():
    assert sum(each.total for each in footprints("examples/configs/gpu_cluster.yaml")) <= SHARE * LARGE


@pytest.mark.kubernetes
def test_a_target_and_a_draft_that_are_apart_each_fit_into_their_own_gpu():
    for name, each in zip(("target", "draft"), footprints("overlays/split"), strict=True):
        assert each.total <= SHARE * gpus("overlays/split")[name]


@pytest.mark.kubernetes
def test_each_stage_and_the_draft_beside_them_fit_into_a_gpu():
    target, draft = footprints("overlays/stages")
    count = run_config("overlays/stages")["stages"]["count"]
    layers = LARGE_MODELS["Qwen/Qwen3-32B"].num_hidden_layers
    most = -(-layers // count) / layers  # of the layers; the first stage has the embedding, the last one the head
    ends = 2 * 151936 * 5120 * 2  # bytes of both, which weigh on one stage at most as a whole
    (each_gpu,) = gpus("overlays/stages").values()
    assert most * (target.weights - ends) + ends / 2 + most * target.cache <= SHARE * each_gpu
    assert draft.total <= SHARE * each_gpu


@pytest.mark.kubernetes
def test_the_sizes_of_the_models_are_those_in_the_readme():
    target, draft = footprints("overlays/job")
    assert target.weights / GIB == pytest.approx(15.26, abs=0.01)
    assert draft.weights / GIB == pytest.approx(1.11, abs=0.01)
    assert (target.cache_per_token, draft.cache_per_token) == (147_456, 114_688)


@pytest.mark.parametrize("length", [1024, 4096])
def test_the_computed_number_of_slots_fits_and_one_more_does_not(length):
    most = num_slots(PAIR, "bfloat16", LARGE / GIB, length)
    totals = [sum(footprint_of(model, "bfloat16", slots, length).total for model in PAIR) for slots in (most, most + 1)]
    assert totals[0] <= SHARE * LARGE < totals[1]


def test_the_table_of_the_readme_is_what_the_command_prints(tmp_path, capsys):
    for name, model in MODELS.items():
        model.save_pretrained(tmp_path / name)
    assert main([str(tmp_path / name) for name in MODELS]) == 0
    lines = "\n".join(table(PAIR, "bfloat16")) + "\n"
    assert capsys.readouterr().out.endswith(lines)
    assert lines in (K8S / "README.md").read_text()


def test_the_error_names_a_model_that_is_missing(capsys):
    assert main(["./nothing-here"]) == 2
    assert "nothing-here" in capsys.readouterr().err


def test_fp8_weights_are_counted_as_they_are_and_other_kinds_refused(tmp_path, capsys):
    config = qwen3(4096, 36, 32, tied=False)
    config.quantization_config = checkpoints.KINDS["blocks"]
    config.save_pretrained(tmp_path)
    assert main([str(tmp_path)]) == 0
    # 6.95 billion weights of one byte, embedding and head of two, and a scale of four for each block
    assert ": weights 8.79 GiB, cache of a token 147,456 bytes" in capsys.readouterr().out
    config.quantization_config = {"quant_method": "gptq"}
    config.save_pretrained(tmp_path)
    assert main([str(tmp_path)]) == 2
    assert f"error: '{tmp_path}' is quantized (gptq), and Dray runs" in capsys.readouterr().err


def test_slots_of_a_model_with_states_pay_for_the_states_that_a_draft_keeps():
    config = family_config("gated delta", STATES)
    sizes = [footprint_of(config, "bfloat16", 1, 64, num_drafted) for num_drafted in (0, 8)]
    assert sizes[0].cache < sizes[1].cache
    gpu = (sizes[1].weights + 10.5 * sizes[1].cache) / SHARE / GIB
    assert num_slots([config], "bfloat16", gpu, 64) == 10
    assert describe("Q", sizes[1]).endswith(f"states of a slot {sizes[1].states_per_slot:,} bytes")
    assert "states" not in describe("Q", footprint_of(PAIR[0], "bfloat16", 1, 1))
