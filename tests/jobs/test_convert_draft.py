"""`jobs.convert_draft` writes a head in the other format, prints what it decided, and refuses what does not fit."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from decoding.heads.format.folder import read_head, save_head
from jobs import convert_draft
from tests.decoding.heads.made_up import H, V, head, same_tensors, write_folder
from tests.decoding.heads.test_spellings import EAGLE
from tests.decoding.tiny import llama_config

NUM_LAYERS = 12


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal in which no cell of a table is broken into lines."""
    monkeypatch.setenv("COLUMNS", "400")


@pytest.fixture
def target(tmp_path: Path) -> str:
    """A folder with the configuration of a target of 12 layers, without weights: they are not read."""
    llama_config(V, hidden_size=H, num_hidden_layers=NUM_LAYERS, architectures=["LlamaForCausalLM"]).save_pretrained(
        tmp_path / "target"
    )
    return str(tmp_path / "target")


@pytest.fixture
def source(tmp_path: Path) -> str:
    """A folder with an eagle3 head as its authors publish it, which names no layers."""
    save_head(head("eagle3", layer_ids=(2, 6, 9), num_target_layers=NUM_LAYERS), str(tmp_path / "source"), "eagle")
    return str(tmp_path / "source")


def _converted(source: str, target: str, form: str, *options: str) -> tuple[int, Path]:
    output = Path(target).parent / f"out-{form}"
    return convert_draft.main([source, str(output), "--target", target, "--format", form, *options]), output


def _printed(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Return the rows of the table that was printed; the last of each name."""
    lines = [line.strip("│ ").split("│") for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    return {name.strip(): value.strip() for name, value in lines}


def test_eagles_head_becomes_one_of_speculators_and_says_what_was_assumed(source, target, capsys):
    code, output = _converted(source, target, "speculators")
    assert code == 0
    rows = _printed(capsys)
    assert rows["kind"] == "eagle3, drafting 3 tokens"
    assert rows["format"] == "eagle -> speculators"
    assert rows["layers"] == "1 of llama, hidden size 32"
    assert rows["vocabulary"] == "64 of the target's 128 tokens"
    assert rows["layer ids"] == "2, 6, 9 (what enters these layers)"
    assert rows["norms"] == "none of the optional ones"
    assert rows["default taken"] == "layer ids: [2, 6, 9] as inputs, the default for a target with 12 layers"
    ours = read_head(str(output))
    assert same_tensors(ours.tensors, read_head(source).tensors)
    assert (ours.config.target_name, ours.config.target_architectures) == (target, ("LlamaForCausalLM",))
    assert (ours.config.layer_ids, ours.config.layer_ids_are, ours.config.assumed) == ((2, 6, 9), "inputs", ())


def test_a_head_of_speculators_becomes_eagles_with_ids_as_outputs(target, tmp_path, capsys):
    save_head(head("eagle3", fc_norm=True, norm_output=True), str(tmp_path / "source"), "speculators")
    code, output = _converted(str(tmp_path / "source"), target, "eagle")
    assert code == 0
    rows = _printed(capsys)
    assert rows["layer ids"] == "0, 3, 9 (what leaves these layers)"
    assert rows["norms"] == "fc_norm, norm_output"
    assert "midlayer.hidden_norm.weight" in load_file(output / "model.safetensors")
    assert json.loads((output / "config.json").read_text())["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [
        0,
        3,
        9,
    ]


@pytest.mark.parametrize(("said", "inputs"), [("inputs", (1, 5, 8)), ("outputs", (2, 6, 9))])
@pytest.mark.parametrize("are_given", [True, False])
def test_ids_mean_what_the_options_say(said, inputs, are_given, target):
    ids: dict[str, Any] = {} if are_given else {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 5, 8]}}
    names = load_file_of_eagle(head("eagle3").tensors)
    source = write_folder(Path(target).parent / "source", {**EAGLE, **ids}, names)
    options = ["--layer-ids", "1", "5", "8"] if are_given else []
    code, output = _converted(source, target, "speculators", *options, "--layer-ids-are", said)
    assert code == 0
    assert read_head(str(output)).config.layer_ids == inputs


def load_file_of_eagle(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors under the names that EAGLE gives them."""
    return {name.replace("layers.0.", "midlayer."): each for name, each in tensors.items()}


def test_a_head_with_a_dflash_block_says_its_block(target, tmp_path, capsys):
    save_head(head("dflash"), str(tmp_path / "source"), "speculators")
    assert _converted(str(tmp_path / "source"), target, "eagle")[0] == 0
    rows = _printed(capsys)
    assert rows["block"] == "6 tokens, mask token 5"
    assert (rows["embedding"], rows["output layer"]) == ("the target's", "the target's")


def test_what_the_folder_does_not_say_must_be_said(source, target, capsys):
    fields = {**EAGLE, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 5, 8]}}
    (Path(source) / "config.json").write_text(json.dumps(fields))
    code, output = _converted(source, target, "speculators")
    assert code == 2
    assert "does not say whether its layer ids [1, 5, 8] are those of layers whose input" in capsys.readouterr().err
    assert not output.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--layer-ids", "1", "2", "3"], "--layer-ids is given without --layer-ids-are; say inputs or outputs"),
        (["--layer-ids-are", "inputs"], "names no ids; give --layer-ids, too"),
        (["--layer-ids", "1", "2", "13", "--layer-ids-are", "inputs"], "the head reads layer 13 (as the input of a"),
        (["--layer-ids", "1", "2", "12", "--layer-ids-are", "outputs"], "the head reads layer 12 (as the output of a"),
        (["--layer-ids", "1", "1", "2", "--layer-ids-are", "inputs"], "has layer ids [1, 1, 2], expected distinct"),
        (["--layer-ids", "1", "2", "--layer-ids-are", "inputs"], "has 'fc.weight' of shape [32, 96], expected [32"),
    ],
)  # fmt: skip
def test_ids_that_cannot_be_are_refused(source, target, options, message, capsys):
    code, output = _converted(source, target, "speculators", *options)
    assert code == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert message in said
    assert said.count("\n") == 1
    assert not output.exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": V + 1}, f"the head is for a target with {V} tokens, and"),
        ({"hidden_size": 2 * H}, f"the head is for a target with {H} values in a hidden state, and"),
        ({"num_hidden_layers": 6}, "does not name the layers that it reads, and their default for a target with 6"),
    ],
)
def test_a_target_that_is_not_the_heads_is_refused(source, target, changes, message, capsys):
    file = Path(target) / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    assert _converted(source, target, "speculators")[0] == 2
    assert message in capsys.readouterr().err


def test_an_output_that_is_there_and_a_source_that_is_not_are_refused(source, target, tmp_path, capsys):
    assert convert_draft.main([source, target, "--target", target, "--format", "eagle"]) == 1
    assert "is there already, and it is not an empty folder; name another one" in capsys.readouterr().err
    assert (
        convert_draft.main([str(tmp_path / "none"), str(tmp_path / "out"), "--target", target, "--format", "eagle"])
        == 2
    )
    assert "it is not a folder, and not a hub name" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
