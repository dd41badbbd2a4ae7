"""What a round asks of the target, and the verdicts that come back: a few numbers a row. The logits stay on the device.

A `ScoreRequest` may be sent to another process, which has the target's last layers. Of the rows' sequences that process
needs the lengths and, for penalties, the tokens.

All that a grammar's mask depends on is known before the forward: the committed tokens and the drafted ones. So on a CPU
`MasksBeside` computes the masks of all rows in another thread, while this one computes the forward. They are there when
the logits are, and tokens are picked among those that a grammar allows: no pick has to be checked, or made again. On a
GPU no thread is needed, since the host waits for the device anyway (`judge`).

Shapes: B rows, K drafted tokens, J = K + 1 positions, V vocabulary.
"""

import os
import time
from collections.abc import Callable, Collection
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from queue import SimpleQueue
from threading import Thread

import torch

from decoding.cpu.wait import Bell
from decoding.device import to_device
from decoding.grammar.matcher import Place, masks_at_once
from decoding.sampling.logprobs import RoundLogprobs
from decoding.sampling.masks import NO_MASKS, TokenMasks
from decoding.sampling.rows import Rows
from decoding.sampling.verdicts import Draft, RowVerdict, SentVerdicts, Verdicts


@dataclass(frozen=True)
class ScoreRequest:
    """The rows of a round and their drafts, to be scored by the target; row b is in slot b."""

    rows: Rows
    draft: Draft
    num_logprobs: tuple[int | None, ...]  # likely tokens to list with each output token of a row; None: no logprobs
    close_call: float = 0.0  # the target's margin, as `verify_coupled` uses it

    @cached_property
    def starts(self) -> list[int]:
        """The position of each row's first token, which is its newest committed one."""
        return [len(sequence) - 1 for sequence in self.rows.sequences]

    @cached_property
    def token_ids_BJ(self) -> torch.Tensor:
        """Each row's newest committed token and its draft."""
        drafted_BK = self.draft.token_ids_BK
        newest = [sequence.newest_token for sequence in self.rows.sequences]
        return torch.cat([to_device(newest, drafted_BK.device)[:, None], drafted_BK], dim=1)

    @cached_property
    def draft_on_host(self) -> tuple[list[list[int]], list[int]]:
        """The drafted tokens of each row, and how many there are. To read them waits for what the device was told."""
        return self.draft.token_ids_BK.tolist(), self.draft.num_draft_tokens_B.tolist()

    def masks(self, among: Collection[int] | None = None) -> TokenMasks | None:
        """Compute the masks of the rows' grammars at all positions, on the host: those of all rows, or `among` some."""
        if not self.rows.have_grammars:
            return None
        if among is not None and not among:
            return NO_MASKS
        tokens, counts = self.draft_on_host
        return TokenMasks.of(self.rows.sequences, tokens, 0, self.draft.token_ids_BK.shape[1] + 1, counts, among)

    @property
    def lengths(self) -> list[int]:
        """The number of tokens that each row really has, as the host knows it."""
        return [1 + limit for limit in self.draft.max_draft_tokens_B]


def judge(request: ScoreRequest, logits_BJV: torch.Tensor, masks: TokenMasks | None = None) -> SentVerdicts:
    """Judge each row's draft by the target's logits: K drafted positions and the next one.

    `masks` are those of all rows with a grammar, if they were computed beside the forward. Else some rows are judged
    without theirs (`Rows.checked_later`), and again where a grammar forbids their tokens. The best of all tokens is the
    best of those that a grammar allows, if it is one of them: to check a few tokens takes much less time than masks do.
    """
    draft, rows = request.draft, request.rows
    recheck = None
    if masks is None and rows.checked_later:
        recheck = partial(check, rows, request.num_logprobs, request.close_call, logits_BJV)
    if masks is None:
        masks = request.masks(among=rows.masked_first)  # a device is at work on the forward meanwhile
    verdicts = verify_rows(rows, draft, logits_BJV, request.close_call, masks)
    return send(verdicts, draft, logits_BJV, request.num_logprobs, recheck)


def send(
    verdicts: Verdicts,
    draft: Draft,
    logits_BJV: torch.Tensor,
    num_logprobs: Seq[int | None],
    recheck: Callable[[list[RowVerdict]], object] | None = None,
) -> SentVerdicts:
    """Send verdicts to the host, with the log-probabilities of the rows that ask for as many likely tokens."""
    logprobs = RoundLogprobs(
        verdicts.num_accepted_B, verdicts.next_token_B, draft.token_ids_BK, logits_BJV, num_logprobs
    )
    return SentVerdicts(verdicts.columns(draft.token_ids_BK, draft.num_draft_tokens_B), logprobs, recheck)


def check(
    rows: Rows, num_logprobs: Seq[int | None], close_call: float, logits_BJV: torch.Tensor, verdicts: list[RowVerdict]
) -> list[int]:
    """Judge those rows again that were judged without masks and got tokens which their grammars forbid; return them."""
    wrong = []
    for row in rows.checked_later:
        matcher, verdict = rows.matchers[row], verdicts[row]
        accepted = verdict.draft_token_ids[: verdict.num_accepted]
        new = matcher.upto_end([*accepted, verdict.next_token]) if accepted else [verdict.next_token]
        if verdict.is_finite and not matcher.allows(rows.sequences[row].output_token_ids, new):
            wrong.append(row)
    if not wrong:
        return wrong
    part, logits_BJV = rows.take(wrong), logits_BJV[to_device(wrong, logits_BJV.device)]
    drafted = [verdicts[row].draft_token_ids for row in wrong]
    counts = tuple(verdicts[row].num_drafted for row in wrong)
    draft = Draft(to_device(drafted, logits_BJV.device, torch.int64), to_device(counts, logits_BJV.device))
    judged = verify_rows(part, draft, logits_BJV, close_call)
    again = send(judged, draft, logits_BJV, [num_logprobs[row] for row in wrong]).result()
    for row, verdict in zip(wrong, again, strict=True):
        rows.matchers[row].note_stray(len(rows.sequences[row].output_token_ids))
        verdicts[row] = verdict
    return wrong


def behind(rows: Rows, accepted: Seq[int]) -> Rows:
    """Return the only row with these tokens behind its own, to be decided with an empty draft."""
    (sequence,) = rows.sequences
    sequence = replace(sequence, output_token_ids=[*sequence.output_token_ids, *accepted])
    return replace(rows, sequences=(sequence,), num_draft_tokens=(0,), round_noise=None)


def decide(rows: Rows, logits_V: torch.Tensor, num_top: int | None) -> RowVerdict:
    """Return the verdict on the only row with an empty draft: `next_token` follows its tokens."""
    keys_B = rows.sampling.keys_B
    nothing = Draft(keys_B.new_zeros(1, 0), torch.zeros_like(keys_B), max_draft_tokens_B=(0,))
    request, logits_11V = ScoreRequest(rows, nothing, (num_top,)), logits_V[None, None]
    # As a round decides: whether a mask can be computed must not matter where none is needed.
    if rows.have_grammars and not rows.need_masks:
        (verdict,) = judge(request, logits_11V, NO_MASKS).result()
        output = rows.sequences[0].output_token_ids
        if verdict.is_finite and rows.matchers[0].allows(output, [verdict.next_token]):
            return verdict
    (verdict,) = judge(request, logits_11V, request.masks()).result()
    return verdict


def verify_rows(
    rows: Rows, draft: Draft, logits_BJV: torch.Tensor, close_call: float = 0.0, masks: TokenMasks | None = None
) -> Verdicts:
    """Return the verdict on a draft by the rows' own rule. Without `masks` they are those of all rows."""
    if masks is None:
        masks = rows.masks(draft.token_ids_BK, 0, logits_BJV.shape[1], draft.num_draft_tokens_B)
    return rows.rule.judge(rows, draft, logits_BJV, close_call, masks)


_MOST_WAITED = 0.5  # of the time of a forward, on average; a check of picks takes time, too
_DECAY = 0.9  # of that average, per round: one round in which the machine stood still says little
_PAUSE = 64  # rounds
_Answers = SimpleQueue[TokenMasks | BaseException | None]


class MasksBeside:
    """The masks of one round at a time. Rounds do without them for a while if they take longer than the forward."""

    def __init__(self) -> None:
        self._wanted: ScoreRequest | None = None  # not asked for yet
        self._answers: _Answers | None = None
        self._began = 0.0
        self._waited = 0.0  # of the time of a forward, lately
        self._num_paused = 0

    def begin(self, request: ScoreRequest, when_busy: Callable[[Callable[[], None]], None]) -> None:
        """Begin to compute the masks of a request, as soon as `when_busy` calls what it is given.

        A thread that needs the interpreter while this one does holds it up, so they begin where this one leaves it
        (`LocalTarget.when_busy`). Until `take` no other thread may use the rows' matchers.
        """
        self._drop()
        if not request.rows.have_grammars:
            return
        if self._num_paused:
            self._num_paused -= 1
            return
        request.draft_on_host  # noqa: B018 - read by this thread, which may wait for it
        self._wanted = request
        when_busy(self._start)

    def _start(self) -> None:
        request, self._wanted = self._wanted, None
        if request is not None:
            questions = _questions()  # first: if its thread cannot be started, no answer is awaited
            self._answers, self._began = SimpleQueue(), time.perf_counter()
            questions.put(request, self._answers)

    def take(self) -> TokenMasks | None:
        """Return the masks once they are there; None if there are none (`masks_of`), or none were begun."""
        self._wanted = None
        if self._answers is None:
            return None
        asked = time.perf_counter()
        try:
            found = self._answers.get()
        except BaseException:  # an interrupt: behind it, the rows' matchers are used by no other thread
            self._drop()
            raise
        self._answers = None
        waited = min(1.0, (time.perf_counter() - asked) / max(asked - self._began, 1e-9))
        self._waited = _DECAY * self._waited + (1 - _DECAY) * waited
        if found is None or self._waited > _MOST_WAITED:
            self._waited, self._num_paused = 0.0, _PAUSE
        if isinstance(found, BaseException):
            raise found
        return found

    def _drop(self) -> None:
        """Wait for masks that were not taken, since an interrupt came between: else two threads use one matcher."""
        self._wanted = None
        if self._answers is not None:
            self._answers.get()
            self._answers = None


def masks_of(request: ScoreRequest) -> TokenMasks | None:
    """Return the masks of all rows with a grammar, as `TokenMasks.of` does; None where `masks_at_once` has none."""
    sequences, (drafted, num_drafted) = request.rows.sequences, request.draft_on_host
    places = [
        Place(matcher, sequences[row].output_token_ids, drafted[row][: num_drafted[row]])
        for row, matcher in request.rows.matchers.items()
    ]
    packed = masks_at_once(places, 1 + max(map(len, drafted)))
    return None if packed is None else TokenMasks(tuple(request.rows.matchers), torch.from_numpy(packed))


class _Questions:
    """A thread that computes the masks of all engines in this process, one request at a time."""

    def __init__(self) -> None:
        self._asked = SimpleQueue[tuple[ScoreRequest, _Answers]]()
        self._bell = Bell()
        Thread(target=self._answer, name="masks", daemon=True).start()

    def put(self, request: ScoreRequest, answers: _Answers) -> None:
        """Ask for the masks of a request."""
        self._asked.put((request, answers))
        self._bell.ring()

    def _answer(self) -> None:
        while True:
            num_rung = self._bell.num_rung
            if self._asked.empty():
                self._bell.wait(num_rung)
            request, answers = self._asked.get()
            self._bell.note_question()
            try:
                answers.put(masks_of(request))
            except BaseException as error:  # noqa: BLE001 - for the thread that asked
                answers.put(error)
            answers.put(None)  # for `_drop`, if an interrupt came when the first had just been taken


@cache
def _questions() -> _Questions:
    return _Questions()


os.register_at_fork(after_in_child=_questions.cache_clear)  # the child has the queue, and not its thread
