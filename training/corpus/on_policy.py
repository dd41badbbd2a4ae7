"""Whether a corpus holds the texts of its target: a sample of its rows is compared with the target's own law.

Two figures say so. With a row's noise key, or without noise, the target's pick at each position is known, and must be
the token that stands there. Without a key, `-log p(token)` is on average the entropy of p if the tokens were drawn from
p; the sum of the differences is a martingale whose variance follows from p, so chance is told from another law.

Shapes: J output positions, V vocabulary.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import TypeVar

import torch

from decoding.sampling.distribution import process_logits
from decoding.sampling.rows import Rows, sampling_batch
from decoding.sampling.rules import COUPLED
from decoding.sequence import Sequence as Row
from pipeline.counts import Sums
from training.corpus.corpus import Corpus
from training.corpus.files import CorpusFile
from training.corpus.rows import Example

# logits_of(token_ids, num_logits): the target's logits [num_logits, V] behind the last of these tokens.
LogitsOf = Callable[[Sequence[int], int], torch.Tensor]

LEAST_REPRODUCED, LEAST_REPRODUCED_ROUNDED = 0.99, 0.9  # in float32, and where either side rounds more
MOST_EXCESS = 0.05  # nats a token by which a text may be less likely than the target's own
LEAST_DEVIATIONS = 5.0  # standard deviations from which on an excess is no chance
_ROWS_OF_A_SOURCE, _SOURCES = 24, 16
_Item = TypeVar("_Item")


@dataclass(frozen=True)
class OnPolicy(Sums):
    """What was found of the rows of one source; the counts of rows with a known pick and of the others are apart."""

    num_tokens: int = 0  # whose pick is known
    num_reproduced: int = 0
    num_drawn: int = 0  # whose pick is not known
    excess: float = 0.0  # nats by which they are less likely than tokens of the target are on average, in all
    variance: float = 0.0  # of the excess, under the target's law

    @property
    def reproduced(self) -> float:
        """Share of the known picks that are the tokens of the text."""
        return self.num_reproduced / self.num_tokens if self.num_tokens else 1.0

    @property
    def mean_excess(self) -> float:
        """Nats a token."""
        return self.excess / self.num_drawn if self.num_drawn else 0.0

    @property
    def deviations(self) -> float:
        """Standard deviations of the excess from 0."""
        return self.excess / math.sqrt(self.variance) if self.variance > 0 else math.copysign(math.inf, self.excess)


def check_is_targets_text(
    corpus: Corpus, logits_of: LogitsOf, eos_token_ids: frozenset[int], dtype: torch.dtype = torch.float32
) -> dict[str, OnPolicy]:
    """Return what a sample of each run and file shows. Raises ValueError, with the figures, for texts of another model.

    `dtype` is that of the logits. Rows that had sampling parameters of their own are taken for rows with the run's.
    """
    found: dict[str, OnPolicy] = {}
    for source, (examples, is_float32) in _sample(corpus).items():
        seen = found[source] = compare(examples, logits_of, eos_token_ids)
        least = LEAST_REPRODUCED if is_float32 and dtype is torch.float32 else LEAST_REPRODUCED_ROUNDED
        if seen.reproduced < least:
            raise ValueError(
                f"{source} holds texts of another model, or with another prompt: given the text before it and the "
                f"row's noise, the target picks {seen.reproduced:.1%} of {seen.num_tokens:,} tokens, expected "
                f"{least:.0%} or more; name the texts of this target, with the template, the tokenizer and the "
                "sampling parameters that they were written with (rows with parameters of their own, as those of "
                "OpenAI batch files, cannot be told from texts of another model, since no output says these parameters)"
            )
        if seen.mean_excess > MOST_EXCESS and seen.deviations > LEAST_DEVIATIONS:
            raise ValueError(
                f"{source} holds texts of another model, or with another prompt: its tokens are less likely than the "
                f"target's own by {seen.mean_excess:.2f} nats each ({seen.num_drawn:,} tokens, "
                f"{seen.deviations:.0f} standard deviations), at most {MOST_EXCESS} expected; name the texts of this "
                "target, with its template, and set corpus.temperature to what they were drawn with"
            )
    return found


@torch.inference_mode()
def compare(examples: Iterable[Example], logits_of: LogitsOf, eos_token_ids: frozenset[int]) -> OnPolicy:
    """Return what these examples show. The last token of a text whose key is not known may have been added; it is left
    out."""
    total = OnPolicy()
    for example in examples:
        is_known = example.noise_key is not None or example.params.is_greedy
        tokens = example.output_token_ids if is_known else example.output_token_ids[:-1]
        if not tokens:
            continue
        logits_1JV = logits_of([*example.prompt_token_ids, *tokens[:-1]], len(tokens))[None]
        rows = rows_of(example, eos_token_ids, logits_1JV.device)
        tokens_1J = torch.tensor([tokens], device=logits_1JV.device)
        if is_known:
            picks_1J = rows.pick(logits_1JV, tokens_1J[:, :-1], 0).token_ids_BJ
            equal = int((picks_1J == tokens_1J).sum())
            total += OnPolicy(num_tokens=len(tokens), num_reproduced=equal)
        else:
            history = rows.history(tokens_1J[:, :-1], 0, len(tokens))
            logp_JV = process_logits(logits_1JV, rows.sampling, history)[0].double().log_softmax(-1)
            total += _excess(logp_JV, tokens_1J[0])
    return total


def rows_of(example: Example, eos_token_ids: frozenset[int], device: torch.device) -> Rows:
    """Return a round of the example alone, before its first output token, that may draft all of its output."""
    row = Row(example.prompt_token_ids, example.params, example.noise_key or 0)
    width = max(len(example.output_token_ids) - 1, 0)
    return Rows((row,), sampling_batch((row,), eos_token_ids, device), (width,), COUPLED)


def _excess(logp_JV: torch.Tensor, tokens_J: torch.Tensor) -> OnPolicy:
    surprise_JV = torch.where(logp_JV.isinf(), 0.0, -logp_JV)
    probs_JV = logp_JV.exp()
    entropy_J = (probs_JV * surprise_JV).sum(-1)
    variance_J = (probs_JV * surprise_JV.square()).sum(-1) - entropy_J.square()
    # A token that the target cannot draw at all says as much as a very unlikely one.
    found_J = -logp_JV.gather(-1, tokens_J[:, None])[:, 0].clamp(min=-50.0)
    return OnPolicy(
        num_drawn=len(tokens_J),
        excess=float((found_J - entropy_J).sum()),
        variance=float(variance_J.clamp(min=0).sum()),
    )


def _sample(corpus: Corpus) -> dict[str, tuple[list[Example], bool]]:
    """Return some rows of each run and of each other file, and whether their tokens were computed in float32."""
    pieces: dict[str, list[tuple[CorpusFile, int, int]]] = {}
    for piece in corpus.pieces:
        pieces.setdefault(piece[0].name if piece[0].run is None else piece[0].run.path, []).append(piece)
    sampled: dict[str, tuple[list[Example], bool]] = {}
    for source in _spread(list(pieces), _SOURCES):
        chosen, run = _spread(pieces[source], _ROWS_OF_A_SOURCE), pieces[source][0][0].run
        wanted = -(-_ROWS_OF_A_SOURCE // len(chosen))
        read = (islice(corpus.reader.examples(*piece, held_out=None), wanted) for piece in chosen)
        sampled[source] = list(chain.from_iterable(read)), run is None or run.dtype == "float32"
    return sampled


def _spread(items: Sequence[_Item], most: int) -> list[_Item]:
    """Return at most this many of the items, evenly spread."""
    if len(items) <= most:
        return list(items)
    return [items[index * len(items) // most] for index in range(most)]
