"""Packed rows compute what a rectangle computes, and nothing of what is not there."""

import pytest
import torch
import transformers
from transformers import PreTrainedModel

from decoding.cache.kv_cache import Packing
from decoding.network.language_model import LanguageModel
from decoding.network.probe import check_model
from tests.decoding.families import FAMILIES
from tests.decoding.tiny import build

OWN_ATTENTION = {"falcon", "falcon_alibi", "bloom", "gptj"}


def family_model(family: str) -> PreTrainedModel:
    class_name, settings = FAMILIES[family]
    return build(getattr(transformers, class_name)(**settings), seed=3)


def test_a_packing_takes_a_rectangle_apart_and_puts_it_together():
    lengths = [2, 4, 1]
    packing = Packing.of(lengths, torch.device("cpu"))
    rectangle = torch.arange(12).view(3, 4)
    packed = rectangle.flatten()[packing.packed_N]
    assert packed.tolist() == [0, 1, 4, 5, 6, 7, 8]
    assert packed[packing.unpacked_BT].tolist() == [[0, 1, 1, 1], [4, 5, 6, 7], [8, 8, 8, 8]]


def test_rows_of_one_length_are_not_packed():
    assert Packing.of([3, 3], torch.device("cpu")) is None


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_packed_rows_get_the_logits_they_get_in_a_rectangle(family):
    model = LanguageModel(family_model(family), frozenset())
    check_model(model, family)
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(48, (n,), generator=generator).tolist() for n in (8, 2, 12)]
    tokens_BT = torch.randint(48, (3, 5), generator=generator)
    every_BT = torch.arange(5).expand(3, -1)
    model.allocate(4, 40)
    model.prefill([0, 1, 2], prompts)
    starts, lengths = [8, 2, 12], [2, 5, 1]
    rectangle_BTV = model.forward(starts, tokens_BT, every_BT)
    packed_BTV = model.forward(starts, tokens_BT, every_BT, lengths=lengths)
    for row, length in enumerate(lengths):
        torch.testing.assert_close(packed_BTV[row, :length], rectangle_BTV[row, :length], rtol=1e-4, atol=1e-4)
    assert model.packs_rows == (family not in OWN_ATTENTION)


def test_a_model_that_does_not_bear_packing_gets_rectangles():
    model = LanguageModel(family_model("llama"), frozenset())
    forward = model.network.forward

    def refuses_packed_rows(*args, slot_plan=None, **kwargs):
        if slot_plan is not None:
            raise TypeError("unexpected keyword argument 'slot_plan'")
        return forward(*args, **kwargs)

    model.network.forward = refuses_packed_rows
    check_model(model, "llama")
    assert not model.packs_rows
