"""A chain of stages reads the streams that the whole model hands out, bit for bit, and computes the same logits."""

from collections.abc import Sequence as Seq

import pytest
import torch

from decoding.cache.features import Features, FeatureTap
from decoding.fused import kernels
from decoding.network.language_model import LanguageModel
from decoding.network.stage import Stage
from tests.decoding.families import EVERY_FUSED, FAMILIES, NUM_LAYERS, STATES, saved
from tests.decoding.network.test_stage import load_chain, packed, plain
from tests.decoding.tapped import EVERY_BT, LENGTHS, PROMPTS, SLOTS, STARTS, TOKENS_BT
from tests.pairs_of_values import every_pair

Written = tuple[torch.Tensor, list[torch.Tensor]]  # logits, and the streams of each forward
EVERY_ID = tuple(range(NUM_LAYERS + 1))


def of_whole(model: LanguageModel, layer_ids: Seq[int], starts: list[int]) -> Written:
    """A ragged prefill into scattered slots, and ragged rows over a rolled-back part of it."""
    streams: list[torch.Tensor] = []
    model.hand_out(FeatureTap(tuple(layer_ids), lambda stream_NX: stream_NX, lambda *given: streams.append(given[-1])))
    model.allocate(4, 60)
    for slot, prompt in zip(SLOTS, PROMPTS, strict=True):
        model.prefill([slot], [prompt])
    logits_BJV = model.forward(starts, TOKENS_BT, EVERY_BT, slots=SLOTS, lengths=LENGTHS)
    model.hand_out(None)
    return logits_BJV, streams


def of_chain(stages: list[Stage], layer_ids: Seq[int], starts: list[int]) -> Written:
    """The same through a chain."""
    streams: list[torch.Tensor] = []
    for stage in stages:
        stage.allocate(4, 60)

    def through(fed: torch.Tensor, *places: object, is_prompt: bool = False) -> torch.Tensor:
        parts = []
        for stage in stages:
            features = stage.reader(layer_ids)
            fed = stage.forward(fed, *places, features=features, is_prompt=is_prompt)
            parts += [] if features is None else [features.take()]
        if parts:
            streams.append(torch.cat(parts, dim=1))
        return fed

    for slot, prompt in zip(SLOTS, PROMPTS, strict=True):
        through(torch.tensor(prompt), [0], [len(prompt)], None, [slot], is_prompt=True)
    return through(packed(TOKENS_BT, LENGTHS), starts, LENGTHS, EVERY_BT, SLOTS), streams


def check(
    whole: LanguageModel, stages: list[Stage], layer_ids: Seq[int] = EVERY_ID, starts: list[int] = STARTS
) -> None:
    untapped, _ = of_chain(stages, (), starts)
    (logits, found), (right, expected) = of_chain(stages, layer_ids, starts), of_whole(whole, layer_ids, starts)
    assert torch.equal(logits, untapped), "the logits are the same with a tap and without"
    for row, other, length in zip(logits, right, LENGTHS, strict=True):
        assert torch.equal(row[:length], other[:length])
    assert len(found) == len(expected) == len(PROMPTS) + 1
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
    assert torch.equal(plain(stages, PROMPTS[0], "plain"), whole.plain_logits(PROMPTS[0]))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_streams_and_logits_of_stages_are_those_of_the_whole_model(family, tmp_path):
    path = saved(family, tmp_path)
    whole, stages = LanguageModel.load(path, "cpu"), load_chain(path, 3)
    check(whole, stages)


@pytest.mark.parametrize("family", STATES)
def test_stages_keep_the_states_of_their_own_layers(family, tmp_path):
    path = saved(family, tmp_path, STATES)
    whole, stages = LanguageModel.load(path, "cpu"), load_chain(path, 3)
    check(whole, stages, starts=[len(prompt) for prompt in PROMPTS])
    assert (plain(stages, PROMPTS[0], "plain_by_default") - whole.plain_logits(PROMPTS[0])).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("num_stages", "name", "ours"),
    every_pair([1, 2, 5], ["llama", "llama with tied embeddings", "qwen3", "gemma3"], ["on", "off"]),
)
def test_the_streams_and_logits_of_fused_stages_are_those_of_the_fused_model(
    name, num_stages, ours, tmp_path, monkeypatch
):
    monkeypatch.setenv("DRAY_KERNELS", ours)
    path = saved(name, tmp_path, EVERY_FUSED)
    whole, stages = LanguageModel.load(path, "cpu"), load_chain(path, num_stages)
    for each in (whole, *stages):
        each.speed_up()
        assert each.fused is not None
        assert each.is_batch_invariant == whole.is_batch_invariant
    if ours == "on" and kernels.load(torch.float32, 16, 64) is None:
        pytest.skip("no C++ compiler here")
    check(whole, stages)


@pytest.mark.parametrize("runs_rows_apart", [False, True])
def test_padding_of_a_rectangle_is_not_read_and_rows_that_run_apart_are_read_together(runs_rows_apart, tmp_path):
    path = saved("llama", tmp_path)
    whole, stages = LanguageModel.load(path, "cpu"), load_chain(path, 2)
    for each in (whole, *stages):
        each.packs_rows, each.runs_rows_apart = False, runs_rows_apart
    check(whole, stages)


def test_each_stream_is_read_in_one_stage_and_nothing_where_no_layer_is_wanted(tmp_path):
    stages = load_chain(saved("llama", tmp_path), 3)
    assert [stage.reader(EVERY_ID).tap.layer_ids for stage in stages] == [(0, 1), (2, 3), (4, 5)]
    assert [stage.reader(()) for stage in stages] == [None] * 3
    assert [stage.reader((0,)) is None for stage in stages] == [False, True, True]


def _off_by_one(stage: Stage) -> None:
    real = stage.reader
    stage.reader = lambda layer_ids: real([layer_id - 1 for layer_id in layer_ids])


def _another_row(stage: Stage) -> None:
    real = stage.reader

    def reader(layer_ids: Seq[int]) -> Features | None:
        features = real(layer_ids)
        if features is not None:
            features.take = lambda: Features.take(features).roll(1, 0)
        return features

    stage.reader = reader


@pytest.mark.parametrize("plant", [_off_by_one, _another_row])
def test_the_check_would_see_a_wrong_layer_and_lines_of_other_tokens(plant, tmp_path):
    path = saved("llama", tmp_path)
    stages = load_chain(path, 2)
    plant(stages[1])
    with pytest.raises(AssertionError):
        check(LanguageModel.load(path, "cpu"), stages, (4,))
