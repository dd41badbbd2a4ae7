"""A remote drafter sends the tokens that are new, and uses the replies of its own round alone."""

from __future__ import annotations

import pytest

from actors.drafts.link import DraftLink
from actors.drafts.mirror import DraftReply, DraftRequest, DraftTerms, RowUpdate
from actors.drafts.remote_drafter import RemoteDrafter, make_draft
from actors.placement import DraftSettings
from decoding import SamplingParams, Sequence
from decoding.choices import Verification
from decoding.sampling.rows import Rows
from tests.actors.drafts.fake_calls import FakeCalls, Reference, actor_named
from tests.decoding.tiny import rows_over
from tests.jobs.runs import wait_until

VOCAB_SIZE, TERMS = 300, DraftTerms(4, 64, 300, frozenset(), "coupled", 0)


class DraftActor:
    """Drafts 7, 8, 9 for every row, and keeps the updates that it was sent. With `is_late` its replies do not come."""

    def __init__(self) -> None:
        self.updates: list[list[RowUpdate]] = []
        self.swaps: list[tuple[int, int]] = []
        self.num_begun = 0
        self.is_late = self.has_forgotten = False
        self.late: list[Reference] = []
        self.unknown_slots: set[int] = set()
        self.handle = actor_named("01", draft=self._draft)

    def _draft(self, lane: str, terms: DraftTerms | None, request: DraftRequest) -> Reference:
        if self.has_forgotten:
            return Reference(None)
        self.num_begun += terms is not None
        self.swaps += request.swaps
        updates = list(request.updates)
        self.updates.append(updates)
        drafts = [None if row.slot in self.unknown_slots else [7, 8, 9][: row.max_draft_tokens] for row in updates]
        self.late.append(Reference(DraftReply(drafts), is_there=not self.is_late))
        return self.late[-1]

    def catch_up(self) -> None:
        """Let every late reply come."""
        self.is_late = False
        for reference in self.late:
            reference.is_there = True


@pytest.fixture
def actor() -> DraftActor:
    return DraftActor()


@pytest.fixture
def drafter(actor: DraftActor) -> RemoteDrafter:
    link = DraftLink(lambda lost: Reference(actor.handle), DraftSettings(), calls=FakeCalls())
    return RemoteDrafter(link, "lane", TERMS, 1.0)


def rows_of(sequences: list[Sequence], *limits: int) -> Rows:
    return rows_over(sequences, limits)


def sequence(*prompt: int) -> Sequence:
    return Sequence.create(prompt, SamplingParams(max_tokens=50))


def drafted(drafter: RemoteDrafter, rows: Rows) -> list[int]:
    return drafter.propose(rows).num_draft_tokens_B.tolist()


def test_a_row_is_sent_whole_once_and_then_its_new_tokens(drafter: RemoteDrafter, actor: DraftActor) -> None:
    row = sequence(1, 2, 3)
    assert drafter.propose(rows_of([row], 3)).token_ids_BK.tolist() == [[7, 8, 9]]
    row.output_token_ids += [7, 8, 5]
    drafter.propose(rows_of([row], 2))
    row.output_token_ids += [6]
    drafter.propose(rows_of([row], 3))
    first, *later = [updates[0] for updates in actor.updates]
    assert first.origin is not None
    assert (first.origin.num_prompt_tokens, first.origin.params) == (3, row.params)
    assert (first.start, first.token_ids) == (0, [1, 2, 3])
    assert later == [RowUpdate(0, 2, 3, [7, 8, 5]), RowUpdate(0, 3, 6, [6])]
    assert actor.num_begun == 1


def test_tokens_of_a_round_without_a_draft_are_sent_with_the_next(drafter: RemoteDrafter, actor: DraftActor) -> None:
    rows = [sequence(1, 2), sequence(3)]
    drafter.propose(rows_of(rows, 3, 3))
    for row in rows:
        row.output_token_ids += [5]
    assert drafted(drafter, rows_of(rows, 0, 2)) == [0, 2]
    for row in rows:
        row.output_token_ids += [7]
    drafter.propose(rows_of(rows, 1, 1))
    assert actor.updates[1:] == [[RowUpdate(1, 2, 1, [5])], [RowUpdate(0, 1, 2, [5, 7]), RowUpdate(1, 1, 2, [7])]]


def test_rows_that_change_slots_are_not_sent_again(drafter: RemoteDrafter, actor: DraftActor) -> None:
    first, second = sequence(1), sequence(2)
    drafter.propose(rows_of([first, second], 3, 3))
    drafter.swap(0, 1)
    for row in (first, second):
        row.output_token_ids += [7, 5]
    drafter.propose(rows_of([second, first], 3, 3))
    assert actor.swaps == [(0, 1)]
    assert actor.updates[1] == [RowUpdate(0, 3, 1, [7, 5]), RowUpdate(1, 3, 1, [7, 5])]


@pytest.mark.parametrize("how", ["begin", "reset", "another", "unknown"])
def test_a_row_that_the_actor_does_not_know_is_sent_whole(drafter: RemoteDrafter, actor: DraftActor, how: str) -> None:
    row = sequence(1)
    actor.unknown_slots = {0} if how == "unknown" else set()
    drafter.propose(rows_of([row], 3))
    if how == "begin":
        drafter.begin(0, None, 0)
    elif how == "reset":
        drafter.reset(0)
    elif how == "another":
        row = sequence(2)
    row.output_token_ids += [5]
    drafter.propose(rows_of([row], 3))
    assert [updates[0].start for updates in actor.updates] == [0, 0]
    assert actor.updates[1][0].token_ids == row.token_ids


def test_a_late_reply_is_not_used_for_another_round(drafter: RemoteDrafter, actor: DraftActor) -> None:
    row = sequence(1)
    actor.is_late = True
    assert drafted(drafter, rows_of([row], 3)) == [0]
    row.output_token_ids += [5]
    assert drafted(drafter, rows_of([row], 3)) == [0], "still late: it is not waited for again"
    assert len(actor.updates) == 1
    actor.catch_up()
    assert drafted(drafter, rows_of([row], 3)) == [0], "not what was drafted for this round"


def test_a_late_reply_is_noticed_by_other_lanes(drafter: RemoteDrafter, actor: DraftActor) -> None:
    """The lane that asked may be idle, or gone with its engine."""
    beside = RemoteDrafter(drafter._link, "beside", TERMS, 1.0)
    actor.is_late = True
    drafter.propose(rows_of([sequence(1)], 3))
    assert not beside.has_model
    actor.catch_up()
    wait_until(lambda: beside.has_model)
    assert drafted(beside, rows_of([sequence(1)], 3)) == [3]


def test_a_request_of_a_dropped_round_is_late_only_after_its_time(drafter: RemoteDrafter, actor: DraftActor) -> None:
    """An engine that was cleared goes on with other rows at once."""
    actor.is_late = True
    drafter.ask(rows_of([sequence(1)], 3))
    drafter.ask(rows_of([sequence(2)], 3))
    assert not drafter._link.is_late
    drafter._timeout_s = 0.0
    drafter.ask(rows_of([sequence(2)], 3))
    assert drafter._link.is_late


def test_a_round_without_drafts_sends_nothing(drafter: RemoteDrafter, actor: DraftActor) -> None:
    assert drafted(drafter, rows_of([sequence(1), sequence(2)], 0, 0)) == [0, 0]
    assert actor.updates == []


def test_a_lane_that_the_actor_has_forgotten_begins_anew(drafter: RemoteDrafter, actor: DraftActor) -> None:
    row = sequence(1)
    drafter.propose(rows_of([row], 3))
    actor.has_forgotten = True
    assert drafted(drafter, rows_of([row], 3)) == [0]
    actor.has_forgotten = False
    assert drafted(drafter, rows_of([row], 3)) == [3]
    assert actor.num_begun == 2
    assert actor.updates[-1][0].origin is not None


@pytest.mark.parametrize("verification", ["rejection", "unadjusted"])
def test_drafted_tokens_without_their_distributions_are_dropped_unless_coupled(verification: Verification) -> None:
    rows = rows_over([sequence(1, 2)], [3], verification)
    assert make_draft(rows, {0: [5, 6, 7]}, None, VOCAB_SIZE).num_draft_tokens_B.tolist() == [0]
