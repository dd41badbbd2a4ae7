"""The rows as a draft actor knows them: what is told fits, or the row is asked for again."""

from __future__ import annotations

import pytest
import torch

from actors.drafts.messages import (
    Missed,
    Newcomer,
    Progress,
    Reply,
    Request,
    decode_reply,
    encode_reply,
    id_bytes,
    to_ids,
)
from actors.drafts.mirror import DraftMirror, DraftTerms
from decoding import SamplingParams, Sequence
from decoding.drafters.model import ModelDrafter
from decoding.network.language_model import LanguageModel
from decoding.sampling.rows import Rows, sampling_batch

NUM_SLOTS, MAX_LEN, K = 3, 64, 4
GREEDY = SamplingParams(temperature=0)
TEXT = tuple(range(30, 70))


@pytest.fixture(scope="module")
def model(text_pair: tuple[str, str]) -> LanguageModel:
    return LanguageModel.load(text_pair[1], "cpu")


@pytest.fixture
def mirror(model: LanguageModel) -> DraftMirror:
    return DraftMirror(model.share(), terms(model))


def terms(model: LanguageModel, verification: str = "coupled", most_candidates: int = 0) -> DraftTerms:
    return DraftTerms(NUM_SLOTS, MAX_LEN, model.vocab_size, frozenset(), verification, most_candidates)  # type: ignore[arg-type]


def newcomer(
    slot: int, prompt: tuple[int, ...], params: SamplingParams = GREEDY, output: tuple[int, ...] = ()
) -> Newcomer:
    return Newcomer(slot, K, to_ids(prompt), to_ids(output), params, 7)


def fresh(model: LanguageModel, *texts: tuple[int, ...]) -> Reply:
    """What a mirror that knew nothing drafts after these texts."""
    return DraftMirror(model.share(), terms(model)).draft(
        Request(), [newcomer(slot, text) for slot, text in enumerate(texts)]
    )


def test_a_row_that_is_told_by_two_numbers_is_the_row_that_is_told_whole(
    model: LanguageModel, mirror: DraftMirror
) -> None:
    (drafted,) = mirror.draft(Request(), [newcomer(0, TEXT[:5])]).drafts
    assert drafted is not None
    text = (*TEXT[:5], *drafted[:2], 9)
    assert mirror.draft(Request(progress=(Progress(0, K, 2, 9, len(text)),)), []) == fresh(model, text)


def test_tokens_that_were_missed_make_the_same_row(model: LanguageModel, mirror: DraftMirror) -> None:
    (drafted,) = mirror.draft(Request(), [newcomer(0, TEXT[:5])]).drafts
    assert drafted is not None
    missed = (*drafted[:1], 11, 12, 13)
    told = mirror.draft(Request(missed=(Missed(0, K, 5, missed),)), [])
    assert told == fresh(model, (*TEXT[:5], *missed))


def test_rows_that_change_places_take_along_what_is_known(model: LanguageModel, mirror: DraftMirror) -> None:
    mirror.draft(Request(), [newcomer(0, TEXT[:5]), newcomer(2, TEXT[5:9])])
    told = mirror.draft(Request(swaps=((0, 2),), missed=(Missed(0, K, 4, (3,)), Missed(2, K, 5, (4,)))), [])
    assert told == fresh(model, (*TEXT[5:9], 3), (*TEXT[:5], 4))


def test_newcomers_that_begin_alike_share_what_is_read(model: LanguageModel, mirror: DraftMirror) -> None:
    texts = (TEXT, TEXT, (*TEXT[:36], 5))
    forwards: list[int] = []
    run = mirror._model.forward
    mirror._model.forward = lambda starts, tokens, *rest, **named: (  # type: ignore[method-assign, assignment]
        forwards.append(sum(named.get("lengths") or [tokens.numel()])),
        run(starts, tokens, *rest, **named),
    )[1]
    assert mirror.draft(Request(), [newcomer(slot, text) for slot, text in enumerate(texts)]) == fresh(model, *texts)
    assert sum(forwards) < 2 * len(TEXT)


def test_newcomers_in_slots_of_others_copy_nothing_of_them(model: LanguageModel, mirror: DraftMirror) -> None:
    others = tuple(range(100, 150))
    mirror.draft(Request(), [newcomer(slot, others[slot:]) for slot in range(NUM_SLOTS)])
    texts = (TEXT, (*TEXT[:36], 5, 6), (*TEXT[:36], 5, 7))
    told = mirror.draft(Request(), [newcomer(slot, text) for slot, text in enumerate(texts)])
    assert told == fresh(model, *texts)
    short = tuple((*TEXT[:20], slot, 9) for slot in range(NUM_SLOTS))  # too little in common to wait for
    assert mirror.draft(Request(), [newcomer(slot, text) for slot, text in enumerate(short)]) == fresh(model, *short)


@pytest.mark.parametrize(
    "request_",
    [
        Request(progress=(Progress(1, K, 0, 9, 6),)),  # nobody stands there
        Request(progress=(Progress(0, K, K + 1, 9, 5 + K + 2),)),  # more than was drafted
        Request(progress=(Progress(0, K, 1, 9, 6),)),  # another length
        Request(missed=(Missed(0, K, 4, (9,)),)),
        Request(missed=(Missed(2, K, 0, (9,)),)),
    ],
)
def test_a_row_that_does_not_fit_is_unknown_until_it_is_told_whole(
    model: LanguageModel, mirror: DraftMirror, request_: Request
) -> None:
    mirror.draft(Request(), [newcomer(0, TEXT[:5])])
    assert mirror.draft(request_, []).drafts == (None,)
    told = [*request_.progress, *request_.missed][0]
    again = mirror.draft(Request(), [newcomer(told.slot, TEXT[:7])])
    assert again == fresh(model, TEXT[:7])


def test_a_slot_that_is_not_there_is_refused(mirror: DraftMirror) -> None:
    with pytest.raises(ValueError, match="slot 3, and there are 3"):
        mirror.draft(Request(), [newcomer(3, TEXT[:2])])


@pytest.mark.parametrize("most_candidates", [0, 1, 16])
def test_the_law_that_crosses_is_the_one_that_was_drawn_from(model: LanguageModel, most_candidates: int) -> None:
    params = SamplingParams(temperature=0.8, repetition_penalty=1.2)
    mirror = DraftMirror(model.share(), terms(model, "rejection", most_candidates))
    texts = [TEXT[:5], TEXT[5:7]]
    size = id_bytes(model.vocab_size)
    sent = mirror.draft(Request(), [newcomer(slot, text, params) for slot, text in enumerate(texts)])
    reply = decode_reply(encode_reply(sent, size), 2, size)

    drafter = ModelDrafter(model.share(), model.vocab_size, NUM_SLOTS, MAX_LEN, most_candidates)
    sequences = tuple(Sequence(text, params, 7) for text in texts)
    drafter.admit([0, 1], sequences)
    rows = Rows(sequences, sampling_batch(sequences, frozenset(), model.device), (K, K), "rejection")
    with torch.inference_mode():
        draft = drafter.propose(rows)
    assert [list(row or ()) for row in reply.drafts] == draft.token_ids_BK.tolist()
    assert draft.probs_BKV is not None
    assert reply.law is not None
    law = torch.zeros(2 * K, model.vocab_size)
    law.scatter_(1, torch.from_numpy(reply.law.ids_NM), torch.from_numpy(reply.law.probs_NM))
    assert law.equal(draft.probs_BKV.flatten(0, 1))
    if most_candidates:
        assert reply.law.ids_NM.shape == (2 * K, most_candidates)
