"""`serve.adapters`: which adapters are refused, and what an endpoint says and remembers of those that it serves."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from actors.engines.loading import LoadedEngine
from endpoint.service.served_model import ServedModel, deployment_name
from jobs import serve
from jobs.config.serve import ServeConfig, load_serve_config
from jobs.work import serving
from tests.adapted import keep_merged_models_in, save_adapter
from tests.text_pair import save_text_pair


@pytest.fixture(scope="module", autouse=True)
def merged(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The cache of merged models."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("merged")
        keep_merged_models_in(folder, patch)
        yield folder


@pytest.fixture(scope="module")
def adapter(text_pair: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of an adapter of the pair's target."""
    return save_adapter(text_pair[0], tmp_path_factory.mktemp("adapter") / "own", 1)


def write(folder: Path, target: str, adapters: Mapping[str, str], **sections: Any) -> list[str]:
    """Write a configuration and return the flags that name it."""
    content = {
        "models": {"target": target, "device": "cpu", **sections.pop("models", {})},
        "serve": {"open": True, "model": "base", "adapters": dict(adapters), **sections.pop("serve", {})},
        **sections,
    }
    path = folder / "serve.yaml"
    path.write_text(yaml.safe_dump(content))
    return ["--config", str(path)]


def load(*arguments: Any, **sections: Any) -> ServeConfig:
    return load_serve_config(write(*arguments, **sections), "serve")


def served(*arguments: Any, **sections: Any) -> list[ServedModel]:
    return serving.settled_models(load(*arguments, **sections))[0]


@pytest.mark.parametrize(
    ("adapters", "sections", "problem"),
    [
        ({"": "OWN"}, {}, "serve.adapters: expected names of 1 to 512 characters, got ''"),
        ({"a" * 513: "OWN"}, {}, "serve.adapters: expected names of 1 to 512 characters"),
        ({"a": ""}, {}, "serve.adapters.a: expected the folder of a LoRA adapter, got ''"),
        ({"base": "OWN"}, {}, "serve.adapters names 'base', which is the name of models.target already"),
        ({"other": "OWN"}, {"serve": {"aliases": ["other"]}}, "names 'other', which is an alias already"),
        (
            {"a": "OWN"},
            {"placement": "split", "models": {"draft": "d"}},
            "serve.adapters and placement 'split' do not go together",
        ),
        ({"a": "OWN"}, {"engine": {"backend": "vllm"}}, "serve.adapters is for Dray's own engine"),
        ({"a": "/nowhere"}, {}, "serve.adapters.a: no model at '/nowhere'"),
        ({"a": "BASE"}, {}, "holds a whole model; expected the folder of a LoRA adapter"),
        ({"a": "EMPTY"}, {}, "holds no adapter_config.json; expected the folder of a LoRA adapter"),
        ({"a": "OWN", "b": "NO_WEIGHTS"}, {}, "holds an adapter without adapter_model.safetensors"),
        ({"a": "OWN", "b": "BASELESS"}, {}, "which adapter_config.json calls '/none'"),
        ({"a": "OWN", "b": "FOREIGN"}, {}, "models.target is"),
    ],
)
def test_an_adapter_that_cannot_be_served_is_refused_before_any_weights_are_merged(
    tmp_path, text_pair, adapter, merged, capsys, adapters, sections, problem
):
    folders = {"OWN": adapter, "BASE": text_pair[0], "EMPTY": str(tmp_path / "empty")}
    (tmp_path / "empty").mkdir()
    for name in ("NO_WEIGHTS", "BASELESS"):
        folders[name] = str(shutil.copytree(adapter, tmp_path / name))
    (tmp_path / "NO_WEIGHTS" / "adapter_model.safetensors").unlink()
    config = tmp_path / "BASELESS" / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"base_model_name_or_path": "/none"}))
    if "b" in adapters and adapters["b"] == "FOREIGN":
        folders["FOREIGN"] = save_adapter(text_pair[1], tmp_path / "foreign", 2)
    named = {name: folders.get(folder, folder) for name, folder in adapters.items()}
    before = sorted(merged.rglob("*"))
    assert serve.main([*write(tmp_path, text_pair[0], named, **sections), "--dry-run"]) == 2
    assert problem in capsys.readouterr().err
    assert sorted(merged.rglob("*")) == before


def test_a_whole_copy_of_the_base_elsewhere_is_the_same_base(tmp_path, text_pair, adapter):
    copy = str(shutil.copytree(text_pair[0], tmp_path / "copy"))
    base, model = served(tmp_path, copy, {"a": adapter})
    assert (base.settings.models.target, model.adapter) == (copy, "a")


def test_each_model_has_its_own_name_target_and_fingerprint(tmp_path, text_pair, adapter, capsys):
    flags = {"models": {"draft": text_pair[1]}, "serve": {"aliases": ["other"]}}
    base, model = served(tmp_path, text_pair[0], {"org/a": adapter}, **flags)
    assert (base.name, base.adapter, base.service.names, base.service.parent) == ("base", None, ("base", "other"), None)
    assert (model.name, model.adapter, model.service.names) == ("org/a", "org/a", ("org/a",))
    assert (model.service.parent, model.target) == ("base", adapter)
    assert base.settings.models.target == text_pair[0]
    assert (Path(model.settings.models.target) / "config.json").is_file()
    assert model.settings == replace(
        base.settings, models=replace(base.settings.models, target=model.settings.models.target)
    )
    assert len({base.fingerprint, model.fingerprint, base.service.fingerprint, model.service.fingerprint}) == 4
    assert serve.main([*write(tmp_path, text_pair[0], {"org/a": adapter}), "--dry-run"]) == 0
    assert f"adapter: 'org/a' from {adapter}" in capsys.readouterr().out


def test_an_unnamed_base_has_the_name_of_its_folder_and_that_name_is_taken(tmp_path, text_pair, adapter):
    name = Path(text_pair[0]).name
    (base, _) = served(tmp_path, text_pair[0], {"a": adapter}, serve={"model": None})
    assert base.name == name
    with pytest.raises(ValueError, match=f"names '{name}', which is the name of models.target already"):
        served(tmp_path, text_pair[0], {name: adapter}, serve={"model": None})


def test_what_processes_are_compared_by_covers_the_names_and_contents_of_adapters(tmp_path, text_pair, adapter):
    """Else an endpoint with another adapter would be taken for one that differs by its draft alone."""
    own = Path(shutil.copytree(adapter, tmp_path / "own"))

    def rest(adapters: Mapping[str, str]) -> str:
        config = load(tmp_path, text_pair[0], adapters, models={"draft": text_pair[1]})
        found = serving._rest(config, serving.settled_models(config)[0])
        assert found
        return found

    before = rest({"a": str(own)})
    assert rest({"a": str(own)}) == before
    assert rest({}) != before
    assert rest({"b": str(own)}) != before
    save_adapter(text_pair[0], own, 7)
    assert rest({"a": str(own)}) != before, "the folder is the same, and its weights are others"


def test_deployments_of_different_models_have_different_names_that_serve_takes():
    names = ["a", "A", "a/b", "a-b", "a b", "a#b", "ä", "x" * 512, "x" * 511, "../../etc", "🦜", "Qwen/Qwen3-8B.v1"]
    found = {deployment_name("Replica", name) for name in names}
    assert len(found) == len(names)
    assert deployment_name("Replica", None) == "Replica"
    for name in found:
        assert name.startswith("Replica-")
        assert len(name) < 80
        assert not set(name) & set("/#: ")


def test_a_draft_that_does_not_fit_is_refused_for_the_base_and_its_adapters_alike(tmp_path, text_pair, adapter):
    (tmp_path / "pair").mkdir()
    foreign = Path(save_text_pair(tmp_path / "pair")[1])
    tokenizer = json.loads((foreign / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = list(vocabulary)[5:7]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (foreign / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ValueError, match="token"):
        served(tmp_path, text_pair[0], {"a": adapter}, models={"draft": str(foreign)})
    _, model = served(tmp_path, text_pair[0], {"a": adapter}, models={"draft": text_pair[1]})
    assert LoadedEngine(model.settings, None, 900.0, None).loop.engine.vocab_size > 0
