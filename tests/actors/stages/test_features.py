"""A target in stages hands out the features of the whole one, of prompts and of rounds, also after a stage died."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from actors.stages.target import ShardedModel
from decoding import Engine, EngineOptions, SamplingParams
from decoding.drafters.making import make_drafter
from decoding.heads import attach
from decoding.heads.format.folder import Head, save_head
from decoding.heads.mtp.head import MtpHead
from decoding.network.language_model import LanguageModel
from decoding.network.probe import check_model
from decoding.network.target import SlotsLostError
from decoding.sampling.judging import ScoreRequest
from decoding.sampling.verdicts import Draft
from tests.actors.sharded import PROMPTS, Pair, kill, kill_and_wait, make_sequences, sharded, texts
from tests.decoding.heads.mtp.tiny_targets import VOCAB_SIZE as OWN_VOCAB_SIZE
from tests.decoding.heads.mtp.tiny_targets import save_target
from tests.decoding.heads.tiny_heads import (
    block_config,
    head_config,
    head_for,
    mask_config,
    perfect_blocks,
    perfect_pair,
    random_head,
)
from tests.decoding.tapped import Kept
from tests.decoding.tiny import rows_over, save

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_address", "one_thread")]
IDS = (3, 0, 2)  # of three layers; 2 is the first one of the second stage, 3 is before the final norm
SLOTS, TEXTS = [2, 0, 1], [PROMPTS[6], PROMPTS[0], PROMPTS[2]]
DRAFTED = [[5, 6, 7], [8, 9, 1], [2, 3, 4]]


@pytest.fixture(scope="module")
def model(ray_address: str, pair: Pair) -> Iterator[ShardedModel]:
    """Two stages."""
    with sharded(pair[0], 2) as model:
        yield model


def whole_model(path: str) -> LanguageModel:
    model = LanguageModel.load(path, "cpu", "float32")
    check_model(model, path)
    return model


def hands_out(model: LanguageModel | ShardedModel) -> Kept:
    """What a tap gets of everything that writes into slots: prompts in chunks, a round, a decision, and scores."""
    kept = Kept(IDS)
    model.hand_out(kept.tap)
    try:
        model.allocate(4, 100)
        model.prefill(SLOTS, [text[:-1] for text in TEXTS])
        rows = rows_over(
            [make_sequences(SamplingParams(), [text])[0] for text in (TEXTS[1], TEXTS[2], TEXTS[0])], [3] * 3
        )
        draft = Draft(torch.tensor(DRAFTED), torch.tensor([3, 1, 0]), max_draft_tokens_B=(3, 1, 0))
        model.score(ScoreRequest(rows, draft, (None,) * 3)).result()
        model.decide(rows_over([make_sequences(SamplingParams(), [TEXTS[1]])[0]], [0]), [4], None, in_slot=3)
        num_calls = len(kept.calls)
        model.seconds(2, 3)
        assert len(kept.calls) == num_calls, "a forward that is timed hands out no features"
    finally:
        model.hand_out(None)
    return kept


def check_same(found: Kept, expected: Kept) -> None:
    """The same tokens at the same places, with the same features."""
    assert found.at.keys() == expected.at.keys()
    for place, (token, features) in expected.at.items():
        assert found.at[place][0] == token
        torch.testing.assert_close(found.at[place][1], features, rtol=1e-5, atol=1e-5)


def test_features_are_those_of_the_same_target_in_one_process(pair, model, monkeypatch):
    monkeypatch.setattr("decoding.cache.prefill.PREFILL_TOKENS", 7)  # prompts take several forwards
    found = hands_out(model)
    check_same(found, hands_out(whole_model(pair[0])))
    assert max(sum(call[2]) for call in found.calls) == 7, "in chunks"
    assert model.tap is None


def test_logits_are_the_same_bit_for_bit_with_a_tap_and_nothing_travels_without_one(model):
    def logits() -> torch.Tensor:
        model.allocate(4, 100)
        model.prefill(SLOTS, TEXTS)
        return model.logits(SLOTS, [len(text) for text in TEXTS], DRAFTED)

    untapped, kept = logits(), Kept(IDS)
    model.hand_out(kept.tap)
    tapped, num_calls = logits(), len(kept.calls)
    model.hand_out(None)
    assert num_calls > 1
    assert torch.equal(tapped, untapped)
    assert torch.equal(logits(), untapped)
    assert len(kept.calls) == num_calls
    step = model._send([0], [0], [[1]])
    step.result()
    assert step.streams is None


def test_each_session_has_a_tap_of_its_own(model):
    first, second = Kept((0,)), Kept((1,))
    model.hand_out(first.tap)
    twin = model.share()
    assert twin.tap is None
    twin.allocate(1, 60)
    twin.prefill([0], [[1, 2, 3]])
    assert first.calls == []
    twin.hand_out(second.tap)
    twin.prefill([0], [[1, 2, 3]])
    assert (len(first.calls), len(second.calls)) == (0, 1)
    model.hand_out(None)
    twin.release()


@pytest.mark.parametrize("layer_ids", [(), (0, 4), (-1,), (1, 1)])
def test_layers_that_a_target_does_not_have_are_refused(model, layer_ids):
    with pytest.raises(ValueError, match="a target of 3 layers can be read at different places from 0 to 3"):
        model.hand_out(replace(Kept(IDS).tap, layer_ids=layer_ids))
    assert model.tap is None


def test_features_after_a_stage_was_lost_are_right_again(pair, model):
    kept = Kept(IDS)
    model.hand_out(kept.tap)
    model.allocate(2, 60)
    model.prefill([0], [PROMPTS[0]])
    kill_and_wait(model, 1)
    with pytest.raises(SlotsLostError):
        model.prefill([0], [[1, 2, 3]], [len(PROMPTS[0])])
    assert len(kept.calls) == 1, "what was lost is not handed out"
    check_same(hands_out(model), hands_out(whole_model(pair[0])))


HEADS = {"eagle3": perfect_pair, "dflash": perfect_blocks}


@pytest.fixture(scope="module", params=HEADS)
def heads(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A target, and a head that is right about it if it reads the right layer. It lacks what is its target's."""
    root: Path = tmp_path_factory.mktemp("perfect")
    target, head = HEADS[request.param](reads_features=True)
    lent = target.get_input_embeddings().weight
    tensors = {name: tensor for name, tensor in head.tensors.items() if not torch.equal(tensor, lent)}
    save_head(Head(head.config, tensors), str(root / "head"), "speculators")
    return save(target, root / "target"), str(root / "head")


def test_an_engine_over_stages_drafts_with_a_head_as_one_without_them(heads):
    options = EngineOptions(num_slots=5, max_model_len=90, num_speculative_tokens=4, draft_length="fixed")
    params = SamplingParams(max_tokens=16, temperature=0.7)
    prompts = [prompt[:40] for prompt in PROMPTS]
    whole = make_sequences(params, prompts)
    texts(Engine.load(*heads, options, device="cpu", dtype="float32"), whole)
    with sharded(heads[0], 2) as model:
        engine = Engine.load(
            *heads, options, device="cpu", dtype="float32", target_model=model, num_lanes=model.num_lanes
        )
        assert len(engine.lanes) == 2
        staged = make_sequences(params, prompts)
        texts(engine, staged)
        for found, expected in zip(staged, whole, strict=True):
            assert found.output_token_ids == expected.output_token_ids
            assert found.num_draft_tokens == expected.num_draft_tokens
            assert found.num_accepted_tokens == expected.num_accepted_tokens
        num_accepted = sum(row.num_accepted_tokens for row in whole)
        assert num_accepted > 60
        again = make_sequences(params, prompts)
        assert texts(engine, again, {4: lambda: kill(model, 1)}) == [row.output_token_ids for row in whole]
        assert model.pipeline.group.num_replaced == 1
        assert sum(row.num_accepted_tokens for row in again) > 0.8 * num_accepted
        adaptive = Engine.load(
            *heads, replace(options, draft_length="adaptive"), device="cpu", target_model=model, num_lanes=2
        )
        assert texts(adaptive, make_sequences(params, prompts)) == [row.output_token_ids for row in whole]


@pytest.mark.parametrize("family", ["deepseek_v3", pytest.param("mimo_v2_flash", marks=pytest.mark.slow)])
def test_the_head_in_a_targets_own_files_drafts_over_stages_as_in_one_process(family, tmp_path, monkeypatch):
    """Layers behind the target's, and three modules."""
    monkeypatch.setattr(attach, "LEAST_AGREEMENT", 0.0)  # a random head agrees on less
    path, _ = save_target(family, tmp_path / "target")
    options = EngineOptions(num_slots=3, max_model_len=60, num_speculative_tokens=4, draft_length="fixed")
    prompts = [[token % OWN_VOCAB_SIZE for token in prompt[:20]] for prompt in PROMPTS]
    whole, staged = (make_sequences(SamplingParams(max_tokens=16), prompts) for _ in range(2))
    texts(Engine.load(path, "mtp", options, device="cpu", dtype="float32"), whole)
    with sharded(path, 2) as model:
        engine = Engine.load(path, "mtp", options, device="cpu", dtype="float32", target_model=model)
        texts(engine, staged)
    assert all(isinstance(lane.drafter.head, MtpHead) for lane in engine.lanes)
    found, expected = (
        [(row.output_token_ids, row.num_draft_tokens, row.num_accepted_tokens) for row in rows]
        for rows in (staged, whole)
    )
    assert found == expected
    assert 20 < sum(row.num_accepted_tokens for row in whole) < sum(row.num_draft_tokens for row in whole)


@pytest.mark.parametrize("kind", ["eagle3", "peagle", "dflash"])
def test_a_head_brings_back_the_bytes_that_docs_heads_md_foretells(pair, model, monkeypatch, kind):
    """Layers that are read x hidden size x bytes of a number, for each token that the target reads, and no more."""
    target, sizes = whole_model(pair[0]), []
    make = {"eagle3": head_config, "peagle": mask_config, "dflash": block_config}[kind]
    head, _ = random_head(head_for(target, make))
    drafter = make_drafter("dflash" if kind == "dflash" else "eagle3", head, target.vocab_size, 4, 90)
    features = ShardedModel._features

    def counted(self, tap, streams):
        sizes.append(streams[0].nbytes)
        return features(self, tap, streams)

    monkeypatch.setattr(ShardedModel, "_features", counted)
    options = EngineOptions(num_slots=4, max_model_len=90, num_speculative_tokens=4, draft_length="fixed")
    rows = make_sequences(SamplingParams(max_tokens=12), [prompt[:40] for prompt in PROMPTS])
    texts(Engine([(model, drafter)], options, 90), rows)
    model.hand_out(None)
    prompts = sum(len(row.prompt_token_ids) - 1 - row.num_cached_tokens for row in rows)
    rounds = sum(row.num_rounds + row.num_draft_tokens for row in rows)
    assert sum(row.num_draft_tokens for row in rows) > 100
    assert sum(sizes) == (prompts + rounds) * len(head.layer_ids) * target.hidden_size * target.dtype.itemsize
