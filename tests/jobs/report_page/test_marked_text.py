"""The pieces of a text are the text, and rejected ones are what the draft had in mind at their place."""

import pytest

from jobs.report_page.rounds import RecordedRounds, RoundOfText, marked_text, rounds_of, token_texts
from pipeline.text.codec import TextCodec

TEXT = "The raven flew to Zürich, 東京 and \U0001f426.\n"


@pytest.fixture(scope="module")
def codec() -> TextCodec:
    return TextCodec.load("examples/tiny_pair/target")


def _round(num_accepted: int, *rejected: int) -> dict[str, object]:
    return {"num_accepted_tokens": num_accepted, "rejected_token_ids": list(rejected)}


def test_the_texts_of_the_tokens_are_the_text_also_where_tokens_share_a_character(codec):
    token_ids = codec.encode(TEXT, is_chat=False)
    assert len(token_ids) > len(TEXT.encode()) / 6
    assert "".join(token_texts(codec, (), token_ids)) == TEXT
    assert "".join(token_texts(codec, (), token_ids[:-9])) == codec.decode(token_ids[:-9])


def test_pieces_are_accepted_rejected_and_corrected_in_their_order(codec):
    token_ids = codec.encode("Once upon a time there was a raven", is_chat=False)
    instead = codec.encode(" a cat", is_chat=False)
    last = len(token_ids) - 5
    rounds = list(rounds_of([_round(2, *instead), _round(0), _round(last)], [len(token_ids)]))
    pieces = marked_text(codec, "", token_ids, rounds)
    assert [(piece.mark, piece.round) for piece in pieces] == [
        ("accepted", 0),
        ("rejected", 0),
        ("corrected", 0),
        ("own", 1),
        ("accepted", 2),
        ("own", 2),
    ]
    assert pieces[1].text == codec.decode(instead)
    assert "".join(piece.text for piece in pieces if piece.mark != "rejected") == codec.decode(token_ids)


def test_a_round_that_ended_inside_its_draft_has_no_token_of_its_own():
    (only,) = rounds_of([_round(2, 7, 8)], [2])
    assert (only.accepted, only.own, only.num_drafted) == (range(2), None, 4)


def test_each_turn_of_a_program_may_end_inside_a_draft():
    rounds = list(rounds_of([_round(1, 5), _round(2, 9), _round(0, 4), _round(1, 6)], [4, 3]))
    assert [(each.accepted.start, each.own) for each in rounds] == [(0, 1), (2, None), (4, 4), (5, 6)]


def test_tokens_behind_the_end_of_a_text_were_not_judged():
    recorded = RecordedRounds()
    recorded.add_sample(rounds_of([_round(3, 9), _round(1, 8, 8), _round(2, 7)], [8]))
    assert recorded.num_judged == 3 + 1 + 1 + 1 + 2
    assert recorded.acceptance == 6 / 8
    assert recorded.mean_length == 3.0
    assert list(recorded.by_drafted()) == [(0, 0, 0), (1, 0, 0), (2, 0, 0), (3, 2, 0), (4, 1, 0)]


def test_the_prediction_is_the_papers_formula():
    recorded = RecordedRounds()
    recorded.add_sample([RoundOfText(0, range(3), 3, (1,)), RoundOfText(1, range(4, 5), 5, ())])
    alpha = 4 / 5
    expected = ((1 - alpha**5) / (1 - alpha) + (1 - alpha**2) / (1 - alpha)) / 2
    assert recorded.predicted_length == pytest.approx(expected)
    everything = RecordedRounds()
    everything.add_sample([RoundOfText(0, range(4), 4, ())])
    assert everything.predicted_length == 5.0, "a draft that is always right"
