"""What is wrong with a head's folder is said in one line: what it is, what was got, what to do."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from decoding.heads.format.folder import is_head, read_head, read_head_config, save_head
from tests.decoding.heads.made_up import D, H, V, head, head_config, say, with_tensors, write_folder
from tests.decoding.heads.test_spellings import BLOCKS, EAGLE
from tests.decoding.tiny import build, llama_config, save


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """A folder with an eagle3 head that is read, until a test changes it."""
    save_head(head("eagle3"), str(tmp_path / "head"), "speculators")
    return str(tmp_path / "head")


def _refused(folder: str) -> str:
    """Return the one line by which a folder is refused, which names it."""
    with pytest.raises(ValueError, match="head") as refused:
        read_head(folder)
    message = str(refused.value)
    assert folder in message
    assert "\n" not in message
    return message.replace(repr(folder), "HEAD")


def _change(folder: str, **changes: torch.Tensor | None) -> None:
    file = Path(folder) / "model.safetensors"
    tensors = {**load_file(file), **{name.replace("__", "."): each for name, each in changes.items()}}
    save_file({name: each for name, each in tensors.items() if each is not None}, file)


@pytest.mark.parametrize("kind", ["mtp", "dflash3", "xpress", "eagle", "extract_hidden_states"])
def test_an_unknown_type_is_refused_with_the_known_ones(folder: str, kind: str) -> None:
    say(folder, speculators_model_type=kind)
    assert _refused(folder) == (
        f"HEAD is a head of type {kind!r}, and Dray knows eagle3, peagle, dflash, dflash2, dspark; use one of these, "
        "or a draft model"
    )
    assert is_head(folder)


FOREIGN = {
    "DFlashDraftModel domino": {**BLOCKS, "dflash_config": {"projector_type": "domino"}},
    "MedusaForCausalLM": {**EAGLE, "architectures": ["MedusaForCausalLM"]},
}


@pytest.mark.parametrize("called", FOREIGN)
def test_an_unknown_kind_in_its_authors_format_is_refused_with_the_known_ones(called: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "head", FOREIGN[called], {})
    assert _refused(folder) == (
        f"HEAD is {called}, and Dray knows eagle3, peagle, dflash, dflash2 and dspark in their authors' formats; use "
        "one of these, or a version of it in the speculators format"
    )


def test_an_eagle_head_that_is_no_eagle3_head_is_refused(tmp_path: Path) -> None:
    fields = {**EAGLE, "architectures": ["EagleLlamaForCausalLM"]}
    del fields["draft_vocab_size"]
    assert "is EagleLlamaForCausalLM, which is no EAGLE-3 head" in _refused(write_folder(tmp_path / "head", fields, {}))
    fields = {**EAGLE, "eagle_config": {"use_aux_hidden_state": False}}
    assert "reads the last hidden state of its target alone" in _refused(write_folder(tmp_path / "other", fields, {}))


def test_a_model_of_its_own_is_not_read_as_a_head(tmp_path: Path) -> None:
    save(build(llama_config(), seed=1), tmp_path)
    assert _refused(str(tmp_path)) == "HEAD is not a draft head but a model of its own; name a head"


FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "no layers": ({"transformer_layer_config": None}, "has no transformer_layer_config in its config.json"),
    "both norms": ({"norm_before_fc": True, "fc_norm": True}, "has both norm_before_fc and fc_norm"),
    "a norm that is no flag": ({"norm_output": "yes"}, "has norm_output 'yes' in config.json, expected true or false"),
    "a size that is a text": ({"draft_vocab_size": "64"}, "has draft_vocab_size '64' in config.json, expected a whole"),
    "a size that is a flag": ({"draft_vocab_size": True}, "has draft_vocab_size True in config.json, expected a whole"),
    "too many tokens": ({"draft_vocab_size": V + 1}, f"has draft_vocab_size {V + 1}, expected 1 to the target's {V}"),
    "ids that are texts": (
        {"eagle_aux_hidden_state_layer_ids": [1, "2"]},
        "has eagle_aux_hidden_state_layer_ids [1, '2'] in config.json, expected a list of whole numbers",
    ),
    "ids twice": ({"eagle_aux_hidden_state_layer_ids": [2, 3, 3]}, "has layer ids [2, 3, 3], expected distinct"),
    "no ids": ({"eagle_aux_hidden_state_layer_ids": []}, "has layer ids [], expected distinct"),
    "a negative id": ({"eagle_aux_hidden_state_layer_ids": [-1, 2, 3]}, "has layer ids [-1, 2, 3], expected distinct"),
    "methods that are none": (
        {"speculators_config": {"proposal_methods": [3]}},
        "has proposal_methods that are not a list of objects",
    ),
    "no tokens": (
        {"speculators_config": {"proposal_methods": [{"speculative_tokens": 0}]}},
        "drafts 0 tokens, expected 1 or more",
    ),
    "a mask outside": ({"mask_token_id": V}, f"has mask_token_id {V}, expected an id of the target's {V} tokens"),
}


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_that_is_wrong_is_named_with_what_it_says(folder: str, name: str) -> None:
    changes, message = FIELDS[name]
    say(folder, **changes)
    assert _refused(folder).startswith(f"HEAD {message}")
    with pytest.raises(ValueError, match="head"):
        read_head_config(folder)


LAYERS: dict[str, tuple[dict[str, Any], str]] = {
    "another type": ({"model_type": "gpt2"}, "has layers of type 'gpt2', expected llama or qwen3"),
    "no type": ({"model_type": None}, "has layers of type None, expected llama or qwen3"),
    "no size": ({"hidden_size": None}, "has hidden_size None for its layers, expected a number from 1 on"),
    "a size of none": ({"num_hidden_layers": 0}, "has num_hidden_layers 0 for its layers, expected a number"),
    "kinds that are none": (
        {"layer_types": ["odd"]},
        "has layers that transformers refuses: StrictDataclassClassValidationError: Class",
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_that_cannot_be_are_refused(folder: str, name: str) -> None:
    changes, message = LAYERS[name]
    fields = json.loads((Path(folder) / "config.json").read_text())
    say(folder, transformer_layer_config={**fields["transformer_layer_config"], **changes})
    assert _refused(folder).startswith(f"HEAD {message}")


@pytest.mark.parametrize(
    ("kind", "silent"), [("peagle", "mask_token_id"), ("dflash", "mask_token_id"), ("dspark", "mask_token_id")]
)
def test_a_head_that_drafts_from_masks_needs_the_masks_id(kind: Any, silent: str, tmp_path: Path) -> None:
    save_head(head(kind), str(tmp_path / "head"), "speculators")
    say(str(tmp_path / "head"), **{silent: None})
    assert f"HEAD has no mask_token_id, from which the kind {kind} drafts" in _refused(str(tmp_path / "head"))


def test_a_dflash_head_that_names_no_layers_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "head", {**BLOCKS, "dflash_config": {"mask_token_id": 3}}, {})
    assert _refused(folder).startswith("HEAD has no target_layer_ids, the ids of the layers that it reads; add them")


def test_weights_that_can_run_code_are_refused_with_how_to_convert_them(folder: str) -> None:
    (Path(folder) / "model.safetensors").rename(Path(folder) / "pytorch_model.bin")
    assert _refused(folder) == (
        "no safetensors weights in HEAD (found pytorch_model.bin, which can run code when loaded): convert them: "
        'tensors = torch.load("pytorch_model.bin", weights_only=True), then safetensors.torch.save_file(tensors, '
        '"model.safetensors")'
    )


def test_the_conversion_that_is_advised_gives_the_same_head(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = read_head(folder).tensors
    monkeypatch.chdir(folder)
    torch.save(load_file("model.safetensors"), "pytorch_model.bin")
    Path("model.safetensors").unlink()
    advice = _refused(folder).partition("convert them: ")[2]
    load, write = advice.split(", then ")
    names: dict[str, Any] = {"torch": torch, "safetensors": __import__("safetensors.torch")}
    exec(f"{load}\n{write}", names)
    found = read_head(folder).tensors
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)


def test_an_empty_folder_and_a_file_that_is_not_whole_are_named(folder: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert _refused(str(tmp_path / "empty")) == "no head in HEAD: it has no config.json"
    weights = Path(folder) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    assert "model.safetensors' is cut off or damaged" in _refused(folder)


def test_a_tensor_that_is_not_finite_is_named(folder: str) -> None:
    for value in (float("nan"), float("inf")):
        weight = torch.ones(H)
        weight[3] = value
        _change(folder, norm__weight=weight)
        assert _refused(folder).startswith("HEAD has values in 'norm.weight' that are not finite, as weights are that")


TENSORS: dict[str, tuple[dict[str, torch.Tensor | None], str]] = {
    "unknown": (
        {"input_norm__weight": torch.ones(3 * H)},
        "has a tensor 'input_norm.weight', and by its config.json it is of kind eagle3, which has none",
    ),
    "two unknown": (
        {"a": torch.ones(1), "b": torch.ones(1)},
        "has a tensor 'a' (and 1 more), and by its config.json it is of kind eagle3, which has none",
    ),
    "missing": ({"fc__weight": None}, "lacks the tensor 'fc.weight' of the kind eagle3"),
    "no map of the vocabulary": ({"d2t": None}, "lacks the tensor 'd2t' of the kind eagle3"),
    "shape": (
        {"fc__weight": torch.ones(H, 2 * H)},
        f"has 'fc.weight' of shape [{H}, {2 * H}], expected [{H}, {3 * H}] by its config.json (3 layers read, {D} of",
    ),
    "floats for ids": ({"d2t": torch.zeros(D)}, "has 'd2t' in F32, expected I64 or I32"),
    "bytes for weights": (
        {"norm__weight": torch.ones(H, dtype=torch.int8)},
        "has 'norm.weight' in I8, expected F32 or BF16 or F16",
    ),
    "layer twice": ({"midlayer__mlp__up_proj__weight": torch.ones(48, H)}, "has two tensors for 'layers.0.mlp.up_proj"),
    "ids for offsets": ({"d2t": torch.arange(D) + D + 1}, "maps token 32 of its vocabulary to token 129 of a"),
    "an id twice": (
        {"d2t": -torch.arange(D), "t2d": None},
        f"maps {D} tokens of its vocabulary to token 0 of its target, by d2t",
    ),
    "a negative id": ({"d2t": torch.full((D,), -1)}, "maps token 0 of its vocabulary to token -1 of a target with 128"),
    "marks that differ": (
        {"t2d": torch.arange(V) < D, "d2t": torch.ones(D, dtype=torch.int64)},
        "contradicts itself: has token 0 of its target by t2d and not by d2t (2 such tokens)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_that_are_not_those_of_the_head_are_named(folder: str, name: str) -> None:
    changes, message = TENSORS[name]
    _change(folder, **changes)
    assert _refused(folder).startswith(f"HEAD {message}")


def test_what_cannot_be_read_is_not_written_either(tmp_path: Path) -> None:
    broken = with_tensors(head("eagle3"), norm__weight=torch.full((H,), float("nan")))
    for form in ("speculators", "eagle"):
        with pytest.raises(ValueError, match=f"in the {form} format: the head has values in 'norm.weight' that"):
            save_head(broken, str(tmp_path / "head"), form)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_what_a_format_cannot_say_is_refused(tmp_path: Path) -> None:
    cases = [
        (head("peagle"), "eagle", "is of kind peagle with 2 llama layers, for which there is no format but"),
        (head("eagle3", layers={"num_hidden_layers": 2}), "eagle", "is of kind eagle3 with 2 llama layers, for"),
        (head("eagle3", layer_ids=(0, 2, 4)), "eagle", "reads what enters layer 0, which is the embedding and no"),
        (head("eagle3", target_name=None), "speculators", "does not name its target, and the speculators format does"),
        (head("eagle3", layer_ids_are="unknown"), "speculators", r"does not say whether its layer ids \[1, 4, 10\]"),
        (head("dflash", layer_ids=None), "speculators", "does not name the layers that it reads, and vLLM asks"),
        (head("dflash", layer_ids=None), "eagle", "does not name the layers that it reads, and its format has no"),
    ]
    for one, form, message in cases:
        with pytest.raises(ValueError, match=f"cannot write .* in the {form} format: the head {message}"):
            save_head(one, str(tmp_path / "head"), form)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_layers_that_the_target_does_not_have_are_refused() -> None:
    config = head_config("eagle3", layer_ids=(1, 4, 12))
    assert config.settle_layer_ids(12).layer_ids == (1, 4, 12)
    with pytest.raises(ValueError, match=r"reads layer 12 .as the input of a layer. of a target with 11 layers"):
        config.settle_layer_ids(11)
    with pytest.raises(ValueError, match=r"reads layer 12 .as the output of a layer. of a target with 12 layers"):
        replace(config, layer_ids_are="outputs").settle_layer_ids(12)
