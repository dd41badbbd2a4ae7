"""Masks that are computed beside a forward are those that are computed without it, for all rows at once."""

import random
from dataclasses import replace

import pytest
import torch

from decoding import SamplingParams, Sequence
from decoding.grammar.structured import Structured
from decoding.sampling.judging import ScoreRequest
from decoding.sampling.masks_beside import MasksBeside, masks_at_once
from decoding.sampling.rows import Rows, sampling_batch
from decoding.sampling.token_masks import TokenMasks
from decoding.sampling.verify import Draft
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


def _padded(drafts: list[list[int]]) -> list[list[int]]:
    width = max(map(len, drafts))
    return [draft + [0] * (width - len(draft)) for draft in drafts]


@pytest.mark.parametrize("seed", range(25))
def test_the_masks_of_all_rows_at_once_are_those_of_each_row_alone_round_after_round(seed):
    chance = random.Random(seed)
    rows = [_row(chance.choice([*STRUCTURED, None]), []) for _ in range(chance.choice([1, 2, 5, 9]))]
    rows.append(_row(chance.choice(STRUCTURED), []))
    for _ in range(12):
        drafts = [_drafted(row, chance) for row in rows]
        counts, drafted = [len(draft) for draft in drafts], _padded(drafts)
        found = masks_at_once(rows, drafted, counts)
        fresh = [_row(row.params.structured, row.output_token_ids) for row in rows]
        wanted = TokenMasks.of(fresh, drafted, 0, 1 + max(counts), counts)
        assert found is not None
        assert found.rows == tuple(row for row, each in enumerate(rows) if each.matcher is not None)
        logits_BJV = torch.randn(len(rows), 1 + max(counts), len(TOKENS))
        assert torch.equal(found.apply(logits_BJV), wanted.apply(logits_BJV))
        assert torch.equal(found.apply(logits_BJV.double()), wanted.apply(logits_BJV.double())), "by a choice"
        for row in rows:  # tokens that may be others than the drafted ones
            _write(row, _continued(row, 1 + chance.randrange(3), chance))


def test_a_row_whose_text_cannot_go_on_leaves_the_masks_to_be_computed_row_by_row():
    stuck, other = _row(DEAD, [TOKENS.index(b"a")]), _row(STRUCTURED[0], [])
    assert masks_at_once([other], [[]], [0]) is not None
    assert masks_at_once([other, stuck], [[], []], [0, 0]) is None
    assert masks_at_once([other], [[]], [0]) is not None, "the other row goes on"


def test_a_row_whose_committed_tokens_its_grammar_does_not_allow_leaves_the_masks_to_be_computed_row_by_row():
    assert masks_at_once([_row(STRUCTURED[0], [TOKENS.index(b"k")])], [[]], [0]) is None


def _request(rows: list[Sequence]) -> ScoreRequest:
    sampling = sampling_batch(tuple(rows), frozenset({END}), CPU)
    draft = Draft(torch.zeros(len(rows), 0, dtype=torch.int64), torch.zeros(len(rows), dtype=torch.int64))
    return ScoreRequest(Rows(tuple(rows), sampling, (0,) * len(rows), "coupled"), draft, (None,) * len(rows))


class _Clock:
    """A clock that goes on by what it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


class _Late:
    """Masks that come as late as the clock is moved while they are awaited."""

    def __init__(self, clock: _Clock, seconds: float) -> None:
        self.clock, self.seconds = clock, seconds

    def result(self) -> TokenMasks:
        self.clock.now += self.seconds
        return TokenMasks((), torch.zeros(0, 0, 1, dtype=torch.int32))


@pytest.mark.parametrize(("waited", "rounds_without"), [(0.0, 0), (0.05, 0), (0.5, 32)])
def test_rounds_go_without_masks_beside_them_for_a_while_if_these_take_longer_than_the_forward(
    monkeypatch, waited, rounds_without
):
    clock, beside, request = _Clock(), MasksBeside(), _request([_row(STRUCTURED[0], [])])
    monkeypatch.setattr("decoding.sampling.masks_beside.time", clock)
    beside.begin(request)
    assert beside._pending.result() is not None
    beside._pending = _Late(clock, waited)
    clock.now += 1.0  # the forward
    assert beside.take() is not None
    taken = []
    for _ in range(40):
        beside.begin(request)
        taken.append(beside.take() is not None)
    assert taken == [False] * rounds_without + [True] * (40 - rounds_without)


def test_rows_without_a_grammar_ask_for_no_masks():
    beside = MasksBeside()
    beside.begin(_request([_row(None, [])]))
    assert beside.take() is None


def test_a_forward_that_fails_does_not_leave_masks_under_way(models, monkeypatch):
    target, request = models.target.share(), _request([_row(STRUCTURED[0], [])])
    target.allocate(1, 8)

    def fail(*_args: object, **_more: object) -> None:
        raise RuntimeError("the forward failed")

    monkeypatch.setattr(target, "forward", fail)
    with pytest.raises(RuntimeError, match="the forward failed"):
        target.score(request)
    assert target._masks_beside.take() is None


def test_an_infinite_logit_of_a_forbidden_token_is_seen_and_one_that_is_not_masked_decides():
    found = masks_at_once([_row(STRUCTURED[0], [])], [[]], [0])
    logits_BJV = torch.zeros(1, 1, len(TOKENS))
    forbidden = next(token for token in range(len(TOKENS)) if not bool(found.bias_RJX[0, 0, token].isfinite()))
    logits_BJV[..., forbidden] = float("inf")
    assert not bool(found.apply(logits_BJV).amax().isfinite()), "so that the row is decided again"
    assert bool(replace(found, bias_RJX=None).apply(logits_BJV).amax().isfinite())
