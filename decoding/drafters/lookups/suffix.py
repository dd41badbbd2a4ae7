"""Lookup of what followed the newest tokens elsewhere, by frequency.

It looks in the prompt, in all samples of the same prompt, finished or running, and in everything that the engine wrote
lately for any prompt (SuffixDecoding, arXiv 2411.04975; Seer, arXiv 2511.14617), as far as these rows are of the same
scope (`decoding/scope.py`): those of a job, or of one API key. Instead of a suffix tree it counts
what followed contexts of a few sizes. The longest context that occurred before decides: its most frequent continuation
is proposed and becomes part of the context for the next token. To learn or look up a token takes a few dictionary
accesses, however much was written so far.

Texts are learned when something is looked up. While nothing is, they are only noted, which takes no time.
"""

from collections import deque
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from itertools import count
from weakref import WeakKeyDictionary

from decoding.drafters.base import allowed_part, swap_entries
from decoding.drafters.lookups.known_texts import KnownByScope, KnownTexts
from decoding.drafters.lookups.offers import LookupDrafter, Offer, better
from decoding.sampling.rows import ExtensionLimit, Rows, Rule
from decoding.sequence import Sequence

_SURE = 0.9  # chance of its first token with which a prediction is offered, whatever could be looked up
_CONTEXT_SIZES = (12, 6, 3, 2, 1)  # tokens of context, longest first
_MIN_SURVIVAL = 0.1  # what is less likely to be accepted is not offered
_KEY_BITS = (1 << 60) - 1  # Python's ints up to here take less memory
_ALL_PROMPTS = 0
_TEXTS = 16  # of rows that have ended: the last ones are learned, as more would take longer than a trial of drafts

Kind = tuple[bool, int, int]  # same prompt, size of the context, eighths of its frequency


@dataclass
class _Writer:
    """A running row as the drafter knows it."""

    sequence: Sequence
    number: int
    prompt_key: int  # identifies its prompt
    tokens: list[int] = field(default_factory=list)  # of prompt and output, as far as they were learned
    offer: Offer | None = None  # for the tokens committed so far


class SuffixDrafter(LookupDrafter):
    """Proposes point masses from counts over the prompt's samples and over all outputs."""

    def __init__(self) -> None:
        super().__init__()
        self._known = KnownByScope()
        self._writers: dict[int, _Writer] = {}
        self._ended = deque[_Writer](maxlen=_TEXTS)  # rows that others replaced, of which a part was not learned yet
        self._next_number = count()
        self._numbers = WeakKeyDictionary[Sequence, int]()  # a row that comes back after it lost its slot keeps its own

    def admit(self, slots: Seq[int], sequences: Seq[Sequence]) -> None:
        """Take in rows, to learn their prompts, and the outputs that they have already, with the next lookup."""
        super().admit(slots, sequences)
        for slot, sequence in zip(slots, sequences, strict=True):
            writer = self._writers.get(slot)
            if writer is not None and writer.sequence is sequence:
                writer.offer = None  # of a round that was dropped, maybe
                continue
            if writer is not None:
                self._ended.append(writer)
            prompt_key = hash(sequence.prompt_token_ids) & _KEY_BITS
            number = self._numbers.setdefault(sequence, next(self._next_number))
            self._writers[slot] = _Writer(sequence, number, prompt_key)

    def observe(self, rows: Rows, num_drafted: Seq[int], num_accepted: Seq[int]) -> None:
        """Learn how many of the proposed tokens were accepted."""
        for slot, (drafted, accepted) in enumerate(zip(num_drafted, num_accepted, strict=True)):
            writer = self._writers[slot]
            if writer.offer is not None and drafted:
                self.learn_acceptance(slot, writer.offer, drafted, accepted)
            writer.offer = None

    def continue_draft(self, slot: int, drafted: list[int], limit: ExtensionLimit, rule: Rule) -> Offer:
        """Look up what follows the row's tokens and a draft by another source, if all of it is accepted."""
        writer = self._writers[slot]
        self._learn_text(writer)
        return self._look_up(writer, drafted, limit, rule)

    def learn_acceptance(self, slot: int, offer: Offer, num_drafted: int, num_accepted: int) -> None:
        """Learn how many of the first `num_drafted` tokens were accepted that the row in this slot was offered."""
        scope = self._writers[slot].sequence.scope.texts
        self._known.of(scope).calibration.observe(offer.kinds[:num_drafted], num_accepted)

    def swap(self, first: int, second: int) -> None:
        super().swap(first, second)
        swap_entries(self._writers, first, second)

    def _offers(self, rows: Rows) -> list[Offer]:
        if any(rows.num_draft_tokens):
            self._learn_texts()
        offers = []
        for slot, limit in enumerate(rows.num_draft_tokens):
            writer = self._writers[slot]
            if writer.offer is None and limit:
                calibration = self._known.of(writer.sequence.scope.texts).calibration
                writer.offer = self._predicted(slot, writer.sequence, limit, calibration)
                if writer.offer.survival[:1] < [_SURE]:
                    found = self._look_up(writer, [], ExtensionLimit(limit, _MIN_SURVIVAL), rows.rule)
                    writer.offer = better(writer.offer, found)
            offers.append(writer.offer or Offer())
        return offers

    def _look_up(self, writer: _Writer, drafted: list[int], limit: ExtensionLimit, rule: Rule) -> Offer:
        offer = Offer()
        known = self._known.of(writer.sequence.scope.texts)
        if rule.text_depends_on_draft and known.continuations.holds_another(writer.sequence.noise_key, writer.number):
            return offer
        window, survival = (writer.tokens[-_CONTEXT_SIZES[0] :] + drafted)[-_CONTEXT_SIZES[0] :], 1.0
        for _ in range(limit.max_tokens):
            found = _next(known, window, writer.prompt_key)
            if found is None:
                break
            token, kind, rate = found
            survival *= rate
            if survival < limit.min_survival:
                break
            offer.tokens.append(token)
            offer.kinds.append(kind)
            offer.survival.append(survival)
            window.append(token)
        num_allowed = len(allowed_part(writer.sequence, offer.tokens, drafted))
        return Offer(offer.tokens[:num_allowed], offer.kinds[:num_allowed], offer.survival[:num_allowed])

    def _learn_texts(self) -> None:
        """Learn what was written since the last time."""
        while self._ended:
            self._learn_text(self._ended.popleft())
        for writer in self._writers.values():
            self._learn_text(writer)

    def _learn_text(self, writer: _Writer) -> None:
        sequence = writer.sequence
        known = self._known.of(sequence.scope.texts)
        if not writer.tokens:
            prompt = list(sequence.prompt_token_ids)
            if writer.prompt_key in known.continuations:
                writer.tokens = prompt
            else:
                known.continuations.add(writer.prompt_key, 0)
                self._learn(known, writer, prompt, [writer.prompt_key])
        new = sequence.output_token_ids[len(writer.tokens) - len(sequence.prompt_token_ids) :]
        if new:
            known.continuations.sign(sequence.noise_key, writer.number)
            self._learn(known, writer, new, [writer.prompt_key, _ALL_PROMPTS])
            # Again, because learning may have begun a new generation, which then holds a part of it.
            known.continuations.sign(sequence.noise_key, writer.number)

    def _learn(self, known: KnownTexts, writer: _Writer, new: list[int], prompts: list[int]) -> None:
        tokens, add = writer.tokens, known.continuations.add
        for token in new:
            for size in _CONTEXT_SIZES:
                if size <= len(tokens):
                    context = hash(tuple(tokens[-size:])) & _KEY_BITS
                    for prompt in prompts:
                        add(context ^ prompt, token)
            tokens.append(token)
        self._known.count(known)


def _next(known: KnownTexts, window: list[int], prompt_key: int) -> tuple[int, Kind, float] | None:
    """Return the most frequent token after the longest known context, from the prompt or all by the higher rate."""
    best = None
    for size in _CONTEXT_SIZES:
        if size > len(window):
            continue
        context = hash(tuple(window[-size:])) & _KEY_BITS
        for of_prompt in (True, False):
            found = known.continuations.best(context ^ prompt_key if of_prompt else context)
            if found is not None:
                token, times, total = found
                kind = (of_prompt, size, 8 * times // (total + 1))
                rate = known.calibration.rate(kind, times / (total + 1))
                if best is None or rate > best[2]:
                    best = (token, kind, rate)
        if best is not None:
            return best
    return None
