"""What the tokens before a position decide: which of them penalties count, and which tokens are forbidden.

`ForbiddenTokens` is what `allowed_token_ids` and `bad_words` forbid to the rows of a batch. This is one more cut, and a
pure function of a row's parameters and of the output tokens before a position: committed and drafted ones. A bad word
is a list of token ids. Its last token is forbidden where the output ends with the tokens before it; a word of one token
is forbidden everywhere. The prompt does not count, as in vLLM.

`TokenCounts` are kept on the device for the penalties of running rows. A row's counts are computed from its whole text
once, when it is first seen. After that each round adds the few tokens that were committed to it. Counts belong to a
Sequence, whatever slot it stands in, and drafted tokens are not part of them; so swaps, rejected drafts and evictions
change nothing here. A row that lost its place is counted anew.

Shapes: B rows, J positions, V vocabulary, L tokens so far; U different lists of allowed ids, A rows that have one;
R rows that have bad words, Q of these rows' words together; W words of all different lists, T tokens of theirs. In
`TokenCounts` R rows of the table.
"""

from collections import OrderedDict
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch

from decoding.device import to_device
from decoding.gpu.picks import Counted
from decoding.sampling.cuts import NEVER
from decoding.sampling_params import BadWordList, SamplingParams
from decoding.sequence import Sequence


@dataclass(frozen=True)
class TokenHistory:
    """The tokens before each of J positions, which penalties, bad words and min_tokens depend on."""

    token_ids_BL: torch.Tensor  # prompt, output and draft, padded on the right with anything
    prompt_lengths_B: torch.Tensor
    lengths_BJ: torch.Tensor  # number of tokens before position j; the position's own token is the next one


@dataclass(frozen=True)
class ForbiddenTokens:
    """The allowed ids and the bad words of B rows. Where these stand is known to the host, too."""

    list_of_row: dict[int, int]  # of A rows, which of the U lists each of them has
    allowed_ids: tuple[torch.Tensor, ...]  # U lists of token ids
    words_of_row: dict[int, int]  # of R rows, which of the lists of bad words each of them has
    words: "_Words"
    _dense: dict[int, torch.Tensor] = field(default_factory=dict, init=False, compare=False, repr=False)

    @classmethod
    def build(cls, params: Seq[SamplingParams], device: torch.device) -> "ForbiddenTokens | None":
        """Return what these rows' parameters forbid, in this order; None if they forbid nothing."""
        if not any(p.forbids_tokens for p in params):
            return None
        allowed = {row: p.allowed_token_ids for row, p in enumerate(params) if p.allowed_token_ids is not None}
        lists = {id(ids): ids for ids in allowed.values()}  # most rows share their parameters
        words = {row: p.bad_word_list for row, p in enumerate(params) if p.bad_words}
        word_lists = {id(own): own for own in words.values()}
        place_of_list = {name: place for place, name in enumerate(lists)}
        place_of_words = {name: place for place, name in enumerate(word_lists)}
        return cls(
            list_of_row={row: place_of_list[id(ids)] for row, ids in allowed.items()},
            allowed_ids=tuple(to_device(list(ids), device, torch.int64) for ids in lists.values()),
            words_of_row={row: place_of_words[id(own)] for row, own in words.items()},
            words=_Words.of(list(word_lists.values()), device),
        )

    @property
    def reads_tokens(self) -> bool:
        """Whether what is forbidden at a position depends on the tokens before it."""
        return self.words.most_before > 0

    def take(self, rows: Seq[int]) -> "ForbiddenTokens | None":
        """Return what is forbidden to `rows`, numbered by their place there; None if nothing is."""
        list_of_row, words_of_row = (
            {new: of_row[row] for new, row in enumerate(rows) if row in of_row}
            for of_row in (self.list_of_row, self.words_of_row)
        )
        if not list_of_row and not words_of_row:
            return None
        return replace(self, list_of_row=list_of_row, words_of_row=words_of_row)

    def apply(self, logits_BJV: torch.Tensor, history: TokenHistory) -> torch.Tensor:
        """Return a copy of the logits in which forbidden tokens have -inf.

        The vocabulary of a draft may be smaller than the target's: ids outside it are no tokens of the draft.
        """
        if self.list_of_row:
            rows_A = to_device(list(self.list_of_row), logits_BJV.device, torch.int64)
            lists_A = to_device(list(self.list_of_row.values()), logits_BJV.device, torch.int64)
            allowed_A1V = self._allowed(logits_BJV.shape[-1])[lists_A][:, None]
            logits_BJV = logits_BJV.index_copy(0, rows_A, torch.where(allowed_A1V, logits_BJV[rows_A], NEVER))
        return self._without_bad_words(logits_BJV, history) if self.words_of_row else logits_BJV

    def _without_bad_words(self, logits_BJV: torch.Tensor, history: TokenHistory) -> torch.Tensor:
        num_positions, vocab_size = logits_BJV.shape[1:]
        rows_Q, words_Q = self._row_words
        last_Q = self.words.last_W[words_Q]
        completes_QJ = self._completes(history, rows_Q, words_Q) & (last_Q < vocab_size)[:, None]
        index_J = torch.arange(num_positions, device=logits_BJV.device)
        places_QJ = (rows_Q[:, None] * num_positions + index_J) * vocab_size
        places_QJ += last_Q.clamp(max=vocab_size - 1)[:, None]
        # Words may end with the same token. The least of its logit and these values is -inf if one of them forbids it.
        values_QJ = torch.where(completes_QJ, NEVER, -NEVER).to(logits_BJV.dtype)
        flat = logits_BJV.flatten().scatter_reduce(0, places_QJ.flatten(), values_QJ.flatten(), "amin")
        return flat.view(logits_BJV.shape)

    @cached_property
    def _row_words(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The row of each of the Q bad words, and which of the W words it is."""
        starts = np.asarray(self.words.starts)
        numbers = list(self.words_of_row.values())
        first_R = starts[numbers]
        num_R = starts[[number + 1 for number in numbers]] - first_R
        words_Q = np.arange(num_R.sum()) + np.repeat(first_R - num_R.cumsum() + num_R, num_R)
        rows_Q = np.repeat(np.asarray(list(self.words_of_row), dtype=np.int64), num_R)
        device = self.words.ends_W.device
        return _moved(rows_Q, device), _moved(words_Q, device)

    def _completes(self, history: TokenHistory, rows_Q: torch.Tensor, words_Q: torch.Tensor) -> torch.Tensor:
        """Tell at which positions [Q, J] the output so far ends with a word's tokens before its last."""
        lengths_QJ = history.lengths_BJ[rows_Q]
        num_output_QJ = lengths_QJ - history.prompt_lengths_B[rows_Q][:, None]
        num_before_Q, last_Q = self.words.num_before_W[words_Q], self.words.ends_W[words_Q] - 1
        completes_QJ = num_output_QJ >= num_before_Q[:, None]
        open_N = torch.arange(len(rows_Q), device=rows_Q.device)  # the words that may be longer and completed
        for distance in range(1, self.words.most_before + 1):
            if rows_Q.device.type == "cpu":  # a GPU would wait for the number of these words, and does them all as soon
                is_open_N = completes_QJ[open_N].any(1) & (num_before_Q[open_N] >= distance)
                open_N = open_N[is_open_N]
                if not len(open_N):
                    break
            places_NJ = (lengths_QJ[open_N] - distance).clamp(min=0)
            tokens_NJ = history.token_ids_BL[rows_Q[open_N][:, None], places_NJ]
            before_N = self.words.token_ids_T[(last_Q[open_N] - distance).clamp(min=0)]
            fits_NJ = (tokens_NJ == before_N[:, None]) | (num_before_Q[open_N] < distance)[:, None]
            completes_QJ[open_N] &= fits_NJ
        return completes_QJ

    def _allowed(self, vocab_size: int) -> torch.Tensor:
        """Return whether each list has a token id, bool [U, V], always the same tensor."""
        if vocab_size not in self._dense:
            allowed = [torch.zeros(vocab_size, dtype=torch.bool, device=ids.device) for ids in self.allowed_ids]
            for own_V, ids in zip(allowed, self.allowed_ids, strict=True):
                own_V[ids[ids < vocab_size]] = True
            self._dense[vocab_size] = torch.stack(allowed)
        return self._dense[vocab_size]


@dataclass(frozen=True)
class _Words:
    """All different lists of bad words, one behind the other, on a device."""

    token_ids_T: torch.Tensor
    ends_W: torch.Tensor  # where in T each word has ended
    num_before_W: torch.Tensor  # tokens before a word's last
    last_W: torch.Tensor
    starts: tuple[int, ...]  # where in W each list begins; at the end W itself
    most_before: int

    @classmethod
    def of(cls, lists: Seq[BadWordList], device: torch.device) -> "_Words":
        """Return the words of these lists."""
        starts, num_tokens, ends = [0], 0, []
        for own in lists:
            ends.append(own.ends_W + num_tokens)
            starts.append(starts[-1] + len(own))
            num_tokens += len(own.token_ids_T)
        token_ids_T = np.concatenate([np.zeros(0, np.int32), *(own.token_ids_T for own in lists)])
        ends_W = np.concatenate([np.zeros(0, np.int64), *ends])
        num_before_W = np.concatenate([np.zeros(0, np.int64), *(own.num_before_W for own in lists)])
        return cls(
            token_ids_T=_moved(token_ids_T, device),
            ends_W=_moved(ends_W, device),
            num_before_W=_moved(num_before_W, device),
            last_W=_moved(token_ids_T[ends_W - 1].astype(np.int64), device),
            starts=tuple(starts),
            most_before=int(num_before_W.max(initial=0)),
        )


def _moved(values: np.ndarray, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(values).to(device, non_blocking=True)


def dead_end(
    sequence: Sequence, newest: Seq[int], vocab_size: int, stop_ids: Iterable[int], *, with_grammar: bool = True
) -> str | None:
    """Return why no token may follow the output and the `newest` tokens; None if one may.

    `stop_ids` may end the text, which min_tokens forbids at first. The grammar counts, if there is one, `with_grammar`.
    """
    params, output = sequence.params, [*sequence.output_token_ids, *newest]
    if not params.forbids_tokens:
        return None
    names = [name for name in ("allowed_token_ids", "bad_words") if getattr(params, name)]
    lengths_1 = torch.tensor([len(output)])
    history = TokenHistory(torch.tensor([output or [0]]), torch.zeros_like(lengths_1), lengths_1[:, None])
    forbidden = ForbiddenTokens.build([params], lengths_1.device)
    assert forbidden is not None, "they forbid tokens"
    allowed_V = forbidden.apply(torch.zeros(1, 1, vocab_size), history)[0, 0].isfinite().numpy()
    if len(output) < params.min_tokens:
        names.append("min_tokens")
        allowed_V[[token_id for token_id in stop_ids if token_id < vocab_size]] = False
    if with_grammar and sequence.matcher is not None:
        mask = sequence.matcher.mask(sequence.output_token_ids, newest)
        if mask is not None:
            names.append("structured")
            allowed_V &= np.unpackbits(mask.view(np.uint8), count=vocab_size, bitorder="little").astype(bool)
    if allowed_V.any():
        return None
    subject = " and ".join(f"sampling.{name}" for name in names)
    verb, after = "leaves" if len(names) == 1 else "leave", "token" if len(output) == 1 else "tokens"
    return f"{subject} {verb} no token after {len(output)} output {after}"


def why_nothing_follows(sequence: Sequence, newest: Seq[int], vocab_size: int, stop_ids: Iterable[int]) -> str:
    """Return why no token can follow the output and the `newest` tokens: a dead end, or logits that are no numbers."""
    if sequence.matcher is not None and sequence.matcher.dead_end is not None:
        return f"sampling.structured: {sequence.matcher.dead_end}"
    return dead_end(sequence, newest, vocab_size, stop_ids) or (
        f"the target's logits are not finite after {len(sequence) + len(newest)} tokens; "
        "if this is a float16 overflow, use bfloat16 or float32"
    )


OUTPUT, PROMPT = 2, 1  # what an occurrence adds to a count; the prompt's tokens are marked, not counted


def changes(row: int, prompt: Seq[int], output: Seq[int], vocab_size: int) -> tuple[list[int], list[int]]:
    """Return the cells of a table [R, V] of counts that these tokens of a row change, and by how much."""
    seen = set(prompt)
    cells = [row * vocab_size + token_id for token_id in (*seen, *output)]
    return cells, [PROMPT] * len(seen) + [OUTPUT] * len(output)


@dataclass
class _Place:
    row: int
    num_counted: int  # tokens of the sequence, prompt and output


class TokenCounts:
    """The counts of at most `num_rows` sequences."""

    def __init__(self, num_rows: int, device: torch.device) -> None:
        """Remember the size; the table takes memory (4 bytes x rows x vocabulary) when a row first has penalties."""
        self._num_rows, self._device = num_rows, device
        self._counts_RV: torch.Tensor | None = None
        self._places: OrderedDict[Sequence, _Place] = OrderedDict()  # the most recently used at the end

    def of(self, sequences: Seq[Sequence], is_counted: Seq[bool], vocab_size: int) -> Counted:
        """Return the counts of the sequences' tokens up to now; of those that are not counted, any row.

        The table is always the same tensor.
        """
        if self._counts_RV is None:
            self._counts_RV = torch.zeros(self._num_rows, vocab_size, dtype=torch.int32, device=self._device)
        assert self._counts_RV.shape[1] == vocab_size, "all logits are fitted to the target's vocabulary"
        counted = [sequence for sequence, is_it in zip(sequences, is_counted, strict=True) if is_it]
        assert len(set(counted)) <= self._num_rows, "there are as many rows as slots"
        for sequence in counted:
            if sequence in self._places:
                self._places.move_to_end(sequence)
        fresh: list[int] = []
        cells: list[int] = []
        amounts: list[int] = []
        for sequence in counted:
            place = self._places.get(sequence)
            if place is None:
                place = self._places[sequence] = _Place(self._free_row(), len(sequence.prompt_token_ids))
                fresh.append(place.row)
            added = sequence.token_ids[place.num_counted :]
            own = changes(place.row, sequence.prompt_token_ids if place.row in fresh else (), added, vocab_size)
            place.num_counted += len(added)
            cells += own[0]
            amounts += own[1]
        if fresh:
            self._counts_RV.index_fill_(0, to_device(fresh, self._device), 0)
        if cells:
            cells_and_amounts_2C = to_device([cells, amounts], self._device, torch.int64)
            self._counts_RV.view(-1).scatter_add_(0, cells_and_amounts_2C[0], cells_and_amounts_2C[1].int())
        rows = [self._places[sequence].row if sequence in self._places else 0 for sequence in sequences]
        return Counted(self._counts_RV, to_device(rows, self._device, torch.int64))

    def _free_row(self) -> int:
        """Return a row that no sequence has, at last that of the sequence that was not used for longest."""
        if len(self._places) < self._num_rows:
            return len(self._places)
        return self._places.popitem(last=False)[1].row
