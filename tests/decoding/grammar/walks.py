"""Walks through a grammar as rows make them: drafts that are accepted, in part or not at all, and questions between."""

import random
from collections.abc import Callable, Sequence

import numpy as np

from decoding.grammar.grammars import Grammars
from decoding.grammar.matcher import Matcher, Place, masks_at_once
from decoding.grammar.structured import Structured

Allowed = tuple[int, ...]


class Walker:
    """One grammar, and what llguidance allows behind any tokens if it is asked nothing else."""

    def __init__(self, grammars: Grammars, structured: Structured) -> None:
        self.grammars, self.structured, self.table = grammars, structured, grammars._tokens()
        self._known: dict[tuple[int, ...], Allowed | None] = {}
        self._letters = {self.table.bytes_of(token): token for token in range(self.table.vocab_size)}

    def matcher(self) -> Matcher:
        return self.grammars.matcher(self.structured)

    def allowed(self, tokens: Sequence[int]) -> Allowed | None:
        """The tokens that a matcher allows that has read these at once; None where `Matcher.mask` has no mask."""
        key = tuple(tokens)
        if key not in self._known:
            self._known[key] = self._read(list(tokens))
        return self._known[key]

    def _read(self, tokens: list[int]) -> Allowed | None:
        fresh = self.grammars._of(self.structured).start.deep_copy()
        if not self.table.eos_token_ids.isdisjoint(tokens) or fresh.try_consume_tokens(tokens) != len(tokens):
            return None
        mask = np.frombuffer(fresh.compute_bitmask(), np.uint32)
        return () if fresh.is_error() else self.ids(mask)  # a dead end

    def ids(self, mask: np.ndarray) -> Allowed:
        bits = np.unpackbits(np.ascontiguousarray(mask).view(np.uint8), bitorder="little", count=self.table.vocab_size)
        return tuple(bits.nonzero()[0].tolist())

    def open(self, tokens: list[int]) -> list[int]:
        """The tokens that may follow and do not end the text."""
        return [token for token in self.allowed(tokens) or () if token not in self.table.eos_token_ids]

    def possible(self, tokens: list[int], new: list[int]) -> list[int]:
        """The first of the new tokens, as far as they may follow."""
        return next(new[:n] for n in range(len(new), -1, -1) if not n or self.allowed([*tokens, *new[:n]]) is not None)

    def spelled_out(self, tokens: list[int]) -> list[int]:
        """The same text in tokens of one byte each, which a mask does not have where a longer token is forced."""
        return [self._letters[bytes([byte])] for token in tokens for byte in self.table.bytes_of(token)]

    def continued(self, tokens: list[int], most: int, chance: random.Random) -> list[int]:
        """At most this many random tokens behind these ones, of one byte, two or three if there are such."""
        new: list[int] = []
        while len(new) < most:
            free = self.open([*tokens, *new])
            if not free:
                break
            size = chance.randint(1, 3)
            new.append(chance.choice([token for token in free if len(self.table.bytes_of(token)) == size] or free))
        return new


def check_at_once(walker: Walker, matcher: Matcher, committed: list[int], drafted: list[int]) -> None:
    """Compare the masks of a round with those of fresh matchers."""
    packed = masks_at_once([Place(matcher, committed, drafted)], 1 + len(drafted))
    wanted = [walker.allowed([*committed, *drafted[:place]]) for place in range(1 + len(drafted))]
    wanted = wanted[: [*wanted, None].index(None)]
    if packed is None:
        assert () in wanted
    else:
        assert [walker.ids(mask) for mask in packed[0, : len(wanted)]] == wanted, (committed, drafted)


def check_last(walker: Walker, matcher: Matcher, committed: list[int], drafted: list[int]) -> None:
    """Compare the mask behind the whole draft."""
    mask = matcher.mask(committed, drafted)
    assert (None if mask is None else walker.ids(mask)) == walker.allowed([*committed, *drafted]), (committed, drafted)


def check_each(walker: Walker, matcher: Matcher, committed: list[int], drafted: list[int]) -> None:
    """Compare the masks one by one."""
    for place in range(1 + len(drafted)):
        check_last(walker, matcher, committed, drafted[:place])


def check_allowed(walker: Walker, matcher: Matcher, committed: list[int], drafted: list[int]) -> None:
    """Compare how much of a draft is allowed with the masks that fresh matchers have."""
    has = [token in (walker.allowed([*committed, *drafted[:place]]) or ()) for place, token in enumerate(drafted)]
    assert matcher.num_allowed(committed, drafted) == [*has, False].index(False), (committed, drafted)


def check_forced(walker: Walker, matcher: Matcher, committed: list[int], drafted: list[int]) -> None:
    """Compare forced tokens with the masks, which have nothing else."""
    before = list(committed)
    for token in matcher.forced(committed):
        assert walker.allowed(before) == (token,)
        before.append(token)
    matcher.foreseen(committed)


CHECKS: list[Callable[..., None]] = [check_at_once, check_last, check_each, check_allowed, check_forced]


def walk(walker: Walker, seed: int, num_rounds: int = 12) -> int:
    """Ask one matcher as the rounds of a row do, in an order by chance; return how many tokens the row has.

    A row often goes on as its draft did, behind another token: then both are as far in texts of one shape.
    """
    chance, matcher, committed, left = random.Random(seed), walker.matcher(), [], []
    for _ in range(num_rounds):
        draft = walker.possible(committed, left)
        draft += walker.continued([*committed, *draft], chance.randint(0, 4), chance)
        if chance.random() < 0.1:
            draft = walker.spelled_out(draft)
        if draft and chance.random() < 0.2:
            draft[chance.randrange(len(draft))] = chance.randrange(walker.table.vocab_size)
        for check in chance.sample(CHECKS, chance.randint(1, len(CHECKS))):
            check(walker, matcher, committed, draft)
        accepted = walker.possible(committed, draft[: chance.randint(0, len(draft))])
        committed += accepted
        committed += walker.continued(committed, 1, chance)
        left = draft[len(accepted) + 1 :]
        if chance.random() < 0.1:
            matcher = walker.matcher()  # the row lost its slot, or goes on in another process
    return len(committed)
