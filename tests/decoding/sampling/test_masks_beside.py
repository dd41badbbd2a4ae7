"""Masks that are computed beside a forward are those that are computed without it, for all rows at once."""

import random
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch

from decoding import SamplingParams, Sequence
from decoding.grammar.structured import Structured
from decoding.sampling.judging import MasksBeside, ScoreRequest, _Answers, masks_of
from decoding.sampling.masks import TokenMasks
from decoding.sampling.rows import Rows, sampling_batch
from decoding.sampling.rules import COUPLED
from decoding.sampling.verdicts import Draft
from tests.decoding.grammar.tiny_grammars import END, STRUCTURED, TOKENS, allowed, grammars

GRAMMARS = grammars()
CPU = torch.device("cpu")
DEAD = Structured(grammar='start: "a" "xyz"')  # of which the tokens can write no x


def _row(structured: Structured | None, output: list[int]) -> Sequence:
    """A row that has written this, with a matcher that has read nothing."""
    params = SamplingParams(structured=structured, max_tokens=1000)
    sequence = Sequence.create([1, 2], params)
    sequence.matcher = None if structured is None else GRAMMARS.matcher(structured)
    _write(sequence, output)
    return sequence


def _write(sequence: Sequence, output: list[int]) -> None:
    if output:
        sequence.commit(output, num_draft_tokens=len(output) - 1, eos_token_ids=frozenset())


def _continued(sequence: Sequence, most: int, chance: random.Random) -> list[int]:
    """At most this many random tokens that the row's grammar allows; none of them ends the text."""
    if sequence.matcher is None:
        return [chance.randrange(len(TOKENS)) for _ in range(most)]
    matcher, new = GRAMMARS.matcher(sequence.params.structured), []
    while len(new) < most:
        free = [token for token in allowed(matcher.mask([*sequence.output_token_ids, *new])) if token != END]
        if not free:
            break
        new.append(chance.choice(free))
    return new


def _drafted(sequence: Sequence, chance: random.Random) -> list[int]:
    """A draft that the grammar allows, and sometimes an end token or any other token somewhere in it."""
    draft = _continued(sequence, chance.randrange(5), chance)
    if draft and chance.random() < 0.3:
        draft[chance.randrange(len(draft))] = END
    if draft and chance.random() < 0.3:
        draft[chance.randrange(len(draft))] = chance.randrange(len(TOKENS))
    return draft


def _request(rows: list[Sequence], drafts: list[list[int]] | None = None) -> ScoreRequest:
    """A round of these rows and their drafts, behind which there are other tokens that do not count."""
    drafts = drafts or [[] for _ in rows]
    counts = [len(draft) for draft in drafts]
    padded = [[*draft, *[5] * (max(counts) - len(draft))] for draft in drafts]
    draft = Draft(torch.tensor(padded, dtype=torch.int64).view(len(rows), max(counts)), torch.tensor(counts))
    sampling = sampling_batch(tuple(rows), frozenset({END}), CPU)
    return ScoreRequest(Rows(tuple(rows), sampling, tuple(counts), COUPLED), draft, (None,) * len(rows))


@pytest.mark.parametrize("seed", range(6))
def test_the_masks_of_all_rows_at_once_are_those_of_each_row_alone_round_after_round(seed):
    chance = random.Random(seed)
    kinds = [*STRUCTURED, None] if seed % 2 else STRUCTURED
    rows = [_row(chance.choice(kinds), []) for _ in range(chance.choice([1, 2, 5, 9]))]
    rows.append(_row(chance.choice(STRUCTURED), []))
    for _ in range(12):
        request = _request(rows, [_drafted(row, chance) for row in rows])
        found = masks_of(request)
        drafted, counts = request.draft_on_host
        fresh = [_row(row.params.structured, row.output_token_ids) for row in rows]
        wanted = TokenMasks.of(fresh, drafted, 0, 1 + max(counts), counts)
        assert found is not None
        assert found.rows == tuple(row for row, each in enumerate(rows) if each.matcher is not None)
        logits_BJV = torch.randn(len(rows), 1 + max(counts), len(TOKENS))
        assert torch.equal(found.apply(logits_BJV), wanted.apply(logits_BJV))
        assert torch.equal(found.apply(logits_BJV.bfloat16()), wanted.apply(logits_BJV.bfloat16()))
        for row in rows:  # tokens that may be others than the drafted ones
            _write(row, _continued(row, 1 + chance.randrange(3), chance))
            if row.matcher is not None and chance.random() < 0.3:
                row.matcher.forced(row.output_token_ids)


def test_a_row_whose_text_cannot_go_on_leaves_the_masks_to_be_computed_row_by_row():
    stuck, other = _row(DEAD, [TOKENS.index(b"a")]), _row(STRUCTURED[0], [])
    assert masks_of(_request([other])) is not None
    assert masks_of(_request([other, stuck])) is None
    assert masks_of(_request([other])) is not None, "the other row goes on"


def test_a_row_whose_committed_tokens_its_grammar_does_not_allow_leaves_the_masks_to_be_computed_row_by_row():
    row = _row(STRUCTURED[0], [])
    assert masks_of(_request([row])) is not None
    _write(row, [TOKENS.index(b"k"), TOKENS.index(b"k")])
    assert masks_of(_request([row])) is None


def _at_once(begin: Callable[[], None]) -> None:
    begin()


class _Clock:
    """A clock that goes on by what it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


class _Late:
    """Masks that come as late as the clock is moved while they are awaited."""

    def __init__(self, clock: _Clock, seconds: float, answers: _Answers) -> None:
        self.clock, self.seconds, self.answers = clock, seconds, answers

    def get(self) -> object:
        self.clock.now += self.seconds
        return self.answers.get()


@pytest.mark.parametrize(
    ("waited", "rounds_without"), [([0.0], 0), ([0.4], 0), ([50.0, 0, 0, 0, 0, 0, 0, 0], 0), ([0.9], 64)]
)
def test_rounds_go_without_masks_for_a_while_if_these_take_much_longer_than_forwards_again_and_again(
    monkeypatch, waited, rounds_without
):
    clock, beside, request = _Clock(), MasksBeside(), _request([_row(STRUCTURED[0], [])])
    monkeypatch.setattr("decoding.sampling.judging.time", clock)
    taken = []
    for number in range(80):
        beside.begin(request, _at_once)
        if beside._answers is not None:
            beside._answers = _Late(clock, waited[number % len(waited)], beside._answers)
        clock.now += 1.0  # the forward
        taken.append(beside.take() is not None)
    first = taken.index(False) if rounds_without else len(taken)
    assert taken == [*[True] * first, *[False] * rounds_without, *[True] * (80 - first - rounds_without)]
    assert first > 4


def test_rounds_go_without_masks_for_a_while_if_a_row_has_none():
    beside, stuck = MasksBeside(), _request([_row(DEAD, [TOKENS.index(b"a")])])
    beside.begin(stuck, _at_once)
    assert beside.take() is None
    for _ in range(64):
        beside.begin(_request([_row(STRUCTURED[0], [])]), _at_once)
        assert beside.take() is None
    beside.begin(_request([_row(STRUCTURED[0], [])]), _at_once)
    assert beside.take() is not None


def test_masks_that_were_not_taken_are_not_those_of_the_next_round():
    beside = MasksBeside()
    beside.begin(_request([_row(STRUCTURED[0], [])]), _at_once)
    beside.begin(_request([_row(None, [])]), _at_once)
    assert beside.take() is None


def test_an_error_over_masks_reaches_the_thread_that_asked_and_the_next_round_has_masks(monkeypatch):
    def fail(*_args: object) -> None:
        raise OSError("no thread can be had")

    beside = MasksBeside()
    with monkeypatch.context() as broken:
        broken.setattr("decoding.sampling.judging.masks_at_once", fail)
        beside.begin(_request([_row(STRUCTURED[0], [])]), _at_once)
        with pytest.raises(OSError, match="no thread can be had"):
            beside.take()
    beside.begin(_request([_row(STRUCTURED[0], [])]), _at_once)
    assert beside.take() is not None


class _Interrupted:
    """Answers whose first receiver is interrupted once it has one, or while it waits."""

    def __init__(self, answers: _Answers, *, has_one: bool) -> None:
        self.answers, self.has_one, self.asked = answers, has_one, 0

    def get(self) -> object:
        self.asked += 1
        if self.asked > 1:
            return self.answers.get()
        if self.has_one:
            self.answers.get()
        raise KeyboardInterrupt


@pytest.mark.parametrize("has_one", [False, True])
def test_an_interrupt_while_masks_are_awaited_leaves_none_under_way(has_one):
    beside = MasksBeside()
    beside.begin(_request([_row(STRUCTURED[0], [])]), _at_once)
    answers = _Interrupted(beside._answers, has_one=has_one)
    beside._answers = answers
    with pytest.raises(KeyboardInterrupt):
        beside.take()
    assert answers.asked == 2, "the thread may use the rows' matchers until it answers"
    assert beside._answers is None
    beside.begin(_request([_row(STRUCTURED[0], [])]), _at_once)
    assert beside.take() is not None


_FORKED = """
import os, signal
import torch
torch.set_num_threads(1)
from tests.decoding.sampling.test_masks_beside import MasksBeside, STRUCTURED, _at_once, _request, _row

def num_allowed():
    beside = MasksBeside()
    beside.begin(_request([_row(STRUCTURED[0], [])]), _at_once)
    return beside.take().packed_RJW.count_nonzero().item()

before = num_allowed()
child = os.fork()
if not child:
    signal.alarm(20)
    os._exit(0 if num_allowed() == before else 1)
print(before, num_allowed(), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_process_that_forks_has_masks_in_both_of_its_halves():
    done = subprocess.run([sys.executable, "-c", _FORKED], capture_output=True, text=True, timeout=120)
    before, after, exit_code = map(int, done.stdout.split())
    assert after == before > 0
    assert exit_code == 0, "the child waited for a thread that only its parent has"


def test_a_forward_that_fails_does_not_leave_masks_under_way(models, monkeypatch):
    target, request = models.target.share(), _request([_row(STRUCTURED[0], [])])
    target.allocate(1, 8)

    def fail(*_args: object, **_more: object) -> None:
        raise RuntimeError("the forward failed")

    monkeypatch.setattr(target, "forward", fail)
    with pytest.raises(RuntimeError, match="the forward failed"):
        target.score(request)
    assert target._masks_beside.take() is None
