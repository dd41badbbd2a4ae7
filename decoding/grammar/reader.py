"""Reader: what llguidance says behind the tokens of one sequence.

llguidance can take tokens back, but keeps masks that it computed behind them, and may return them where another text
has come as far (docs/structured.md). So nothing is taken back here. One matcher reads the committed tokens. A draft is
read by a copy of it, which is dropped with the draft.

Sequences share the lexer of their grammar, and so its limits. A lexer that has met one refuses every token. So a
refusal counts only while the lexer is sound, and a limit only if a lexer meets it that reads this sequence alone.
"""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from collections.abc import Set as AbstractSet
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

from decoding.grammar.definition import Compiled, in_one_line, is_dead_end
from decoding.grammar.token_table import Mask

if TYPE_CHECKING:
    from llguidance import LLMatcher

_Answer = TypeVar("_Answer")
MAX_REASON = 300  # characters of llguidance's own error


class Reader:
    """The tokens of one sequence that were read, and what is known of the places behind them."""

    def __init__(self, compiled: Callable[[bool], Compiled]) -> None:
        """Begin before the first token. `compiled` returns the grammar, and is called when it is needed: with True as
        argument it compiles the grammar for this sequence alone."""
        self._compile = compiled
        self._compiled: Compiled | None = None
        self._committed: LLMatcher | None = None  # has read the committed tokens
        self._drafted: LLMatcher | None = None  # a copy of it that has read all tokens; None if there is no draft
        self.tokens: list[int] = []  # that were read, the committed ones first
        self.num_committed = 0
        self.masks: dict[int, Mask] = {}  # by the number of tokens before the place
        self.forced: dict[int, list[int]] = {}  # the tokens that alone may follow there
        self.error = ""  # of llguidance, if it could not answer the last question

    def commit(self, committed: Seq[int]) -> bool:
        """Read these committed output tokens, which begin with those of before; return False if one is not allowed.

        A draft that was read stays if it begins with them, or they with it.
        """
        self.error = ""
        return self._commit(committed) or self._read_alone(committed, ())

    def read(self, drafted: Seq[int]) -> bool:
        """Read exactly these tokens behind the committed ones; return False if one is not allowed."""
        self.error = ""
        draft = self.tokens[self.num_committed :]
        if draft != list(drafted[: len(draft)]):
            self._keep(self.num_committed)
            draft = []
        if rest := list(drafted[len(draft) :]):
            num_read = self._of_draft.try_consume_tokens(rest)
            self.tokens += rest[:num_read]
        is_read = len(self.tokens) == self.num_committed + len(drafted)
        return is_read or self._read_alone(self.tokens[: self.num_committed], drafted)

    def has_read(self, drafted: Seq[int]) -> bool:
        """Return whether these tokens were read behind the committed ones, and perhaps more behind them."""
        return self.tokens[self.num_committed : self.num_committed + len(drafted)] == list(drafted)

    def ask(self, question: Callable[["LLMatcher"], _Answer]) -> _Answer | None:
        """Return what a matcher answers that has read the tokens; None, and `error`, if it meets an error.

        An answer that says no is that of a sound lexer.
        """
        self.error, front = "", self._front
        answer = question(front)
        if (not answer or front.is_error()) and self._is_doubtful:
            return self._ask_alone(self.tokens[: self.num_committed], self.tokens[self.num_committed :], question)
        if front.is_error():
            self._give_up(front)
            return None
        return answer

    def read_on(self, drafted: Seq[int], ends: AbstractSet[int]) -> int:
        """Return how many of these tokens behind the committed ones were read, or can be read, as allowed ones.

        It stops at what takes a closer look: an end token, a token that is not allowed or not what is forced there,
        and an error.
        """
        for num_read, token_id in enumerate(drafted):
            place = self.num_committed + num_read
            forced = self.forced.get(place)
            if place < len(self.tokens):
                if token_id != self.tokens[place] or forced is None or (forced and token_id != forced[0]):
                    return num_read
                continue
            if forced is None:
                forced = self._front.compute_ff_tokens()
            if (forced and token_id != forced[0]) or token_id in ends:
                return num_read
            front = self._of_draft
            if front.try_consume_tokens([token_id]) != 1 or front.is_error():
                return num_read
            self.forced[place] = forced
            self.tokens.append(token_id)
        return len(drafted)

    def write_masks(self, drafted: Seq[int], ends: AbstractSet[int], addresses: Seq[int], num_bytes: int) -> bool:
        """Write the masks behind the committed tokens, and behind each drafted one, to these addresses.

        Nothing is written behind an end token, or a token that is not allowed. Return False if llguidance meets an
        error.
        """
        matcher = self._of_committed
        matcher.unsafe_compute_mask_ptr(addresses[0], num_bytes)
        if matcher.is_error():
            self._give_up(matcher)
            return False
        if drafted:
            matcher = matcher.deep_copy()
        for token_id, address in zip(drafted, addresses[1:], strict=False):
            if token_id in ends:
                break
            if matcher.try_consume_tokens([token_id]) != 1:
                return not matcher.is_error() and not self._is_worn
            matcher.unsafe_compute_mask_ptr(address, num_bytes)
        return not matcher.is_error()

    @property
    def _of_committed(self) -> "LLMatcher":
        """The matcher that has read the committed tokens alone."""
        if self._committed is None:
            self._begin()
        assert self._committed is not None, "it has just begun"
        return self._committed

    @property
    def _of_draft(self) -> "LLMatcher":
        """A matcher that has read all tokens, and may read on without having to go back."""
        if self._drafted is None:
            self._drafted = self._of_committed.deep_copy()
        return self._drafted

    @property
    def _front(self) -> "LLMatcher":
        """The matcher that has read all tokens."""
        return self._of_committed if self._drafted is None else self._drafted

    @property
    def _is_worn(self) -> bool:
        return self._compiled is not None and self._compiled.is_worn

    @property
    def _is_doubtful(self) -> bool:
        """Whether a limit is to blame for a refusal or an error, and so perhaps other sequences."""
        asked = (matcher for matcher in (self._committed, self._drafted) if matcher is not None)
        return any(matcher.is_error() and not is_dead_end(matcher) for matcher in asked) or self._is_worn

    def _begin(self, alone: bool = False) -> None:
        self._compiled = self._compile(alone)
        self._committed, self._drafted = self._compiled.start.deep_copy(), None
        self._keep(0)

    def _give_up(self, matcher: "LLMatcher") -> None:
        """Keep the error of a matcher, which stays in it; the next question is answered by others."""
        self.error = in_one_line(matcher.get_error())[:MAX_REASON]
        self._committed = self._drafted = None
        self._keep(0)

    def _keep(self, num_committed: int) -> None:
        """Drop what was read behind the committed tokens, and what is known there."""
        self.num_committed, self._drafted = num_committed, None
        del self.tokens[num_committed:]
        for known in (self.masks, self.forced):
            for place in [place for place in known if place > num_committed]:
                del known[place]

    def _commit(self, committed: Seq[int]) -> bool:
        if len(committed) < self.num_committed:  # a row never takes tokens back, and who asks may
            self._begin()
        new, draft = list(committed[self.num_committed :]), self.tokens[self.num_committed :]
        if not new:
            return True
        if self._drafted is not None and draft == new[: len(draft)]:  # all of the draft is committed
            self._committed, self._drafted = self._drafted, None
            self.num_committed, new = len(self.tokens), new[len(draft) :]
        elif draft[: len(new)] != new:
            self._keep(self.num_committed)
        if new:
            num_read = self._of_committed.try_consume_tokens(new)
            self.num_committed += num_read
            if self._drafted is None:
                self.tokens += new[:num_read]
        for known in (self.masks, self.forced):  # of earlier places nothing is asked again
            for place in [place for place in known if place < self.num_committed]:
                del known[place]
        return self.num_committed == len(committed)

    def _read_alone(self, committed: Seq[int], drafted: Seq[int]) -> bool:
        """Return whether a lexer allows these tokens that has read nothing else, if a limit may have refused them."""
        return self._is_doubtful and self._ask_alone(committed, drafted, lambda _: True) is not None

    def _ask_alone(
        self, committed: Seq[int], drafted: Seq[int], question: Callable[["LLMatcher"], _Answer]
    ) -> _Answer | None:
        """Return what a matcher answers that has read these tokens, and whose lexer has read nothing else.

        Return None if one of the tokens is not allowed, and, with `error`, if llguidance meets an error. The lexer has
        the fewest states if it computes no mask on the way. But each mask gives it as much work to do as a step may
        take, which may not be enough for all tokens together: then it computes them.
        """
        for has_masks in (False, True):
            self._begin(alone=True)
            answer = question(self._front) if self._read_each(committed, drafted, has_masks) else None
            if not self._is_doubtful:
                return answer
        front = self._front
        front.compute_bitmask()  # a lexer that refuses every token says why
        self._give_up(front)
        return None

    def _read_each(self, committed: Seq[int], drafted: Seq[int], has_masks: bool) -> bool:
        for place, token_id in enumerate(chain(committed, drafted)):
            is_committed = place < len(committed)
            matcher = self._of_committed if is_committed else self._of_draft
            if has_masks:
                matcher.compute_bitmask()
            if matcher.try_consume_tokens([token_id]) != 1:
                return False
            self.tokens.append(token_id)
            self.num_committed += is_committed
        return True
