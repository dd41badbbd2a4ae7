"""A fingerprint changes with everything that could change the output, and with nothing else."""

import shutil
from pathlib import Path

import pytest

from pipeline.run.fingerprint import model_fingerprint, text_fingerprint, tokenizer_fingerprint


@pytest.fixture
def model(tmp_path: Path) -> Path:
    for name in ("config.json", "generation_config.json", "model-1.safetensors", "model-2.safetensors", "README.md"):
        (tmp_path / name).write_text(name)
    return tmp_path


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "model-2.safetensors"])
def test_a_changed_byte_of_a_model_changes_its_fingerprint(model, name):
    before = model_fingerprint(model)
    (model / "README.md").write_text("other")
    assert model_fingerprint(model) == before
    (model / name).write_text("x")
    assert model_fingerprint(model) != before


def test_swapped_shards_change_the_fingerprint(model):
    before = model_fingerprint(model)
    (model / "model-1.safetensors").rename(model / "swap")
    (model / "model-2.safetensors").rename(model / "model-1.safetensors")
    (model / "swap").rename(model / "model-2.safetensors")
    assert model_fingerprint(model) != before


def test_the_chat_template_is_part_of_the_tokenizers_fingerprint(tokenizer_path, tmp_path):
    copy = shutil.copytree(tokenizer_path, tmp_path / "copy")
    before = tokenizer_fingerprint(copy)
    assert before == tokenizer_fingerprint(tokenizer_path)
    (copy / "chat_template.jinja").write_text("{{ messages }}")
    assert tokenizer_fingerprint(copy) != before


def test_a_folder_without_a_model_or_a_tokenizer_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"holds config.json and \*.safetensors; found an empty folder"):
        model_fingerprint(tmp_path)
    with pytest.raises(ValueError, match="no tokenizer here"):
        tokenizer_fingerprint(tmp_path)
    assert text_fingerprint("a") != text_fingerprint("b")
