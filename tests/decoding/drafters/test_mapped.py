"""A draft with another tokenizer reads the row's text in its own tokens, and drafts the tokens that both have."""

import pytest
import torch

from decoding import Engine, EngineOptions
from decoding.drafters.model import ModelDrafter
from tests.decoding.tiny import (
    VOCAB_SIZE,
    build,
    llama_config,
    loaded,
    mapped,
    noised,
    numbered,
    outputs,
    random_prompts,
    rows_over,
    run,
    schedule_at_random,
)
from tests.decoding.tiny import engine_over as plain_engine
from tests.decoding.vocabulary.tiny_tokenizers import LETTERS, byte_level, map_of, other_tokens, permuted

LETTERS_48 = [*LETTERS, *"ABCDEFGH"]
SHARED = [7, 3, 9, 1, 4, 4, 8, 2]
PROMPTS = [*random_prompts([9, 1, 5, 17, 2]), SHARED, [*SHARED, 11], [*SHARED, 12, 13], SHARED, [5]]


@pytest.fixture(scope="module")
def networks():
    network = build(llama_config(), seed=1)
    return network, noised(network, 0.1)


@pytest.fixture(scope="module")
def target(networks, tmp_path_factory):
    return loaded(networks[0], tmp_path_factory.mktemp("target"))


def engine_over(target, drafter, *, num_slots: int = 3, **options) -> Engine:
    settings = EngineOptions(
        drafter="none", draft_length="fixed", num_slots=num_slots, num_speculative_tokens=4, max_model_len=80, **options
    )
    return Engine([(target, drafter)], settings, 80)


class Watched(ModelDrafter):
    """Notes what it drafts, and compares its cache with a fresh reading of the text."""

    fresh = None

    def propose(self, rows):
        draft = super().propose(rows)
        self.seen.append((draft.token_ids_BK.tolist(), draft.num_draft_tokens_B.tolist()))
        for slot, limit in enumerate(draft.max_draft_tokens_B):
            if limit:
                self.check(slot, rows.sequences[slot])
        return draft

    def check(self, slot, sequence):
        row, vocabulary = self.vocabulary._row(slot), self.vocabulary._map
        assert row.written == row.text.token_ids
        assert self.slots.num_known[slot] >= len(row.written)
        written = b"".join(vocabulary.draft_bytes[token_id] for token_id in row.written)
        assert written == vocabulary.written(sequence.token_ids)
        if self.fresh is not None:
            self.fresh.allocate(1, 80)
            self.fresh.prefill([0], [row.written])
            for mine, other in zip(self.slots.cache.layers, self.fresh.cache.layers, strict=True):
                for found, expected in zip(mine.stored(), other.stored(), strict=True):
                    torch.testing.assert_close(
                        found[slot, : len(row.written)], expected[0, : len(row.written)], rtol=1e-4, atol=1e-5
                    )


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_draft_whose_ids_are_permuted_drafts_as_if_they_were_not(networks, target, tmp_path, temperature):
    ids = torch.randperm(VOCAB_SIZE, generator=torch.Generator().manual_seed(3)).tolist()
    names = [LETTERS_48[k] for k in ids]
    draft = loaded(permuted(networks[1], ids), tmp_path / "permuted")
    draft_with_map = mapped(draft, map_of(byte_level(LETTERS_48), byte_level(names)))
    params = {"temperature": temperature, "max_tokens": 20}
    drafter = Watched(draft_with_map, VOCAB_SIZE, 3, 80)
    drafter.seen, drafter.fresh = [], draft.share()
    engine = engine_over(target, drafter)
    found = run(engine, numbered(PROMPTS, **params))
    plain = ModelDrafter(loaded(networks[1], tmp_path / "plain"), VOCAB_SIZE, 3, 80)
    expected = run(engine_over(target, plain), numbered(PROMPTS, **params))
    assert outputs(found) == outputs(expected)
    counts = [(row.num_draft_tokens, row.num_accepted_tokens, row.num_rounds) for row in found]
    assert counts == [(row.num_draft_tokens, row.num_accepted_tokens, row.num_rounds) for row in expected]
    assert sum(accepted for _, accepted, _ in counts) > 50
    assert any(any(numbers) for _, numbers in drafter.seen)


def test_no_accepted_token_is_read_again(networks, target, tmp_path):
    """A round reads its newest token, and behind a draft that was accepted as a whole the last one, which it lacks."""
    draft = loaded(networks[0], tmp_path / "d")
    drafter = ModelDrafter(mapped(draft, map_of(byte_level(LETTERS_48), byte_level(LETTERS_48))), VOCAB_SIZE, 3, 80)
    forward, widths = draft.forward, []

    def watched_forward(starts, tokens_NT, *args, **kwargs):
        widths.append(tokens_NT.shape[1])
        return forward(starts, tokens_NT, *args, **kwargs)

    engine = engine_over(target, drafter)
    rows = numbered(random_prompts([9, 5, 2]), max_tokens=30, ignore_eos=True)
    engine.submit(rows)
    engine.step()
    draft.forward = watched_forward
    while engine.has_work:
        engine.step()
    assert sum(row.num_accepted_tokens for row in rows) > 60
    assert set(widths) == {1, 2}


@pytest.fixture
def drafter_and_read(networks, tmp_path, monkeypatch):
    """A drafter whose tokens are the target's, and what its model reads of prompts: slots, tokens and starts."""
    draft = loaded(networks[1], tmp_path / "d")
    prefill, read = draft.prefill, []

    def watched_prefill(slots, token_ids, starts):
        read.append((list(slots), token_ids, starts))
        prefill(slots, token_ids, starts)

    monkeypatch.setattr(draft, "prefill", watched_prefill)
    return ModelDrafter(mapped(draft, map_of(byte_level(LETTERS_48), byte_level(LETTERS_48))), VOCAB_SIZE, 2, 80), read


def test_no_prompt_is_read_while_drafts_are_rare(drafter_and_read):
    drafter, read = drafter_and_read
    drafter.rest()
    drafter.begin(0, None, 0)
    drafter.prefill([0], [SHARED])
    assert read == []
    drafter.propose(rows_over(numbered([[*SHARED] * 6, SHARED], max_tokens=20), [2, 0]))
    assert read == [([0], [([*SHARED] * 6)[:-1]], [0])]
    drafter.begin(1, None, 0)
    drafter.prefill([1], [SHARED])
    assert len(read) == 2


def test_of_a_row_that_begins_like_another_only_the_rest_is_read(drafter_and_read):
    drafter, read = drafter_and_read
    drafter.begin(0, None, 0)
    drafter.prefill([0], [[*SHARED, 11, 12, 13]])
    drafter.begin(1, 0, len(SHARED))
    drafter.prefill([1], [[*SHARED, 14, 15, 16]])
    drafter.begin(1, 1, len(SHARED))  # in the same slot
    drafter.prefill([1], [[*SHARED, 17, 18]])
    assert read == [([0], [[*SHARED, 11, 12]], [0]), ([1], [[14, 15]], [8]), ([1], [[17]], [8])]


@pytest.mark.parametrize("verification", ["coupled", "rejection"])
@pytest.mark.parametrize("num_slots", [1, 3])
@pytest.mark.parametrize("is_by_chance", [False, True])
def test_the_cache_holds_the_text_in_the_drafts_own_tokens(
    networks, target, tmp_path, monkeypatch, num_slots, verification, is_by_chance
):
    if is_by_chance:
        schedule_at_random(monkeypatch, seed=num_slots)
    own, others = other_tokens()
    draft = loaded(permuted(networks[1], [own.index(each) if each in own else 0 for each in others]), tmp_path / "d")
    drafter = Watched(mapped(draft, map_of(byte_level(own), byte_level(others))), VOCAB_SIZE, num_slots, 80)
    drafter.seen, drafter.fresh = [], draft.share()
    engine = engine_over(target, drafter, num_slots=num_slots, verification=verification)
    found = run(engine, numbered(PROMPTS, temperature=0.7, max_tokens=20))
    assert sum(row.num_accepted_tokens for row in found) > 0
    for tokens, numbers in drafter.seen:
        for row, number in zip(tokens, numbers, strict=True):
            assert all(token_id < len(LETTERS) for token_id in row[:number]), "only common tokens are drafted"
    if verification == "coupled":
        plain = run(plain_engine(target, num_slots=num_slots), numbered(PROMPTS, temperature=0.7, max_tokens=20))
        assert outputs(found) == outputs(plain)


def test_a_text_that_the_draft_cannot_write_is_not_drafted_for(networks, target, tmp_path):
    own, others = other_tokens()
    others[others.index("7")] = "zz"  # a token made of two, so that no token of the draft writes a 7
    draft = loaded(networks[1], tmp_path / "d")
    drafter = mapped(draft, map_of(byte_level(own), byte_level(others)))
    engine = engine_over(target, ModelDrafter(drafter, VOCAB_SIZE, 3, 80))
    with_seven, without = [own.index(each) for each in "a7b"], [own.index(each) for each in "acb"]
    only_letters = dict.fromkeys(range(20), 100.0)  # the target writes letters from a to t
    found = run(engine, numbered([with_seven, without], max_tokens=12, logit_bias=only_letters))
    assert [row.num_draft_tokens > 0 for row in found] == [False, True]
    plain = run(plain_engine(target), numbered([with_seven, without], max_tokens=12, logit_bias=only_letters))
    assert outputs(found) == outputs(plain)


def test_a_text_longer_in_the_drafts_tokens_than_its_context_is_not_drafted_for(target, tmp_path):
    own, others = other_tokens()
    draft = loaded(build(llama_config(max_position_embeddings=24), seed=2), tmp_path / "d")
    drafter = ModelDrafter(mapped(draft, map_of(byte_level(own), byte_level(others))), VOCAB_SIZE, 3, 80)
    engine = engine_over(target, drafter)
    prompts = random_prompts([30, 20, 4])
    found = run(engine, numbered(prompts, max_tokens=40))
    assert found[0].num_draft_tokens == 0
    assert found[2].num_draft_tokens > 0
    assert outputs(found) == outputs(run(plain_engine(target), numbered(prompts, max_tokens=40)))


def test_options_refuse_a_map_of_nothing():
    options = EngineOptions()
    options.check_draft_vocabulary(None, "same")
    with pytest.raises(ValueError, match=r"models.draft_vocabulary is 'map'.*no draft is named; drop one"):
        options.check_draft_vocabulary(None, "map")
    with pytest.raises(ValueError, match=r"must be 'same' or 'map', got 'other'"):
        options.check_draft_vocabulary("draft", "other")
    with pytest.raises(ValueError, match=r"draft_window is 64"):
        EngineOptions(draft_window=64).check_draft_vocabulary("draft", "map")
