"""`engine.exact`: which targets get our GPU kernels' products, and what is said or refused by what was measured.

Here no kernel of a GPU runs; `tests/decoding/gpu/interpreted/test_invariance.py` has them measured.
"""

import logging

import pytest
import torch

from decoding import EngineOptions
from decoding.engine.load import Parts, load_parts
from decoding.fused import kernels
from decoding.kept import models
from decoding.network import slot_network
from decoding.network.language_model import LanguageModel
from tests.decoding.families import WIDE
from tests.decoding.tiny import build, llama_config, save


def parts(folders, exact: str, dtype: str) -> Parts:
    return load_parts(folders.target, None, EngineOptions(exact=exact), "cpu", dtype)


@pytest.fixture
def _gpu(monkeypatch):
    """A device on which our kernels run, and a check that does not run them."""
    monkeypatch.setattr(slot_network, "kernels_run_on", lambda device: True)


def check_that_finds(is_invariant: bool):
    """A check of models, in which those with exact products are measured, with this finding."""

    def check(model: LanguageModel, name: str) -> None:
        model.is_measured_invariant = model.has_exact_products and is_invariant

    return check


@pytest.mark.usefixtures("_gpu")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("exact", ["auto", "on", "off"])
def test_auto_is_off_in_float32_alone(folders, exact, dtype):
    model = LanguageModel.load(folders.target, "cpu", dtype, exact)
    assert model.has_exact_products == (exact == "on" or (exact == "auto" and dtype != "float32"))


def test_no_model_has_exact_products_where_our_kernels_do_not_run(folders, monkeypatch):
    monkeypatch.setattr(slot_network, "kernels_run_on", lambda device: False)
    assert not LanguageModel.load(folders.target, "cpu", "bfloat16", "on").has_exact_products


@pytest.mark.usefixtures("_gpu")
@pytest.mark.parametrize(("exact", "dtype"), [("on", "float32"), ("on", "bfloat16"), ("auto", "bfloat16")])
def test_a_target_that_is_measured_to_be_invariant_is_said_to_be(folders, monkeypatch, caplog, exact, dtype):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(models, "check_model", check_that_finds(True))
    assert parts(folders, exact, dtype).target.is_batch_invariant
    assert "the same, bit for bit, in any batch" in caplog.text


@pytest.mark.usefixtures("_gpu")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_on_refuses_a_target_that_is_measured_to_depend_on_the_batch(folders, monkeypatch, dtype):
    monkeypatch.setattr(models, "check_model", check_that_finds(False))
    with pytest.raises(ValueError, match=rf"^engine\.exact is 'on', but .*target' on cpu depend .* \(in {dtype}\)"):
        parts(folders, "on", dtype)


@pytest.mark.usefixtures("_gpu")
def test_auto_warns_of_a_target_that_is_measured_to_depend_on_the_batch(folders, monkeypatch, caplog):
    monkeypatch.setattr(models, "check_model", check_that_finds(False))
    assert not parts(folders, "auto", "bfloat16").target.is_batch_invariant
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "depend on the batch here, so near ties in its text may, too" in caplog.text


@pytest.mark.usefixtures("_gpu")
@pytest.mark.parametrize(("exact", "dtype"), [("off", "bfloat16"), ("off", "float32"), ("auto", "float32")])
def test_nothing_is_said_of_a_target_with_the_librarys_products(folders, monkeypatch, caplog, exact, dtype):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(models, "check_model", check_that_finds(True))
    assert not parts(folders, exact, dtype).target.is_batch_invariant
    assert "batch" not in caplog.text


def test_on_refuses_a_processor_without_our_kernels(folders, monkeypatch):
    monkeypatch.setenv("DRAY_KERNELS", "off")
    with pytest.raises(ValueError, match=r"engine\.exact is 'on', but .* on cpu depend .*; use 'auto'"):
        parts(folders, "on", "float32")


def test_on_takes_the_kernels_of_a_cpu(tmp_path):
    if kernels.load(torch.bfloat16, 16, 64) is None:
        pytest.skip("no C++ compiler here, or a processor without such kernels")
    path = save(build(llama_config(**WIDE), seed=1), tmp_path)
    assert load_parts(path, None, EngineOptions(exact="on"), "cpu", "bfloat16").target.is_batch_invariant
