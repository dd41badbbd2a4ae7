"""What a lane tells its draft actor, and which answers it takes."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from actors.drafts.drafter import RemoteDrafter
from actors.drafts.link import DraftLink
from actors.drafts.messages import Missed, Newcomer, Progress, Reply, decode_request, encode_reply
from actors.drafts.mirror import DraftTerms
from actors.settings import DraftSettings
from decoding import SamplingParams, Sequence
from decoding.sampling.rows import Rows, sampling_batch
from tests.jobs.runs import wait_until

VOCAB_SIZE, TERMS = 300, DraftTerms(4, 64, 300, frozenset(), "coupled", 0)
Told = list[Progress | Missed | Newcomer]


class DraftActor:
    """Drafts 7, 8, 9 for every row, and keeps what it was told. Its answers are there, or not, as `is_ready` says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.told: list[Told] = []
        self.swaps: list[tuple[int, int]] = []
        self.num_begun = 0
        self.is_ready: Callable[[], bool] = lambda: True
        self.draft = SimpleNamespace(remote=self._draft)
        monkeypatch.setattr("ray.wait", self._wait)
        monkeypatch.setattr("ray.get", lambda ref: ref)

    def _wait(self, refs: list[object], num_returns: int = 1, timeout: float = 0) -> tuple[list[object], list[object]]:
        return (refs, []) if refs[0] is self or self.is_ready() else ([], refs)

    def _draft(self, lane: str, terms: DraftTerms | None, message: bytes, newcomers: list[Newcomer]) -> bytes | None:
        self.num_begun += terms is not None
        request = decode_request(message, 2)
        self.swaps += request.swaps
        self.told.append([*request.progress, *request.missed, *newcomers])
        return encode_reply(Reply(tuple((7, 8, 9)[: row.limit] for row in self.told[-1])), 2)


@pytest.fixture
def actor(monkeypatch: pytest.MonkeyPatch) -> DraftActor:
    return DraftActor(monkeypatch)


@pytest.fixture
def drafter(actor: DraftActor) -> RemoteDrafter:
    return RemoteDrafter(DraftLink(lambda lost: actor, DraftSettings()), "lane", TERMS, 1.0)


def rows_of(sequences: list[Sequence], *limits: int) -> Rows:
    sampling = sampling_batch(tuple(sequences), frozenset(), torch.device("cpu"))
    return Rows(tuple(sequences), sampling, limits, "coupled")


def sequence(*prompt: int) -> Sequence:
    return Sequence.create(prompt, SamplingParams(max_tokens=50))


def test_a_row_is_sent_whole_once_and_then_by_what_stood(drafter: RemoteDrafter, actor: DraftActor) -> None:
    row = sequence(1, 2, 3)
    assert drafter.propose(rows_of([row], 3)).token_ids_BK.tolist() == [[7, 8, 9]]
    row.output_token_ids += [7, 8, 5]
    drafter.propose(rows_of([row], 2))
    row.output_token_ids += [6]
    drafter.propose(rows_of([row], 3))
    first, *later = [told[0] for told in actor.told]
    assert isinstance(first, Newcomer)
    assert first.prompt_ids.tolist() == [1, 2, 3]
    assert later == [Progress(0, 2, 2, 5, 6), Progress(0, 3, 0, 6, 7)]
    assert actor.num_begun == 1


def test_a_round_without_a_draft_is_told_with_the_next_one(drafter: RemoteDrafter, actor: DraftActor) -> None:
    rows = [sequence(1, 2), sequence(3)]
    drafter.propose(rows_of(rows, 3, 3))
    for row in rows:
        row.output_token_ids += [5]
    assert drafter.propose(rows_of(rows, 0, 2)).num_draft_tokens_B.tolist() == [0, 2]
    for row in rows:
        row.output_token_ids += [7]
    drafter.propose(rows_of(rows, 1, 1))
    assert actor.told[1:] == [
        [Progress(1, 2, 0, 5, 2)],
        [Progress(1, 1, 0, 7, 3), Missed(0, 1, 2, (5, 7))],
    ]


def test_tokens_that_are_not_what_was_drafted_are_told_as_they_are(drafter: RemoteDrafter, actor: DraftActor) -> None:
    row = sequence(1, 2, 3)
    drafter.propose(rows_of([row], 3))
    row.output_token_ids += [7, 4, 4]
    drafter.propose(rows_of([row], 3))
    assert actor.told[1] == [Missed(0, 3, 3, (7, 4, 4))]


def test_rows_that_change_places_are_told_so_and_not_sent_again(drafter: RemoteDrafter, actor: DraftActor) -> None:
    first, second = sequence(1), sequence(2)
    drafter.propose(rows_of([first, second], 3, 3))
    drafter.swap(0, 1)
    for row in (first, second):
        row.output_token_ids += [7, 5]
    drafter.propose(rows_of([second, first], 3, 3))
    assert actor.swaps == [(0, 1)]
    assert actor.told[1] == [Progress(0, 3, 1, 5, 3), Progress(1, 3, 1, 5, 3)]


@pytest.mark.parametrize("forget", ["begin", "reset", "another"])
def test_a_row_that_is_not_known_any_more_is_sent_whole(drafter: RemoteDrafter, actor: DraftActor, forget: str) -> None:
    row = sequence(1)
    drafter.propose(rows_of([row], 3))
    if forget == "begin":
        drafter.begin(0, None, 0)
    elif forget == "reset":
        drafter.reset(0)
    else:
        row = sequence(2)
    drafter.propose(rows_of([row], 3))
    assert [type(told[0]) for told in actor.told] == [Newcomer, Newcomer]


def test_an_answer_that_comes_too_late_is_not_used_for_another_round(drafter: RemoteDrafter, actor: DraftActor) -> None:
    row = sequence(1)
    actor.is_ready = lambda: False
    assert drafter.propose(rows_of([row], 3)).num_draft_tokens_B.tolist() == [0], "late"
    row.output_token_ids += [5]
    assert drafter.propose(rows_of([row], 3)).num_draft_tokens_B.tolist() == [0], "still late: nothing is waited for"
    assert len(actor.told) == 1
    actor.is_ready = lambda: True
    assert drafter.propose(rows_of([row], 3)).num_draft_tokens_B.tolist() == [0], "not what is drafted for this round"


def test_a_late_answer_is_not_waited_for_by_its_lane_alone(drafter: RemoteDrafter, actor: DraftActor) -> None:
    """Whoever asked for it may be idle, or gone with its engine."""
    link = drafter._link
    beside = RemoteDrafter(link, "beside", TERMS, 1.0)
    actor.is_ready = lambda: False
    drafter.propose(rows_of([sequence(1)], 3))
    assert not beside.has_model
    actor.is_ready = lambda: True
    wait_until(lambda: beside.has_model)
    assert beside.propose(rows_of([sequence(1)], 3)).num_draft_tokens_B.tolist() == [3]


def test_a_request_that_nobody_waits_for_is_late_only_when_its_time_is_over(
    drafter: RemoteDrafter, actor: DraftActor
) -> None:
    """An engine that was cleared goes on with other rows at once."""
    actor.is_ready = lambda: False
    drafter.ask(rows_of([sequence(1)], 3))
    drafter.ask(rows_of([sequence(2)], 3))
    assert not drafter._link.is_late
    drafter._timeout_s = 0.0
    drafter.ask(rows_of([sequence(2)], 3))
    assert drafter._link.is_late


def test_more_missed_tokens_than_a_message_can_count_are_sent_with_the_whole_row(
    drafter: RemoteDrafter, actor: DraftActor
) -> None:
    row = sequence(1)
    drafter.propose(rows_of([row], 3))
    row.output_token_ids += [5] * 65_535
    drafter.propose(rows_of([row], 3))
    row.output_token_ids += [5] * 65_536
    drafter.propose(rows_of([row], 3))
    assert [type(told[0]) for told in actor.told] == [Newcomer, Missed, Newcomer]


def test_nothing_is_said_where_nobody_drafts(drafter: RemoteDrafter, actor: DraftActor) -> None:
    assert drafter.propose(rows_of([sequence(1), sequence(2)], 0, 0)).num_draft_tokens_B.tolist() == [0, 0]
    assert actor.told == []


def test_a_lane_that_the_actor_has_forgotten_is_told_anew(drafter: RemoteDrafter, actor: DraftActor) -> None:
    row = sequence(1)
    drafter.propose(rows_of([row], 3))
    draft, actor.draft = actor.draft, SimpleNamespace(remote=lambda *_: None)
    assert drafter.propose(rows_of([row], 3)).num_draft_tokens_B.tolist() == [0]
    actor.draft = draft
    assert drafter.propose(rows_of([row], 3)).num_draft_tokens_B.tolist() == [3]
    assert actor.num_begun == 2
    assert isinstance(actor.told[-1][0], Newcomer)
