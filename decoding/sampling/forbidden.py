"""ForbiddenTokens: what `allowed_token_ids` and `bad_words` forbid to the rows of a batch.

This is one more cut, and a pure function of a row's parameters and of the output tokens before a position: committed
and drafted ones. A bad word is a list of token ids. Its last token is forbidden where the output ends with the tokens
before it; a word of one token is forbidden everywhere. The prompt does not count, as in vLLM.

Shapes: B rows, J positions, V vocabulary, L tokens so far; U different lists of allowed ids, A rows that have one;
Q bad words of all rows, D tokens before a word's last.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from decoding.device import to_device
from decoding.sampling.scores import NEVER
from decoding.sampling.token_history import TokenHistory
from decoding.sampling_params import SamplingParams
from decoding.sequence import Sequence

_ANY = -1  # in place of a token that a shorter word does not have


@dataclass(frozen=True)
class ForbiddenTokens:
    """The allowed ids and the bad words of B rows. Where these stand is known to the host, too."""

    allowed_rows: tuple[int, ...]  # A rows
    list_of_row: tuple[int, ...]  # which of the U lists each of them has
    allowed_ids: tuple[torch.Tensor, ...]  # U lists of token ids
    word_rows: tuple[int, ...]  # the row of each of the Q bad words
    last_Q: torch.Tensor
    before_QD: torch.Tensor  # the tokens before a word's last one, the nearest first, padded with -1
    num_before_Q: torch.Tensor
    _dense: dict[int, torch.Tensor] = field(default_factory=dict, init=False, compare=False, repr=False)

    @classmethod
    def build(cls, params: Seq[SamplingParams], device: torch.device) -> "ForbiddenTokens | None":
        """Return what these rows' parameters forbid, in this order; None if they forbid nothing."""
        if not any(p.forbids_tokens for p in params):
            return None
        allowed = [(row, p.allowed_token_ids) for row, p in enumerate(params) if p.allowed_token_ids is not None]
        lists = {id(ids): ids for _, ids in allowed}  # most rows share their parameters
        place_of = {name: place for place, name in enumerate(lists)}
        words = [(row, word) for row, p in enumerate(params) for word in p.bad_word_ids]
        width = max((len(word) - 1 for _, word in words), default=0)
        before = [[*word[-2::-1], *[_ANY] * (width + 1 - len(word))] for _, word in words]
        return cls(
            allowed_rows=tuple(row for row, _ in allowed),
            list_of_row=tuple(place_of[id(ids)] for _, ids in allowed),
            allowed_ids=tuple(to_device(list(ids), device, torch.int64) for ids in lists.values()),
            word_rows=tuple(row for row, _ in words),
            last_Q=to_device([word[-1] for _, word in words], device, torch.int64),
            before_QD=to_device(before, device, torch.int64).view(len(words), width),
            num_before_Q=to_device([len(word) - 1 for _, word in words], device, torch.int64),
        )

    @property
    def reads_tokens(self) -> bool:
        """Whether what is forbidden at a position depends on the tokens before it."""
        return self.before_QD.shape[1] > 0

    def take(self, rows: Seq[int]) -> "ForbiddenTokens | None":
        """Return what is forbidden to `rows`, numbered by their place there; None if nothing is."""
        allowed = [
            (new, self.list_of_row[place])
            for new, row in enumerate(rows)
            for place, own in enumerate(self.allowed_rows)
            if own == row
        ]
        words = [(new, place) for new, row in enumerate(rows) for place, own in enumerate(self.word_rows) if own == row]
        if not allowed and not words:
            return None
        index_Q = to_device([place for _, place in words], self.last_Q.device, torch.int64)
        return replace(
            self,
            allowed_rows=tuple(new for new, _ in allowed),
            list_of_row=tuple(number for _, number in allowed),
            word_rows=tuple(new for new, _ in words),
            last_Q=self.last_Q[index_Q],
            before_QD=self.before_QD[index_Q],
            num_before_Q=self.num_before_Q[index_Q],
        )

    def apply(self, logits_BJV: torch.Tensor, history: TokenHistory) -> torch.Tensor:
        """Return a copy of the logits in which forbidden tokens have -inf.

        The vocabulary of a draft may be smaller than the target's: ids outside it are no tokens of the draft.
        """
        if self.allowed_rows:
            rows_A = to_device(self.allowed_rows, logits_BJV.device, torch.int64)
            lists_A = to_device(self.list_of_row, logits_BJV.device, torch.int64)
            allowed_A1V = self._allowed(logits_BJV.shape[-1])[lists_A][:, None]
            logits_BJV = logits_BJV.index_copy(0, rows_A, torch.where(allowed_A1V, logits_BJV[rows_A], NEVER))
        return self._without_bad_words(logits_BJV, history) if self.word_rows else logits_BJV

    def _without_bad_words(self, logits_BJV: torch.Tensor, history: TokenHistory) -> torch.Tensor:
        num_positions, vocab_size = logits_BJV.shape[1:]
        rows_Q = to_device(self.word_rows, logits_BJV.device, torch.int64)
        completes_QJ = self._completes(history, rows_Q) & (self.last_Q < vocab_size)[:, None]
        index_J = torch.arange(num_positions, device=logits_BJV.device)
        places_QJ = (rows_Q[:, None] * num_positions + index_J) * vocab_size
        places_QJ += self.last_Q.clamp(max=vocab_size - 1)[:, None]
        # Words may end with the same token. The least of its logit and these values is -inf if one of them forbids it.
        values_QJ = torch.where(completes_QJ, NEVER, -NEVER).to(logits_BJV.dtype)
        flat = logits_BJV.flatten().scatter_reduce(0, places_QJ.flatten(), values_QJ.flatten(), "amin")
        return flat.view(logits_BJV.shape)

    def _completes(self, history: TokenHistory, rows_Q: torch.Tensor) -> torch.Tensor:
        """Tell at which positions [Q, J] the output so far ends with a word's tokens before its last."""
        lengths_QJ = history.lengths_BJ[rows_Q]
        num_output_QJ = lengths_QJ - history.prompt_lengths_B[rows_Q][:, None]
        completes_QJ = num_output_QJ >= self.num_before_Q[:, None]
        for distance, before_Q in enumerate(self.before_QD.unbind(1), 1):
            tokens_QJ = history.token_ids_BL[rows_Q[:, None], (lengths_QJ - distance).clamp(min=0)]
            completes_QJ &= (tokens_QJ == before_Q[:, None]) | (before_Q == _ANY)[:, None]
        return completes_QJ

    def _allowed(self, vocab_size: int) -> torch.Tensor:
        """Return whether each list has a token id, bool [U, V], always the same tensor."""
        if vocab_size not in self._dense:
            allowed = [torch.zeros(vocab_size, dtype=torch.bool, device=ids.device) for ids in self.allowed_ids]
            for own_V, ids in zip(allowed, self.allowed_ids, strict=True):
                own_V[ids[ids < vocab_size]] = True
            self._dense[vocab_size] = torch.stack(allowed)
        return self._dense[vocab_size]


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
    allowed_V = np.ones(vocab_size, dtype=bool)
    if params.allowed_token_ids is not None:
        allowed_V[:] = False
        allowed_V[list(params.allowed_token_ids)] = True
    for *before, last in params.bad_word_ids:
        if output[len(output) - len(before) :] == before:
            allowed_V[last] = False
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
    return f"{' and '.join(f'sampling.{name}' for name in names)} leave no token after {len(output)} output tokens"
