"""Fused layers hand out the stream that enters any of them, whatever runs them, and compute the same, bit for bit."""

import copy

import pytest
import torch

from decoding.cache.features import Features
from decoding.fused.layers import KernelLayers
from decoding.network.language_model import LanguageModel
from tests.decoding.families import EVERY_FUSED
from tests.decoding.fused.test_decoder import fused_model, network
from tests.decoding.fused.test_graphs import num_recorded, with_graphs
from tests.decoding.tapped import EVERY_BT, TOKENS_BT, Kept, assert_equal, check_tap, expected, written
from tests.decoding.tiny import random_prompts

PLACES = [(2, 0, 3), (1,), (0,), (3,), (0, 1, 2, 3)]  # of three layers


@pytest.mark.parametrize("name", EVERY_FUSED)
def test_fused_layers_hand_out_what_transformers_computes_and_compute_the_same(name, attention):
    plain = network(name)
    model = fused_model(copy.deepcopy(plain))
    for layer_ids in PLACES:
        check_tap(model, plain, layer_ids, tolerance=2e-5)


def test_a_prefill_leaves_the_last_layer_out_unless_what_leaves_it_is_read(attention, monkeypatch):
    model, wanted = fused_model(network("llama")), []
    real = KernelLayers._run_some

    def run_some(self, *args: object, is_wanted: bool) -> None:
        wanted.append(is_wanted)
        real(self, *args, is_wanted=is_wanted)

    monkeypatch.setattr(KernelLayers, "_run_some", run_some)
    model.allocate(1, 60)
    for layer_ids, expected_calls in (((2,), [True, False]), ((3,), [True]), ((1, 3), [True, True])):
        wanted.clear()
        model.hand_out(Kept(layer_ids).tap)
        model.prefill([0], random_prompts((5,)))
        assert wanted == (expected_calls if model.fused._at_once is not None else [])


@pytest.fixture
def _torch_attention(monkeypatch, gpu):
    monkeypatch.setenv("DRAY_KERNELS", "off")


@pytest.mark.usefixtures("_torch_attention")
def test_replayed_forwards_hand_out_their_own_features_without_padding():
    plain = network("llama")
    model = fused_model(copy.deepcopy(plain))
    kept, ragged = Kept((0, 2, 3)), ((5, [3, 1, 2, 3, 1]), (5, [1, 1, 3, 3, 1]), (9, None), (5, [2, 1, 1, 1, 1]))
    graphs, texts = with_graphs(model), random_prompts((20,) * 9)
    model.hand_out(kept.tap)
    generator = torch.Generator().manual_seed(3)
    model.allocate(11, 60)
    model.prefill(range(9), texts)
    for num_rows, lengths in ((5, None), *ragged):
        for _ in range(3):
            tokens_BT = torch.randint(48, (num_rows, 3), generator=generator)
            model.forward([20] * num_rows, tokens_BT, EVERY_BT[:1, :3].expand(num_rows, -1), lengths=lengths)
            slots, starts, own, _ = kept.calls[-1]
            assert (slots, starts, own) == (list(range(num_rows)), [20] * num_rows, lengths or [3] * num_rows)
            for slot, row in enumerate(tokens_BT.tolist()):
                text = [*texts[slot], *row[: own[slot]]]
                torch.testing.assert_close(kept.of(slot, text), expected(plain, text, (0, 2, 3)), rtol=2e-5, atol=2e-5)
    assert 2 <= num_recorded(graphs) <= 4


@pytest.mark.usefixtures("_torch_attention")
@pytest.mark.parametrize("refuses", [False, True])
def test_recorded_forwards_compute_the_same_with_and_without_a_tap(gpu, refuses):
    plain = network("llama")
    model = fused_model(copy.deepcopy(plain))
    gpu.refuses = refuses
    with_graphs(model)
    written(model)
    for _ in range(2):
        check_tap(model, plain, (1, 3), tolerance=2e-5)
    newest, at = TOKENS_BT[:, :1], torch.zeros(3, 1, dtype=torch.int64)

    def logits() -> list[torch.Tensor]:
        model.allocate(3, 60)
        model.prefill(range(3), random_prompts((9, 4, 20)))
        return [model.forward([9, 4, 20], newest, at).clone() for _ in range(4)]

    before = logits()
    model.hand_out(Kept((2, 3)).tap)
    assert_equal(logits(), before)


@pytest.mark.usefixtures("_torch_attention")
def test_features_of_a_replayed_forward_stay_when_the_next_one_runs():
    model = fused_model(network("llama"))
    with_graphs(model)
    kept = Kept((1,))
    model.hand_out(kept.tap)
    model.allocate(1, 60)
    model.prefill([0], random_prompts((9,)))
    for token in (1, 2, 3):
        model.forward([9], torch.tensor([[token]]), EVERY_BT[:1, :1])
    third = kept.at[0, 9][1]
    before = third.clone()
    model.forward([9], torch.tensor([[4]]), EVERY_BT[:1, :1])
    assert torch.equal(third, before)


@pytest.mark.usefixtures("_torch_attention")
def test_another_tap_is_not_served_by_recordings_for_the_first_one():
    plain = network("llama")
    model = fused_model(copy.deepcopy(plain))
    graphs = with_graphs(model)
    (text,) = random_prompts((9,))
    model.allocate(1, 60)
    model.prefill([0], [text])
    for layer_ids in ((1,), (2, 3), (0,)):
        kept = Kept(layer_ids)
        model.hand_out(kept.tap)
        for _ in range(3):
            model.forward([9], torch.tensor([[4]]), EVERY_BT[:1, :1])
        assert num_recorded(graphs) == 1
        torch.testing.assert_close(kept.at[0, 9][1], expected(plain, [*text, 4], layer_ids)[-1], rtol=2e-5, atol=2e-5)


def _view(monkeypatch) -> None:
    """Plant the bug: the stream is not copied, and kernels write on in its memory."""
    real = Features.project

    def keep(self: Features, layer_id: int, hidden_NE: torch.Tensor) -> None:
        if self.wants(layer_id):
            self.__dict__.setdefault("views", {})[layer_id] = hidden_NE

    def project(self: Features) -> None:
        views = self.__dict__.pop("views")
        self._stream_NX = torch.cat([views[layer_id] for layer_id in self.tap.layer_ids], dim=-1)
        real(self)

    monkeypatch.setattr(Features, "keep", keep)
    monkeypatch.setattr(Features, "project", project)


def test_the_check_would_see_a_missing_copy(attention, monkeypatch):
    plain = network("llama")
    model: LanguageModel = fused_model(copy.deepcopy(plain))
    _view(monkeypatch)
    if model.fused._at_once is None:  # each operation has memory of its own here
        check_tap(model, plain, (1, 2), tolerance=2e-5)
        return
    with pytest.raises(AssertionError):
        check_tap(model, plain, (1, 2), tolerance=2e-5)
