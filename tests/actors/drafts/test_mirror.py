"""A draft actor's copy of a lane's rows: an update fits the row, or the whole row is asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from actors.drafts.mirror import DraftMirror, DraftReply, DraftRequest, DraftTerms, RowOrigin, RowUpdate
from decoding import SamplingParams, Sequence
from decoding.choices import Verification
from decoding.drafters.model import ModelDrafter
from decoding.grammar.structured import Structured
from decoding.network.language_model import LanguageModel
from decoding.scope import ONE_FOR_ALL, Scope
from decoding.vocabulary.grammars import grammars_of
from tests.decoding.tiny import rows_over

NUM_SLOTS, MAX_LEN, K = 3, 64, 4
GREEDY = SamplingParams(temperature=0)
TEXT = tuple(range(30, 70))
Tokens = tuple[int, ...]


@pytest.fixture(scope="module")
def model(text_pair: tuple[str, str]) -> LanguageModel:
    return LanguageModel.load(text_pair[1], "cpu")


@pytest.fixture
def mirror(model: LanguageModel) -> DraftMirror:
    return DraftMirror(model.share(), terms(model))


def terms(model: LanguageModel, verification: str = "coupled", most_candidates: int = 0) -> DraftTerms:
    return DraftTerms(NUM_SLOTS, MAX_LEN, model.vocab_size, frozenset(), verification, most_candidates)  # type: ignore[arg-type]


def whole(
    slot: int, prompt: Tokens, params: SamplingParams = GREEDY, output: Tokens = (), scope: Scope = ONE_FOR_ALL
) -> RowUpdate:
    return RowUpdate(slot, K, 0, [*prompt, *output], RowOrigin(len(prompt), params, 7, scope))


def more(slot: int, start: int, *token_ids: int) -> RowUpdate:
    return RowUpdate(slot, K, start, token_ids)


def send(mirror: DraftMirror, *updates: RowUpdate, swaps: tuple[tuple[int, int], ...] = ()) -> list[list[int] | None]:
    return mirror.draft(DraftRequest(swaps, updates)).drafts


def fresh(model: LanguageModel, *texts: Tokens) -> list[list[int] | None]:
    """Return the drafts of a new mirror after these texts."""
    return send(DraftMirror(model.share(), terms(model)), *(whole(slot, text) for slot, text in enumerate(texts)))


@pytest.mark.parametrize(
    ("num_accepted", "others"), [*((num_accepted, (9,)) for num_accepted in range(K + 1)), (1, (11, 12, 13))]
)
def test_a_row_that_grew_by_updates_has_the_draft_of_the_whole_row(
    model: LanguageModel, mirror: DraftMirror, num_accepted: int, others: Tokens
) -> None:
    (drafted,) = send(mirror, whole(0, TEXT[:5]))
    assert drafted is not None
    new = (*drafted[:num_accepted], *others)
    assert send(mirror, more(0, 5, *new)) == fresh(model, (*TEXT[:5], *new))


def test_rows_that_change_slots_take_their_tokens_along(model: LanguageModel, mirror: DraftMirror) -> None:
    send(mirror, whole(0, TEXT[:5]), whole(2, TEXT[5:9]))
    found = send(mirror, more(0, 4, 3), more(2, 5, 4), swaps=((0, 2),))
    assert found == fresh(model, (*TEXT[5:9], 3), (*TEXT[:5], 4))


def test_new_rows_with_a_common_prefix_share_what_is_read(model: LanguageModel, mirror: DraftMirror) -> None:
    texts = (TEXT, TEXT, (*TEXT[:36], 5))
    forwards: list[int] = []
    run = mirror._model.forward
    mirror._model.forward = lambda starts, tokens, *rest, **named: (  # type: ignore[method-assign, assignment]
        forwards.append(sum(named.get("lengths") or [tokens.numel()])),
        run(starts, tokens, *rest, **named),
    )[1]
    assert send(mirror, *(whole(slot, text) for slot, text in enumerate(texts))) == fresh(model, *texts)
    assert sum(forwards) < 2 * len(TEXT)
    forwards.clear()
    other = Scope("other", "other")
    send(mirror, *(whole(slot, TEXT, scope=other) for slot in (0, 1)))  # in slots that hold the text for another scope
    assert len(TEXT) <= sum(forwards) < 2 * len(TEXT)


def test_new_rows_copy_nothing_of_the_rows_that_had_their_slots(model: LanguageModel, mirror: DraftMirror) -> None:
    others = tuple(range(100, 150))
    send(mirror, *(whole(slot, others[slot:]) for slot in range(NUM_SLOTS)))
    texts = (TEXT, (*TEXT[:36], 5, 6), (*TEXT[:36], 5, 7))
    assert send(mirror, *(whole(slot, text) for slot, text in enumerate(texts))) == fresh(model, *texts)
    short = tuple((*TEXT[:20], slot, 9) for slot in range(NUM_SLOTS))  # too little in common to wait for
    assert send(mirror, *(whole(slot, text) for slot, text in enumerate(short))) == fresh(model, *short)


@pytest.mark.parametrize("update", [more(1, 5, 9), more(0, 4, 9), more(0, 6, 9), more(2, 0, 9)])
def test_a_row_of_another_length_is_unknown_until_it_is_sent_whole(
    model: LanguageModel, mirror: DraftMirror, update: RowUpdate
) -> None:
    send(mirror, whole(0, TEXT[:5]))
    assert send(mirror, update) == [None]
    assert send(mirror, more(update.slot, update.start, 9)) == [None]
    assert send(mirror, whole(update.slot, TEXT[:7])) == fresh(model, TEXT[:7])


def test_a_request_that_arrives_twice_changes_no_draft_after_it(model: LanguageModel, mirror: DraftMirror) -> None:
    send(mirror, whole(0, TEXT[:5]))
    send(mirror, more(0, 5, 9))
    assert send(mirror, more(0, 5, 9)) == [None]
    assert send(mirror, whole(0, TEXT[:5], output=(9, 8))) == fresh(model, (*TEXT[:5], 9, 8))


def test_a_slot_that_the_lane_does_not_have_is_refused(mirror: DraftMirror) -> None:
    with pytest.raises(ValueError, match="slot 3, and there are 3"):
        send(mirror, whole(3, TEXT[:2]))


@pytest.mark.parametrize(
    ("verification", "most_candidates"), [("rejection", 0), ("rejection", 1), ("rejection", 16), ("unadjusted", 16)]
)
def test_a_reply_has_the_distributions_that_were_drawn_from(
    model: LanguageModel, verification: Verification, most_candidates: int
) -> None:
    params = SamplingParams(temperature=0.8, repetition_penalty=1.2)
    mirror = DraftMirror(model.share(), terms(model, verification, most_candidates))
    texts = [TEXT[:5], TEXT[5:7]]
    updates = [whole(slot, text, params) for slot, text in enumerate(texts)]
    reply: DraftReply = mirror.draft(DraftRequest([], updates))

    drafter = ModelDrafter(model.share(), model.vocab_size, NUM_SLOTS, MAX_LEN, most_candidates)
    sequences = tuple(Sequence(text, params, 7) for text in texts)
    drafter.admit([0, 1], sequences)
    with torch.inference_mode():
        draft = drafter.propose(rows_over(sequences, (K, K), verification))
    assert reply.drafts == draft.token_ids_BK.tolist()
    assert draft.probs_BKV is not None
    assert reply.distributions is not None
    ids_NM, probs_NM = (torch.from_numpy(part) for part in (reply.distributions.ids_NM, reply.distributions.probs_NM))
    probs_NV = torch.zeros(2 * K, model.vocab_size).scatter_(1, ids_NM.long(), probs_NM)
    assert probs_NV.equal(draft.probs_BKV.flatten(0, 1))
    if most_candidates:
        assert reply.distributions.ids_NM.shape == (2 * K, most_candidates)


@pytest.mark.parametrize("verification", ["coupled", "rejection"])
def test_a_draft_of_a_row_with_a_grammar_has_the_tokens_that_it_allows(
    model: LanguageModel, text_pair: tuple[str, str], verification: Verification
) -> None:
    """Also behind what was committed since the row was sent."""
    grammars = grammars_of(text_pair[0], model.vocab_size, frozenset({0}))
    of_lane = replace(terms(model, verification, 16), eos_token_ids=frozenset({0}))
    mirror = DraftMirror(model.share(), of_lane, grammars)
    structured = Structured(regex="[0-9]{6}(one|two)")
    params = SamplingParams(temperature=0.8, structured=structured)
    (first,) = send(mirror, whole(0, TEXT[:5], params))
    assert first
    matcher = grammars.matcher(structured)
    for committed in ([], first[:2]):
        drafted = first if not committed else send(mirror, more(0, 5, *committed))[0]
        assert drafted
        for place, token in enumerate(drafted):
            mask = matcher.mask(committed, drafted[:place])
            assert mask is not None
            assert mask[token // 32] >> (token % 32) & 1
