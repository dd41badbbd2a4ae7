"""A LanguageModel's logits on slots are those of the plain network, for rows in any slot."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from decoding.cache import prefill
from decoding.device import pick_device
from decoding.network.language_model import LanguageModel
from tests.decoding.tiny import build, llama_config, random_prompts, save, stored

ROWS = random_prompts([9, 1, 4, 14], seed=2)


@pytest.fixture(scope="module")
def plain(folders):
    network = AutoModelForCausalLM.from_pretrained(folders.target).eval()

    @torch.inference_mode()
    def logits(tokens: list[int]) -> torch.Tensor:
        return network(torch.tensor([tokens])).logits[0]

    return logits


@pytest.mark.parametrize(("chunk", "slots"), [(1, [0, 1, 2, 3]), (3, [5, 2, 0, 3]), (512, [5, 2, 0, 3])])
def test_logits_after_prefill_equal_a_plain_forward(models, plain, slots, chunk, monkeypatch):
    monkeypatch.setattr(prefill, "PREFILL_TOKENS", chunk)
    models.target.allocate(6, 20)
    models.target.prefill(slots, [row[:-1] for row in ROWS])
    newest = torch.tensor([[row[-1]] for row in ROWS])
    found = models.target.forward([len(r) - 1 for r in ROWS], newest, torch.zeros(4, 1, dtype=torch.long), slots=slots)
    for row, tokens in zip(found, ROWS, strict=True):
        torch.testing.assert_close(row[0], plain(tokens)[-1], rtol=1e-4, atol=1e-4)


def test_only_the_wanted_positions_have_logits(models, plain):
    models.target.allocate(2, 20)
    tokens = torch.tensor([ROWS[0][:6], ROWS[3][:6]])
    wanted = torch.tensor([[0, 5, 2], [1, 1, 4]])
    found = models.target.forward([0, 0], tokens, wanted)
    assert found.shape == (2, 3, 48)
    for row, columns, behind in zip(found, wanted.tolist(), tokens.tolist(), strict=True):
        torch.testing.assert_close(row, plain(behind)[columns], rtol=1e-4, atol=1e-4)


def test_plain_logits_use_no_slot(models, plain):
    models.target.allocate(1, 20)
    models.target.prefill([0], [ROWS[0]])
    before = [tuple(t.clone() for t in layer) for layer in stored(models.target.cache, 0, 9)]
    found = models.target.plain_logits(ROWS[3])
    torch.testing.assert_close(found, plain(ROWS[3])[-1], rtol=1e-4, atol=1e-4)
    after = stored(models.target.cache, 0, 9)
    assert all(torch.equal(a, b) for x, y in zip(before, after, strict=True) for a, b in zip(x, y, strict=True))


def test_weights_are_float32_on_a_cpu_and_what_is_asked_for_otherwise(tmp_path):
    path = save(build(llama_config(), seed=1).to(torch.bfloat16), tmp_path)
    assert LanguageModel.load(path, "cpu").dtype == torch.float32
    assert LanguageModel.load(path, "cpu", "bfloat16").dtype == torch.bfloat16


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_device_that_is_not_there_is_refused():
    assert pick_device("auto") == torch.device("cpu")
    with pytest.raises(ValueError, match="no CUDA device"):
        pick_device("cuda")


def test_float32_that_is_multiplied_coarsely_is_refused(folders):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with pytest.raises(ValueError, match="float32_matmul_precision is 'medium'"):
            LanguageModel.load(folders.target, "cpu", "float32")
        LanguageModel.load(folders.target, "cpu", "bfloat16")
    finally:
        torch.set_float32_matmul_precision(before)
