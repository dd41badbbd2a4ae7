"""Commands over a GGUF file: the plan says what was dequantized, the run keeps it, and a bad file ends a command."""

import json
from pathlib import Path

import pytest
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from decoding.checkpoint import model_files
from jobs import generate
from jobs.config.loading import load
from jobs.config.run import RunConfig
from jobs.driver.plan import create_run, make_plan
from jobs.report_page.page import write_page
from tests.gguf_files import QuantizationType, save_gguf
from tests.jobs.runs import arguments, prompts, write_jsonl


@pytest.fixture
def command(tmp_path: Path, text_pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The flags of a run whose target and draft are GGUF files."""
    monkeypatch.setattr(model_files, "HF_HOME", str(tmp_path / "cache"))
    tokenizer = PreTrainedTokenizerFast.from_pretrained(text_pair[0])
    kinds = {"target": QuantizationType.Q8_0, "draft": QuantizationType.F16}
    target, draft = (
        save_gguf(LlamaForCausalLM.from_pretrained(folder), tokenizer, tmp_path / f"{name}.gguf", kind)
        for folder, (name, kind) in zip(text_pair, kinds.items(), strict=True)
    )
    write_jsonl(tmp_path / "in.jsonl", prompts(6))
    return arguments(tmp_path / "in.jsonl", tmp_path / "out", (target, draft))


def test_the_plan_and_the_page_say_what_was_dequantized_and_the_run_keeps_the_digest_of_its_file(
    command, tmp_path, capsys
):
    assert generate.main([*command, "--dry-run"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "float32, weights of F32 and Q8_0 as they are)" in printed
    assert "dequantized from F16 and F32 to float32" in printed
    write_page(create_run(make_plan(load(RunConfig, command, prog="test"))))
    made_of = json.loads((tmp_path / "out" / "run.json").read_text())["identity"]["target_gguf"]
    assert (made_of["quantization"], len(made_of["sha256"])) == ("F32 and Q8_0", 64)
    assert "weights of F32 and Q8_0" in (tmp_path / "out" / "report.html").read_text()


def test_a_file_that_is_cut_off_ends_a_command_with_one_line_before_ray_starts(command, tmp_path, capsys):
    file = tmp_path / "target.gguf"
    file.write_bytes(file.read_bytes()[:-100])
    assert generate.main(command) == 2
    out, err = capsys.readouterr()
    said = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(said) == 1
    assert "target.gguf' (" in said[0]
    assert "is cut off or damaged" in said[0]
    assert "starting Ray" not in out + err
    assert not (tmp_path / "out").exists()
