"""The memory of states is foretold from the configuration, and is what a run takes."""

import pytest

from decoding import Engine, EngineOptions
from decoding.checkpoint.loading import footprint_of
from decoding.engine.load import Parts
from decoding.network.language_model import LanguageModel
from tests.decoding.families import STATES, family_config, family_network
from tests.decoding.tiny import loaded, noised, numbered, random_prompts, run, schedule_at_random

MAX_LEN = 80


def _pair(name: str, folder, dtype="float32") -> tuple[LanguageModel, LanguageModel]:
    target = family_network(name, STATES)
    return loaded(target, folder / "target", dtype), loaded(noised(target, 0.1), folder / "draft", dtype)


def _engine(target: LanguageModel, draft: LanguageModel, num_drafted: int, num_slots: int = 3) -> Engine:
    options = EngineOptions(num_slots=num_slots, num_speculative_tokens=num_drafted, draft_length="fixed")
    return Engine.over(Parts(target, draft, "model", MAX_LEN), options)


@pytest.mark.parametrize(("num_drafted", "dtype"), [(4, "float32"), (16, "float32"), (4, "bfloat16")])
@pytest.mark.parametrize("name", STATES)
def test_keys_and_states_take_as_many_bytes_as_foretold(name, num_drafted, dtype, tmp_path, monkeypatch):
    schedule_at_random(monkeypatch, seed=num_drafted)  # some rows stay behind in the draft
    foretold = footprint_of(family_config(name, STATES), dtype, 3, MAX_LEN, num_drafted)
    assert foretold.states_per_slot > 0
    target, draft = _pair(name, tmp_path, dtype)
    run(_engine(target, draft, num_drafted), numbered(random_prompts([40, 3, 1, 9]), max_tokens=30, temperature=0))
    for model in (target, draft):
        assert model.cache is not None
        assert model.cache.num_bytes == pytest.approx(foretold.cache, rel=0.05)


@pytest.mark.parametrize("num_drafted", [4, 12])
def test_a_draft_goes_on_behind_what_was_accepted_however_many_tokens_it_drafts(num_drafted, tmp_path, monkeypatch):
    target, draft = _pair("gated delta", tmp_path)
    engine = _engine(target, draft, num_drafted, num_slots=1)
    num_fed, forward = [], draft.forward

    def watched(starts, token_ids_BT, *args, **kwargs):
        num_fed.append(token_ids_BT.shape[1])
        return forward(starts, token_ids_BT, *args, **kwargs)

    monkeypatch.setattr(draft, "forward", watched)
    (row,) = run(engine, numbered(random_prompts([20]), max_tokens=40, temperature=0.8))
    assert 0 < row.num_accepted_tokens < row.num_draft_tokens
    assert num_fed[0] == 19
    assert max(num_fed[1:]) <= 2, "after full acceptance, the last drafted token and the newest"
