"""Lookups: drafters that propose what followed the newest tokens before, without a model.

`NGramDrafter` is prompt lookup (Saxena, https://github.com/apoorvumang/prompt-lookup-decoding), over prompt and output:
it proposes what followed the last few tokens the last time they occurred. The longest matching n-gram wins, then the
most recent occurrence. A match that reaches the end of the text continues with its own proposal, so that a text in a
loop is continued to the full length.

`SuffixDrafter` proposes what followed the newest tokens elsewhere, by frequency.
It looks in the prompt, in all samples of the same prompt, finished or running, and in everything that the engine wrote
lately for any prompt (SuffixDecoding, arXiv 2411.04975; Seer, arXiv 2511.14617), as far as these rows are of the same
scope (`decoding/scope.py`): those of a job, or of one API key. Instead of a suffix tree it counts
what followed contexts of a few sizes. The longest context that occurred before decides: its most frequent continuation
is proposed and becomes part of the context for the next token. To learn or look up a token takes a few dictionary
accesses, however much was written so far.

A row may come with a prediction of its text (`Sequence.prediction`), as when a text is written again: it is proposed as
far as the text goes with it, and from the place on where both meet again, wherever it promises more than what is looked
up. (Predicted outputs: https://platform.openai.com/docs/guides/predicted-outputs)

Each proposed token carries the chance that it is accepted: the frequency of the continuation, corrected by how often
such continuations were accepted (`Calibration`).

Why this is lossless under rejection: a proposal is a point mass that follows from committed tokens alone, and the next
token of a row is drawn with noise at a position that no earlier decision depended on. That holds for tokens of other
rows, too, if they were written with other noise. Rows with equal noise keys (a seed in the sampling parameters gives
the same to all prompts) share their noise, so such a row looks nothing up, except under coupled verification, where any
draft is allowed. An old text of the same row was written with the row's own noise, at positions that are still to come:
so no engine takes a prediction under rejection (`Engine.problem_with`).
"""

from abc import abstractmethod
from collections.abc import Hashable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from itertools import accumulate, count
from operator import mul
from weakref import WeakKeyDictionary

from decoding.drafters.base import Drafter, allowed_part, point_masses, swap_entries
from decoding.drafters.known_texts import Calibration, KnownByScope, KnownTexts, Prediction
from decoding.sampling.rows import ExtensionLimit, Rows, Rule
from decoding.sampling.verdicts import Draft
from decoding.sequence import Sequence

_NGRAM_SIZES = (4, 3, 2)  # of the n-grams that are looked up, in this order
_FIRST_GUESS = 0.5  # the assumed chance of acceptance before any token was tried
# The same of a predicted token, by the bits of the number of tokens since the last difference; the last one holds for
# all longer stretches, and where there was no difference.
_GUESSES_OF_PREDICTIONS = (0.4, 0.6, 0.75, 0.85, 0.92, 0.96)
_UNCHANGED = 0.99
_MOST_OF_PREDICTIONS = 0.998  # no estimate is higher: drafts of a text that is only checked are long
_SURE = 0.9  # chance of its first token with which a prediction is offered, whatever could be looked up


@dataclass
class Offer:
    """What a lookup found: tokens, the kind of match of each, the chance that all up to it are accepted."""

    tokens: list[int] = field(default_factory=list)
    kinds: list[Hashable] = field(default_factory=list)
    survival: list[float] = field(default_factory=list)


class _LookupDrafter(Drafter):
    """Proposes what is offered to each row."""

    def __init__(self) -> None:
        self._predictions: dict[int, Prediction] = {}  # of the rows that have one

    def admit(self, slots: Seq[int], sequences: Seq[Sequence]) -> None:
        for slot, sequence in zip(slots, sequences, strict=True):
            self._predictions.pop(slot, None)
            if sequence.prediction:
                self._predictions[slot] = Prediction(sequence.prediction)

    def swap(self, first: int, second: int) -> None:
        swap_entries(self._predictions, first, second)

    def _predicted(self, slot: int, sequence: Sequence, limit: int, calibration: Calibration) -> Offer:
        """Return what the prediction of the row in this slot offers: nothing without one."""
        prediction = self._predictions.get(slot)
        if prediction is None:
            return Offer()
        prediction.read(sequence.output_token_ids)
        tokens = allowed_part(sequence, prediction.expected(limit))
        kinds: list[Hashable] = []
        rates: list[float] = []
        most = len(_GUESSES_OF_PREDICTIONS) - 1
        for number in range(len(tokens)):
            agreeing = prediction.num_agreeing
            bits = None if agreeing is None else min((agreeing + number).bit_length(), most)
            if kinds and kinds[-1] == ("predicted", bits):
                kinds.append(kinds[-1])
                rates.append(rates[-1])
                continue
            kinds.append(("predicted", bits))
            guess = _UNCHANGED if bits is None else _GUESSES_OF_PREDICTIONS[bits]
            rates.append(calibration.rate(kinds[-1], guess, _MOST_OF_PREDICTIONS))
        return Offer(tokens, kinds, list(accumulate(rates, mul)))

    @abstractmethod
    def _offers(self, rows: Rows) -> list[Offer]:
        """Return what each row is offered, at least as many tokens as it may draft if as many are found."""

    def lookup_survival(self, rows: Rows) -> list[list[float]]:
        offers = self._offers(rows)
        return [offer.survival[:limit] for offer, limit in zip(offers, rows.num_draft_tokens, strict=True)]

    def propose(self, rows: Rows) -> Draft:
        offers = self._offers(rows)
        proposals = [offer.tokens[:limit] for offer, limit in zip(offers, rows.num_draft_tokens, strict=True)]
        return point_masses(proposals, rows.sampling.keys_B.device)


def _better(first: Offer, second: Offer) -> Offer:
    """Return the offer of which more tokens are expected to be accepted."""
    return first if sum(first.survival) > sum(second.survival) else second


class NGramDrafter(_LookupDrafter):
    """Proposes point masses from an index of each row's own n-grams; no model, no memory to speak of."""

    def __init__(self) -> None:
        super().__init__()
        self._indexes: dict[int, _NGramIndex] = {}
        self._calibration = Calibration()  # by the size of the n-gram that matched
        self._offered: list[Offer] = []  # to this round's rows

    def admit(self, slots: Seq[int], sequences: Seq[Sequence]) -> None:
        super().admit(slots, sequences)
        self._indexes.update((slot, _NGramIndex()) for slot in slots)

    def observe(self, rows: Rows, num_drafted: Seq[int], num_accepted: Seq[int]) -> None:
        for offer, drafted, accepted in zip(self._offered, num_drafted, num_accepted, strict=True):
            self._calibration.observe(offer.kinds[:drafted], accepted)

    def swap(self, first: int, second: int) -> None:
        super().swap(first, second)
        swap_entries(self._indexes, first, second)

    def _offers(self, rows: Rows) -> list[Offer]:
        self._offered = []
        for slot, (sequence, limit) in enumerate(zip(rows.sequences, rows.num_draft_tokens, strict=True)):
            predicted = self._predicted(slot, sequence, limit, self._calibration)
            tokens, size = self._indexes[slot].lookup(sequence.token_ids, limit) if limit else ([], 0)
            tokens = allowed_part(sequence, tokens)
            rate = self._calibration.rate(size, _FIRST_GUESS)
            survival = list(accumulate([rate] * len(tokens), mul))
            self._offered.append(_better(predicted, Offer(tokens, [size] * len(tokens), survival)))
        return self._offered


class _NGramIndex:
    """The most recent end of each n-gram of a growing token list, except its newest n-gram."""

    def __init__(self) -> None:
        self._end_of: dict[tuple[int, ...], int] = {}
        self._num_indexed = 0

    def lookup(self, token_ids: list[int], limit: int) -> tuple[list[int], int]:
        """Return what followed the newest n-gram, and the size of the n-gram; 0 if none matched."""
        for end in range(self._num_indexed + 1, len(token_ids)):
            for size in _NGRAM_SIZES:
                if size <= end:
                    self._end_of[tuple(token_ids[end - size : end])] = end
        self._num_indexed = max(len(token_ids) - 1, 0)
        for size in _NGRAM_SIZES:
            end_of_match = self._end_of.get(tuple(token_ids[-size:])) if size < len(token_ids) else None
            if end_of_match is not None:
                period = token_ids[end_of_match:]
                return (period * -(-limit // len(period)))[:limit], size
        return [], 0


_CONTEXT_SIZES = (12, 6, 3, 2, 1)  # tokens of context, longest first
_MIN_SURVIVAL = 0.1  # what is less likely to be accepted is not offered
_KEY_BITS = (1 << 60) - 1  # Python's ints up to here take less memory
_ALL_PROMPTS = 0

Kind = tuple[bool, int, int]  # same prompt, size of the context, eighths of its frequency


@dataclass
class _Writer:
    """A running row as the drafter knows it."""

    sequence: Sequence
    number: int
    prompt_key: int  # identifies its prompt
    tokens: list[int]  # prompt and what was learned of the output
    offer: Offer | None = None  # for the tokens committed so far


class SuffixDrafter(_LookupDrafter):
    """Proposes point masses from counts over the prompt's samples and over all outputs."""

    def __init__(self) -> None:
        super().__init__()
        self._known = KnownByScope()
        self._writers: dict[int, _Writer] = {}
        self._next_number = count()
        self._numbers = WeakKeyDictionary[Sequence, int]()  # a row that comes back after it lost its slot keeps its own

    def admit(self, slots: Seq[int], sequences: Seq[Sequence]) -> None:
        """Learn each new prompt, and the output that its sequence has already."""
        super().admit(slots, sequences)
        for slot, sequence in zip(slots, sequences, strict=True):
            writer = self._writers.get(slot)
            if writer is not None and writer.sequence is sequence:
                writer.offer = None  # of a round that was dropped, maybe
                self._learn_output(writer)
                continue
            prompt = list(sequence.prompt_token_ids)
            prompt_key = hash(sequence.prompt_token_ids) & _KEY_BITS
            number = self._numbers.setdefault(sequence, next(self._next_number))
            writer = self._writers[slot] = _Writer(sequence, number, prompt_key, prompt)
            known = self._known.of(sequence.scope.texts)
            if prompt_key not in known.continuations:
                known.continuations.add(prompt_key, 0)
                writer.tokens = []
                self._learn(known, writer, prompt, [prompt_key])
            self._learn_output(writer)

    def observe(self, rows: Rows, num_drafted: Seq[int], num_accepted: Seq[int]) -> None:
        """Learn the rows' new tokens, and how many of the proposed ones were accepted."""
        for slot, (drafted, accepted) in enumerate(zip(num_drafted, num_accepted, strict=True)):
            writer = self._writers[slot]
            if writer.offer is not None and drafted:
                self.learn_acceptance(slot, writer.offer, drafted, accepted)
            writer.offer = None
            self._learn_output(writer)

    def continue_draft(self, slot: int, drafted: list[int], limit: ExtensionLimit, rule: Rule) -> Offer:
        """Look up what follows the row's tokens and a draft by another source, if all of it is accepted."""
        return self._look_up(self._writers[slot], drafted, limit, rule)

    def learn_acceptance(self, slot: int, offer: Offer, num_drafted: int, num_accepted: int) -> None:
        """Learn how many of the first `num_drafted` tokens were accepted that the row in this slot was offered."""
        scope = self._writers[slot].sequence.scope.texts
        self._known.of(scope).calibration.observe(offer.kinds[:num_drafted], num_accepted)

    def swap(self, first: int, second: int) -> None:
        super().swap(first, second)
        swap_entries(self._writers, first, second)

    def _offers(self, rows: Rows) -> list[Offer]:
        offers = []
        for slot, limit in enumerate(rows.num_draft_tokens):
            writer = self._writers[slot]
            if writer.offer is None and limit:
                self._learn_output(writer)  # of rounds that it was not asked in
                calibration = self._known.of(writer.sequence.scope.texts).calibration
                writer.offer = self._predicted(slot, writer.sequence, limit, calibration)
                if writer.offer.survival[:1] < [_SURE]:
                    found = self._look_up(writer, [], ExtensionLimit(limit, _MIN_SURVIVAL), rows.rule)
                    writer.offer = _better(writer.offer, found)
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

    def _learn_output(self, writer: _Writer) -> None:
        num_known = len(writer.tokens) - len(writer.sequence.prompt_token_ids)
        new = writer.sequence.output_token_ids[num_known:]
        if new:
            known = self._known.of(writer.sequence.scope.texts)
            known.continuations.sign(writer.sequence.noise_key, writer.number)
            self._learn(known, writer, new, [writer.prompt_key, _ALL_PROMPTS])
            # Again, because learning may have begun a new generation, which then holds a part of it.
            known.continuations.sign(writer.sequence.noise_key, writer.number)

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
