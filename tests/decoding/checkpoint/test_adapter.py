"""A LoRA adapter runs as the model that PEFT makes of it and its base; one that cannot be merged is refused by name."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from decoding import Engine, SamplingParams
from decoding.checkpoint import adapter as adapters
from decoding.checkpoint.supported import load_config, model_folder
from decoding.engine.options import EngineOptions
from tests.adapted import keep_merged_models_in, save_adapter
from tests.decoding.tiny import build, llama_config, random_prompts, save

peft = pytest.importorskip("peft")
PLAIN = EngineOptions(num_slots=2, max_model_len=64, drafter="none")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of merged models, empty."""
    keep_merged_models_in(tmp_path / "cache", monkeypatch)
    return tmp_path / "cache" / "dray" / "merged"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """The folder of a model."""
    (tmp_path / "base").mkdir()
    save(build(llama_config(), seed=1), tmp_path / "base")
    return tmp_path / "base"


@pytest.fixture
def adapter(base: Path, tmp_path: Path) -> Path:
    """The folder of an adapter of that model which changes its texts."""
    return Path(save_adapter(base, tmp_path / "adapter", seed=2))


def _say(adapter: Path, **fields: object) -> None:
    config = json.loads((adapter / adapters.CONFIG).read_text())
    (adapter / adapters.CONFIG).write_text(json.dumps(config | fields))


def _change(adapter: Path, change: object) -> None:
    save_file(change(load_file(adapter / adapters.WEIGHTS)), adapter / adapters.WEIGHTS)  # type: ignore[operator]


def test_an_adapter_writes_what_the_model_of_peft_writes(base, adapter):
    network = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), str(adapter)).eval()
    (prompt,) = random_prompts([7])
    expected = network.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=24)[0, 7:].tolist()
    greedy = SamplingParams(temperature=0, max_tokens=24)
    engine = Engine.load(str(adapter), None, PLAIN, device="cpu")
    (found,) = engine.generate([prompt], greedy)
    (of_base,) = Engine.load(str(base), None, PLAIN, device="cpu").generate([prompt], greedy)
    assert found.output_token_ids == expected
    assert found.output_token_ids != of_base.output_token_ids


def test_a_merged_model_is_pefts_own_merge_and_is_made_once_for_each_content(base, adapter, cache):
    folder = Path(model_folder(str(adapter)))
    assert list(cache.iterdir()) == [folder]
    network = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), str(adapter))
    expected = network.merge_and_unload().state_dict()
    found = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)
    made = (folder / "model.safetensors").stat().st_mtime_ns
    assert model_folder(str(adapter)) == str(folder)
    assert (folder / "model.safetensors").stat().st_mtime_ns == made
    assert load_config(str(folder)).model_type == "llama"
    _change(adapter, lambda tensors: {name: 2 * each for name, each in tensors.items()})
    assert model_folder(str(adapter)) != str(folder)


def test_an_adapters_own_tokenizer_comes_before_its_bases(base, adapter):
    (base / "tokenizer_config.json").write_text("{}")
    (base / "chat_template.jinja").write_text("of the base")
    (adapter / "chat_template.jinja").write_text("of the adapter")
    folder = Path(model_folder(str(adapter)))
    assert (folder / "chat_template.jinja").read_text() == "of the adapter"
    assert (folder / "tokenizer_config.json").read_text() == "{}"


def test_an_adapter_of_a_merged_model_is_merged_into_that(base, adapter, tmp_path):
    """An adapter may name another adapter as its base."""
    second = Path(shutil.copytree(adapter, tmp_path / "second"))
    _say(second, base_model_name_or_path=str(adapter))
    once, twice = (AutoModelForCausalLM.from_pretrained(model_folder(str(each))) for each in (adapter, second))
    start = AutoModelForCausalLM.from_pretrained(base).model.layers[0].self_attn.q_proj.weight
    first, both = (each.model.layers[0].self_attn.q_proj.weight for each in (once, twice))
    torch.testing.assert_close(both - start, 2 * (first - start), atol=1e-5, rtol=1e-4)


def _first(tensors: dict[str, torch.Tensor]) -> str:
    return min(tensors)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda a: _say(a, peft_type="IA3"), "holds a PEFT adapter of type 'IA3', and only LORA is merged here"),
        (lambda a: _say(a, base_model_name_or_path=None), "names no base model: write the base's folder or hub name"),
        (lambda a: _say(a, base_model_name_or_path="/none"), "needs its base model, which adapter_config.json calls"),
        (lambda a: _say(a, base_model_name_or_path=str(a)), "names itself as its base model"),
        (lambda a: (a / adapters.WEIGHTS).rename(a / "x.bin"), "holds an adapter without adapter_model.safetensors"),
        (lambda a: (a / adapters.WEIGHTS).write_bytes(b"cut"), "cannot be merged"),
        (lambda a: (a / adapters.CONFIG).write_text("{"), "adapter_config.json"),
        (lambda a: _say(a, target_modules=["q_proj"]), "tensors for which the base has no place, first"),
        (lambda a: _say(a, target_modules=["q_proj", "down_proj", "up_proj"]), "adapter_model.safetensors lacks"),
        (lambda a: _say(a, target_modules=["nothing"]), "cannot be merged"),
        (lambda a: _say(a, r=8), "fits the base; is it the adapter of another model?"),
        (lambda a: _change(a, lambda t: {**t, _first(t): t[_first(t)] / 0}), "cannot be merged"),
    ],
)
def test_an_adapter_that_cannot_be_merged_is_refused_in_one_line_and_leaves_nothing(adapter, cache, spoil, why):
    spoil(adapter)
    with pytest.raises(ValueError, match=str(adapter)) as refused:
        model_folder(str(adapter))
    assert why in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not cache.exists() or not list(cache.iterdir())


@pytest.mark.parametrize("broken", ["base", "adapter"])
def test_a_base_without_weights_and_a_link_to_nothing_in_either_folder_are_named(base, adapter, broken):
    file = {"base": base, "adapter": adapter}[broken] / "tokenizer_config.json"
    file.symlink_to("../blobs/0a1b")
    with pytest.raises(ValueError, match=f"'{file}' is a link to nothing"):
        model_folder(str(adapter))
    file.unlink()
    (base / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"no safetensors weights in .*base"):
        model_folder(str(adapter))
