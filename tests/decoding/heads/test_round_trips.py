"""A head that is written and read is the same head, in every kind and both formats."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from decoding.heads.format.folder import Head, is_head, read_head, read_head_config, save_head
from tests.decoding.heads.made_up import KINDS, NORMS, D, H, V, head, same_tensors, say, with_tensors
from tests.decoding.tiny import build, llama_config, save

HEADS = {kind: head(kind) for kind in KINDS}
HEADS |= {f"eagle3, {name}": head("eagle3", **flags) for name, flags in NORMS.items()}
HEADS |= {
    "eagle3 over all tokens": head("eagle3", draft_vocab_size=V),
    "eagle3 of a wider target": head("eagle3", target_hidden_size=2 * H, norm_before_fc=True),
    "eagle3 of qwen3": head("eagle3", layers={"model_type": "qwen3"}),
    "eagle3 with biases": head("eagle3", layers={"attention_bias": True, "mlp_bias": True}),
    "eagle3 with a window": head("eagle3", layers={"layer_types": ["sliding_attention"], "sliding_window": 16}),
    "eagle3 of five layers": head("eagle3", layer_ids=(1, 2, 3, 4, 5)),
    "dflash over some tokens": head("dflash", draft_vocab_size=D, sample_from_anchor=True, num_speculative_tokens=6),
    "dflash with windows": head("dflash", sliding_window_non_causal=True),
    "dspark, gated": head("dspark", markov_head_type="gated"),
    "dspark, recurrent": head("dspark", markov_head_type="rnn", confidence_head_with_markov=False),
    "dspark without its heads": head("dspark", markov_rank=0, enable_confidence_head=False),
}


def _in_bfloat16(one: Head) -> Head:
    tensors = {
        name: each.to(torch.bfloat16) if each.is_floating_point() else each for name, each in one.tensors.items()
    }
    return replace(one, tensors=tensors)


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("is_short", [False, True])
def test_the_speculators_format_keeps_every_field_and_every_bit(name: str, is_short: bool, tmp_path: Path) -> None:
    one = _in_bfloat16(HEADS[name]) if is_short else HEADS[name]
    save_head(one, str(tmp_path / "head"), "speculators")
    back = read_head(str(tmp_path / "head"))
    assert back.config == one.config
    assert back.config.assumed == ()
    assert same_tensors(back.tensors, one.tensors)


@pytest.mark.parametrize("name", [name for name in HEADS if "peagle" not in name])
def test_the_authors_format_keeps_every_bit_and_what_it_can_say(name: str, tmp_path: Path) -> None:
    one = HEADS[name]
    save_head(one, str(tmp_path / "head"), "eagle")
    back = read_head(str(tmp_path / "head"))
    assert same_tensors(back.tensors, one.tensors)
    assert (back.config.layer_ids_as("inputs"), back.config.layer_ids_are) == (one.config.layer_ids, "outputs")
    said = replace(
        one.config,
        format="eagle",
        layer_ids=back.config.layer_ids,
        layer_ids_are="outputs",
        num_speculative_tokens=back.config.num_speculative_tokens,
        target_name=None,
        target_architectures=(),
    )
    assert back.config == said


@pytest.mark.parametrize("name", [name for name in HEADS if "peagle" not in name])
def test_a_head_that_went_through_the_other_format_is_the_same_again(name: str, tmp_path: Path) -> None:
    one = HEADS[name]
    save_head(one, str(tmp_path / "there"), "eagle")
    there = read_head(str(tmp_path / "there"))
    named = replace(there.config, target_name="someone/target", target_architectures=("LlamaForCausalLM",))
    save_head(replace(there, config=named), str(tmp_path / "back"), "speculators")
    save_head(one, str(tmp_path / "direct"), "speculators")
    files = [(tmp_path / each / "model.safetensors").read_bytes() for each in ("back", "direct")]
    assert files[0] == files[1]
    configs = [json.loads((tmp_path / each / "config.json").read_text()) for each in ("back", "direct")]
    assert configs[0] == configs[1]


def test_eagles_file_says_midlayer_and_that_of_speculators_layers(tmp_path: Path) -> None:
    for form in ("eagle", "speculators"):
        save_head(HEADS["eagle3"], str(tmp_path / form), form)
    names = {form: set(load_file(tmp_path / form / "model.safetensors")) for form in ("eagle", "speculators")}
    assert {name.replace("midlayer.", "layers.0.") for name in names["eagle"]} == names["speculators"]
    assert "midlayer.self_attn.q_proj.weight" in names["eagle"]


def test_layer_ids_that_are_the_targets_default_are_left_out_of_eagles_config(tmp_path: Path) -> None:
    for layer_ids, is_said in (((2, 6, 9), False), ((2, 6, 10), True)):
        one = head("eagle3", layer_ids=layer_ids, num_target_layers=12)
        save_head(one, str(tmp_path / str(is_said)), "eagle")
        said = json.loads((tmp_path / str(is_said) / "config.json").read_text())
        assert ("eagle_config" in said) == is_said
        settled = read_head_config(str(tmp_path / str(is_said))).settle_layer_ids(12)
        assert settled.layer_ids_as("inputs") == layer_ids


def test_a_head_in_several_files_is_read(tmp_path: Path) -> None:
    one, folder = HEADS["peagle"], tmp_path / "head"
    save_head(one, str(folder), "speculators")
    (folder / "model.safetensors").unlink()
    names = sorted(one.tensors)
    for number, some in enumerate((names[::2], names[1::2])):
        save_file({name: one.tensors[name] for name in some}, folder / f"part{number}.safetensors")
    index = {name: f"part{number % 2}.safetensors" for number, name in enumerate(names)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    assert same_tensors(read_head(str(folder)).tensors, one.tensors)


def test_the_embedding_may_be_absent_and_the_marks_are_written_again(tmp_path: Path) -> None:
    one = with_tensors(HEADS["eagle3"], embed_tokens__weight=None, t2d=None)
    save_head(one, str(tmp_path / "head"), "eagle")
    back = read_head(str(tmp_path / "head"))
    assert back.tensors.keys() - one.tensors.keys() == {"t2d"}
    assert torch.equal(back.tensors["t2d"], HEADS["eagle3"].tensors["t2d"])


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        assert [each.name[0] for each in tmp_path.iterdir()] == ["."], "what is unfinished has a name of its own"
        raise OSError("no space left on device")

    monkeypatch.setattr("decoding.heads.format.folder.save_file", fail)
    with pytest.raises(OSError, match="no space left"):
        save_head(HEADS["eagle3"], str(tmp_path / "head"), "speculators")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_holds_something_is_never_written_over(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    save_head(HEADS["eagle3"], str(tmp_path / "empty"), "speculators")
    before = (tmp_path / "empty" / "config.json").read_bytes()
    for path in (tmp_path / "empty", tmp_path / "empty" / "config.json"):
        with pytest.raises(ValueError, match="is there already, and it is not an empty folder; name another one"):
            save_head(HEADS["dflash"], str(path), "speculators")
    assert (tmp_path / "empty" / "config.json").read_bytes() == before


@pytest.mark.parametrize("form", ["speculators", "eagle"])
def test_a_head_is_told_from_a_model(form: str, tmp_path: Path) -> None:
    save(build(llama_config(), seed=1), tmp_path / "model")
    assert not is_head(str(tmp_path / "model"))
    for kind in ("eagle3", "dflash", "dspark"):
        save_head(HEADS[kind], str(tmp_path / kind), form)  # type: ignore[arg-type]
        assert is_head(str(tmp_path / kind))


def test_code_in_a_heads_folder_is_not_executed(tmp_path: Path) -> None:
    save_head(HEADS["eagle3"], str(tmp_path / "head"), "speculators")
    say(str(tmp_path / "head"), auto_map={"": "config.Eagle3SpeculatorConfig"})
    (tmp_path / "head" / "config.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\nraise SystemExit")
    assert is_head(str(tmp_path / "head"))
    assert same_tensors(read_head(str(tmp_path / "head")).tensors, HEADS["eagle3"].tensors)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("kind", ["dflash", "dflash2"])
@pytest.mark.parametrize(("form", "other"), [("eagle", "speculators"), ("speculators", "eagle")])
def test_windows_that_the_other_format_gives_to_other_tokens_are_refused_by_it(
    kind, form, other, tmp_path: Path
) -> None:
    one = head(
        kind, layers={"layer_types": ["sliding_attention"] * 2, "sliding_window": 16, "use_sliding_window": True}
    )
    one = replace(one, config=replace(one.config, format=form))
    save_head(one, str(tmp_path / "own"), form)
    with pytest.raises(ValueError, match=r"windows of 16 positions, which .* keep its format"):
        save_head(one, str(tmp_path / "other"), other)
    assert not (tmp_path / "other").exists()
