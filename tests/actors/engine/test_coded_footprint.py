"""The plan's memory of a GGUF file is what its codes take, and that of float32 weights where these run."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from actors.engines.footprint import footprint, made_of_in_words
from actors.settings import GeneratorSettings, ModelSettings
from decoding.checkpoint import model_files
from decoding.checkpoint.supported import model_folder
from decoding.fused import kernels
from tests.decoding.codes.test_coded_models import loaded, save_coded


@pytest.mark.parametrize(("kind", "is_tied"), [("Q4_1", True), ("Q5_0", False), ("Q8_0", False)])
def test_the_plan_has_the_memory_of_codes_and_of_float32_weights_where_ranks_share_them(
    tmp_path: Path, monkeypatch, kind, is_tied
):
    if kernels.load_linear(torch.float32) is None:
        pytest.skip("no compiler here, or no AVX2")
    monkeypatch.setattr(model_files, "HF_HOME", str(tmp_path / "cache"))
    folder = model_folder(save_coded(tmp_path, kind, tie_word_embeddings=is_tied))
    settings = GeneratorSettings(models=ModelSettings(target=folder, device="cpu", dtype="float32"))
    coded, plain = loaded(folder), loaded(folder, is_coded=False)
    planned = footprint(settings, folder).weights
    assert 0.95 * coded.num_weight_bytes < planned <= coded.num_weight_bytes, "a plan has no padded lines"
    assert made_of_in_words(settings, folder).endswith("as they are")
    ranks = replace(settings, stages=replace(settings.stages, count=1, tensor_parallel=2))
    assert footprint(ranks, folder).weights == plain.num_weight_bytes
    assert made_of_in_words(ranks, folder).endswith("to float32")
