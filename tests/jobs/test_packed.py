"""Commands over packed checkpoints: the plan says what runs, a run has its weights' digest, and bad words end it."""

from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from decoding.fused import kernels
from jobs import generate
from jobs.config.loading import load
from jobs.config.run import RunConfig
from jobs.driver.plan import create_run, make_plan
from tests.decoding.codes.packed_folders import KINDS, save_packed
from tests.decoding.fp8.checkpoints import say
from tests.jobs.runs import arguments, prompts, write_jsonl


@pytest.fixture
def command(tmp_path: Path, text_pair: tuple[str, str]) -> list[str]:
    """The flags of a run whose target and draft are packed."""
    names = {"target": "AWQ", "draft": "GPTQ in act order"}
    for path, (name, kind) in zip(text_pair, names.items(), strict=True):
        save_packed(LlamaForCausalLM.from_pretrained(path), tmp_path / name, KINDS[kind])
        PreTrainedTokenizerFast.from_pretrained(path).save_pretrained(tmp_path / name)
    write_jsonl(tmp_path / "in.jsonl", prompts(6))
    return arguments(tmp_path / "in.jsonl", tmp_path / "out", (str(tmp_path / "target"), str(tmp_path / "draft")))


def test_the_plan_says_what_runs_and_a_run_ends_where_one_code_of_its_target_has_changed(command, tmp_path, capsys):
    if kernels.load_linear(torch.float32) is None:
        pytest.skip("no compiler here, or no AVX2")
    assert generate.main([*command, "--dry-run"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "float32, weights of 4 bits (awq) as they are)" in printed
    assert "dequantized from 4 bits (gptq) to float32" in printed
    create_run(make_plan(load(RunConfig, command, prog="test")))
    file = tmp_path / "target" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match="target"):
        make_plan(load(RunConfig, command, prog="test"))


def test_a_word_that_is_not_known_ends_a_dry_run_with_one_line(command, tmp_path, capsys):
    say(tmp_path / "target", quantization_config=KINDS["AWQ"].config | {"version": "gemv"})
    assert generate.main([*command, "--dry-run"]) == 2
    out, err = capsys.readouterr()
    said = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(said) == 1
    assert "is quantized (awq)" in said[0]
    assert "version is 'gemv'" in said[0]
    assert "starting Ray" not in out + err
    assert not (tmp_path / "out").exists()
