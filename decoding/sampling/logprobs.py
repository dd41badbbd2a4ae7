"""Log-probabilities of tokens under raw logits, and of the most likely ones: of a round, and of texts that are given.

A token of a text is scored by the logits behind the token before it. Where several continuations of one prompt are
scored, several tokens are asked for behind the same position. The log-probabilities of all positions are never held at
once: they are computed some positions at a time, and only those of the asked tokens are kept.

Shapes: B rows, K drafted tokens, J = K + 1 positions, P = B x J, V vocabulary; M of the positions, T likely tokens.
"""

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from itertools import islice, takewhile

import torch

from decoding.device import to_device
from decoding.sequence import Sequence, TokenLogprobs

_AT_ONCE_ON_GPU = 1 << 26  # log-probabilities


class RoundLogprobs:
    """The log-probabilities of a round's accepted and next tokens, for the rows that ask for them.

    The host does not know how many tokens a GPU accepts, and asking would stop it. So a GPU computes them at all
    positions, and a CPU at those that count.
    """

    def __init__(
        self,
        num_accepted_B: torch.Tensor,
        next_token_B: torch.Tensor,
        drafted_BK: torch.Tensor,
        logits_BJV: torch.Tensor,
        num_logprobs: Seq[int | None],
    ) -> None:
        """Compute them; `num_logprobs` says how many likely tokens each row asks for, None if it wants nothing."""
        self.packed: list[torch.Tensor] = []  # on the device, int64; floats are stored as the bits of float64
        self._groups: list[tuple[list[int], int]] = []  # rows that ask for as many likely tokens, and how many
        asked = {num_top for num_top in num_logprobs if num_top is not None}
        if not asked:
            return
        num_positions, vocab_size = logits_BJV.shape[1:]
        knows_counts = _knows_counts(logits_BJV.device)
        self._num_positions = None if knows_counts else num_positions  # of each row; None: those that count
        index_J = torch.arange(num_positions, device=logits_BJV.device)
        tokens_P = written(num_accepted_B, next_token_B, drafted_BK, vocab_size).flatten()
        for number in sorted(asked):
            rows = [row for row, num_top in enumerate(num_logprobs) if num_top == number]
            num_top = min(number, vocab_size)
            starts_R = to_device([row * num_positions for row in rows], logits_BJV.device, torch.int64)
            parts: Seq[slice | torch.Tensor]
            if knows_counts:
                last_R = starts_R + num_accepted_B[rows]
                bounds = zip(starts_R.tolist(), last_R.tolist(), strict=True)
                parts = [slice(start, last + 1) for start, last in bounds]
            else:
                places_M = (starts_R[:, None] + index_J).flatten()
                parts = torch.split(places_M, max(1, _AT_ONCE_ON_GPU // vocab_size))
            found = _logprobs(logits_BJV.flatten(0, 1), tokens_P, parts, num_top)
            self.packed += [_bits(found[0]), _bits(found[1]).flatten(), found[2].flatten()]
            self._groups.append((rows, num_top))

    def of_rows(self, packed: torch.Tensor, num_tokens: Seq[int]) -> Iterator[tuple[int, list[TokenLogprobs]]]:
        """Yield each asking row and its log-probabilities, given the numbers on the host and each row's tokens."""
        for rows, num_top in self._groups:
            widths = [num_tokens[row] if self._num_positions is None else self._num_positions for row in rows]
            num_places, num_listed = sum(widths), sum(widths) * num_top
            chosen_M, listed = packed[:num_places], packed[num_places:]
            values_MT = listed[:num_listed].view(num_places, num_top)
            ids_MT = listed[num_listed : 2 * num_listed].view(num_places, num_top)
            packed = listed[2 * num_listed :]
            found = _listed(chosen_M, values_MT, ids_MT)
            ends = torch.tensor(widths).cumsum(0).tolist()
            for row, width, end in zip(rows, widths, ends, strict=True):
                yield row, found[end - width :][: num_tokens[row]]


class LineLogprobs:
    """The log-probabilities of all rows and positions of a round, asked for or not, as a recording computes them."""

    def __init__(self, num_logprobs: Seq[int | None], num_positions: int, vocab_size: int) -> None:
        """Plan a line for each row, with all that some row asks for."""
        self._num_logprobs, self._num_positions = num_logprobs, num_positions
        asked = {number for number in num_logprobs if number is not None}
        self.num_top = {number: min(number, vocab_size) for number in sorted(asked)}
        self._sizes = [num_positions * (1 + 2 * num_top) for num_top in self.num_top.values()]  # columns of a line
        self.num_columns = sum(self._sizes)

    def lines(self, written_BJ: torch.Tensor, logits_BJV: torch.Tensor) -> list[torch.Tensor]:
        """Compute the log-probabilities of what was `written`; return the columns [B, ...] of the lines."""
        (num_rows, num_positions, vocab_size), found = logits_BJV.shape, []
        size = max(1, _AT_ONCE_ON_GPU // vocab_size)
        parts = [slice(first, first + size) for first in range(0, num_rows * num_positions, size)]
        for num_top in self.num_top.values():
            chosen_P, values_PT, ids_PT = _logprobs(logits_BJV.flatten(0, 1), written_BJ.flatten(), parts, num_top)
            found.append(torch.cat((_bits(chosen_P)[:, None], _bits(values_PT), ids_PT), dim=1).view(num_rows, -1))
        return found

    def of_rows(self, lines_BC: torch.Tensor, num_tokens: Seq[int]) -> Iterator[tuple[int, list[TokenLogprobs]]]:
        """Yield each asking row and its log-probabilities, given the lines on the host and each row's tokens."""
        blocks = torch.split(lines_BC, self._sizes, dim=1)
        for (number, num_top), block_BC in zip(self.num_top.items(), blocks, strict=True):
            rows = [row for row, wanted in enumerate(self._num_logprobs) if wanted == number]
            places_M = [row * self._num_positions + place for row in rows for place in range(num_tokens[row])]
            lines_PC = block_BC.reshape(len(num_tokens) * self._num_positions, -1)
            chosen_M1, values_MT, ids_MT = torch.split(lines_PC[places_M], [1, num_top, num_top], dim=1)
            found = iter(_listed(chosen_M1[:, 0], values_MT, ids_MT))
            for row in rows:
                yield row, list(islice(found, num_tokens[row]))


def _listed(chosen_M: torch.Tensor, values_MT: torch.Tensor, ids_MT: torch.Tensor) -> list[TokenLogprobs]:
    """Return the log-probabilities of M tokens, and of the likely ones beside them, which are given as their bits."""
    floats = chosen_M.view(torch.float64).tolist(), values_MT.view(torch.float64).tolist()
    places = zip(floats[0], ids_MT.tolist(), floats[1], strict=True)
    return [TokenLogprobs(chosen, tuple(zip(ids, values, strict=True))) for chosen, ids, values in places]


def written(
    num_accepted_B: torch.Tensor, next_token_B: torch.Tensor, drafted_BK: torch.Tensor, vocab_size: int
) -> torch.Tensor:
    """Return the accepted tokens of each row, and behind them, as often as there are positions, its next one [B, J]."""
    index_J = torch.arange(drafted_BK.shape[1] + 1, device=drafted_BK.device)
    drafted_BJ = torch.nn.functional.pad(drafted_BK, (0, 1))
    tokens_BJ = torch.where(index_J < num_accepted_B[:, None], drafted_BJ, next_token_B[:, None])
    return tokens_BJ.clamp(max=vocab_size - 1)  # what a row without finite logits would draw may be no token


def _logprobs(
    logits_PV: torch.Tensor, tokens_P: torch.Tensor, parts: Seq[slice | torch.Tensor], num_top: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the tokens' log-probabilities [M] at the positions of all parts, and the likely ones' and their ids."""
    found = []
    for part in parts:
        logprobs_MV = logits_PV[part].float().log_softmax(-1)
        chosen_M = logprobs_MV.gather(-1, tokens_P[part][:, None])[:, 0]
        found.append((chosen_M, *logprobs_MV.topk(num_top, dim=-1)))
    chosen_M, values_MT, ids_MT = (torch.cat(part) for part in zip(*found, strict=True))
    return chosen_M, values_MT, ids_MT


def _knows_counts(device: torch.device) -> bool:
    """Tell whether the host may read how many tokens are accepted without stopping the device."""
    return device.type == "cpu"


def _bits(numbers: torch.Tensor) -> torch.Tensor:
    return numbers.double().view(torch.int64)


LOGITS_AT_ONCE = 1 << 24  # 64 MB in float32: the most logits, of positions x vocabulary, that scoring holds


@dataclass(frozen=True)
class Stretch:
    """Tokens of one row, from position `start` of its slot on, and what is asked for behind them."""

    slot: int
    start: int
    token_ids: tuple[int, ...]
    asked: tuple[tuple[int, int], ...] = ()  # (index into token_ids, a token that may stand behind it), in order
    num_top: int = 0  # likely tokens that are wanted behind each asked position
    has_ranks: bool = False  # whether the rank of each asked token among all is wanted

    @classmethod
    def over(cls, slot: int, start: int, token_ids: Seq[int], following: Seq[int], num_top: int = 0) -> "Stretch":
        """Return a stretch that asks for one token behind each of its own."""
        return cls(slot, start, tuple(token_ids), tuple(enumerate(following)), num_top)

    @classmethod
    def of_row(cls, row: Sequence, slot: int, start: int, end: int) -> "Stretch":
        """Return these tokens of a row that is scored. What was found is not asked for again."""
        assert row.asked is not None
        unknown = row.asked.pairs[len(row.asked.found) :]
        asked = tuple((index - start, token) for index, token in unknown if start <= index < end)
        return cls(slot, start, tuple(row.token_ids[start:end]), asked, row.asked.num_top, row.asked.has_ranks)

    @property
    def places(self) -> list[int]:
        """The indexes behind which something is asked for, each once, in order."""
        return list(dict.fromkeys(index for index, _ in self.asked))

    def cut(self, num_tokens: int) -> "tuple[Stretch, Stretch]":
        """Return the first `num_tokens` tokens with what is asked for behind them, and the rest."""
        num_asked = sum(1 for _ in takewhile(lambda pair: pair[0] < num_tokens, self.asked))
        later = tuple((index - num_tokens, token) for index, token in self.asked[num_asked:])
        rest = replace(self, start=self.start + num_tokens, token_ids=self.token_ids[num_tokens:], asked=later)
        return replace(self, token_ids=self.token_ids[:num_tokens], asked=self.asked[:num_asked]), rest


def positions_at_once(vocab_size: int) -> int:
    """Return behind how many positions logits may be held at once."""
    return max(1, LOGITS_AT_ONCE // vocab_size)


def in_forwards(stretches: Seq[Stretch], vocab_size: int) -> Iterator[list[tuple[int, Stretch]]]:
    """Yield the stretches of each forward, with their numbers, so that rows x most places of a row stay few enough.

    For a forward that returns its logits as a rectangle. A stretch that asks for too much is cut; rests come later, so
    that each row is written in order.
    """
    most = positions_at_once(vocab_size)
    rest = list(enumerate(stretches))
    while rest:
        rest.sort(key=lambda numbered: len(numbered[1].places))
        forward: list[tuple[int, Stretch]] = []
        later: list[tuple[int, Stretch]] = []
        for number, stretch in rest:
            places = stretch.places
            if forward and (len(forward) + 1) * len(places) > most:
                later.append((number, stretch))
            elif len(places) > most:
                first, second = stretch.cut(places[most])
                forward.append((number, first))
                later.append((number, second))
            else:
                forward.append((number, stretch))
        yield forward
        rest = later


def asked_logprobs(
    stretches: Seq[Stretch], logits_of: Callable[[slice], torch.Tensor], vocab_size: int
) -> list[list[TokenLogprobs]]:
    """Return for each stretch the log-probability of each asked token, with the likely ones behind its position.

    `logits_of` returns the logits [M', V] of some of the M positions, which are the places of the first stretch, then
    those of the next, and so on. They are taken in float32.
    """
    places: list[tuple[int, int]] = []  # of the M positions: a stretch, and an index into it
    pairs: list[tuple[int, int, int]] = []  # of the asked tokens: one of the M positions, the token, the stretch
    for number, stretch in enumerate(stretches):
        numbered = {index: len(places) + place for place, index in enumerate(stretch.places)}
        places += [(number, index) for index in numbered]
        pairs += [(numbered[index], token, number) for index, token in stretch.asked]
    found: list[list[TokenLogprobs]] = [[] for _ in stretches]
    size, next_pair = positions_at_once(vocab_size), 0
    for first in range(0, len(places), size):
        end = min(first + size, len(places))
        num_pairs = sum(1 for _ in takewhile(lambda pair: pair[0] < end, pairs[next_pair:]))  # noqa: B023
        here = pairs[next_pair : next_pair + num_pairs]
        next_pair += num_pairs
        # In a function of its own: nothing of these positions is kept when the next ones are computed.
        num_top = [stretches[number].num_top for number, _ in places[first:end]]
        wanted = [(place - first, token) for place, token, _ in here]
        has_ranks = [stretches[number].has_ranks for _, _, number in here]
        chosen, ranks, tops = _found(logits_of(slice(first, end)), wanted, has_ranks, num_top)
        for (place, _, number), logprob, rank in zip(here, chosen, ranks, strict=True):
            top, best_logit = tops[place - first]
            found[number].append(TokenLogprobs(logprob, top, rank, best_logit))
    return found


_Top = tuple[tuple[tuple[int, float], ...], float | None]  # the likely tokens of a position, and the best one's logit


def _found(
    logits_MV: torch.Tensor, pairs: Seq[tuple[int, int]], has_ranks: Seq[bool], num_top: Seq[int]
) -> tuple[list[float], list[int | None], list[_Top]]:
    """Return what is asked for: log-probabilities and ranks of pairs, and the likely tokens behind each position.

    A pair is a position and a token. Its rank is None unless it has one.
    """
    logprobs_MV = logits_MV.float().log_softmax(-1)
    index = to_device(pairs, logits_MV.device, torch.int64)
    return (
        logprobs_MV[index[:, 0], index[:, 1]].tolist(),
        _ranks(logprobs_MV, pairs, has_ranks),
        _tops(logprobs_MV, logits_MV, num_top),
    )


def _ranks(logprobs_MV: torch.Tensor, pairs: Seq[tuple[int, int]], has_ranks: Seq[bool]) -> list[int | None]:
    """Return of each pair that has a rank the number of tokens at its position that are at least as likely."""
    ranks: list[int | None] = [None] * len(pairs)
    ranked = [number for number, has_rank in enumerate(has_ranks) if has_rank]
    size = max(1, LOGITS_AT_ONCE // 16 // logprobs_MV.shape[1])  # pairs at once, whose positions are copied
    for first in range(0, len(ranked), size):
        here = ranked[first : first + size]
        index = to_device([pairs[number] for number in here], logprobs_MV.device, torch.int64)
        own_N1 = logprobs_MV[index[:, 0], index[:, 1]][:, None]
        found = (logprobs_MV[index[:, 0]] >= own_N1).sum(-1).tolist()
        for number, rank in zip(here, found, strict=True):
            ranks[number] = rank
    return ranks


def _tops(logprobs_MV: torch.Tensor, logits_MV: torch.Tensor, num_top: Seq[int]) -> list[_Top]:
    """Return the likely tokens behind each position, best first, as many as it wants, and the logit of the first."""
    tops: list[_Top] = [((), None) for _ in num_top]
    for number in set(num_top) - {0}:
        rows = [row for row, wanted in enumerate(num_top) if wanted == number]
        chosen_MV = logprobs_MV if len(rows) == len(num_top) else logprobs_MV[rows]
        values_MT, ids_MT = chosen_MV.topk(min(number, logprobs_MV.shape[1]), dim=-1)
        best_M = logits_MV[to_device(rows, logits_MV.device), ids_MT[:, 0]].float()
        for row, ids, values, best in zip(rows, ids_MT.tolist(), values_MT.tolist(), best_M.tolist(), strict=True):
            tops[row] = tuple(zip(ids, values, strict=True)), best
    return tops
