"""The score of a draft on examples: what it would have drafted, and what of that would have been accepted.

Shapes: N output tokens, J of them, K drafted tokens of a round, V vocabulary.
"""

import hashlib
import struct
from collections.abc import Iterable, Iterator, Sequence

import torch

from decoding.noise import GumbelNoise, Stream, uniform
from decoding.sampling.distribution import probabilities, process_logits
from decoding.sampling.rows import Rows
from decoding.sampling.rules import close_calls
from training.corpus.on_policy import rows_of
from training.corpus.rows import Example
from training.evaluation.kind_score import DraftScore, KindScore, replay
from training.evaluation.pair import Pair, Reading

_SCORES_AT_ONCE = 1 << 24


class NoiseOfText:
    """The noise under which the output tokens of an example were picked.

    A row of a run says its noise by its key. Of other texts only the tokens are known; given these, the noise has a law
    of its own, from which it is drawn here: the target's noised scores have their largest value at the token of the
    text, that value is a Gumbel number, and the others are Gumbel numbers below it (Maddison, Tarlow, Minka, arXiv
    1411.0030). A draft accepts under that noise as often, in the mean, as in a run that writes such texts.
    """

    def __init__(self, example: Example, target_logits_1NV: torch.Tensor, eos_token_ids: frozenset[int]) -> None:
        """Take the target's logits at these tokens, which matter where the noise is not known."""
        self.rows: Rows = rows_of(example, eos_token_ids, target_logits_1NV.device)
        self.is_known = example.noise_key is not None or example.params.is_greedy
        self.tokens_1N = torch.tensor([example.output_token_ids], device=target_logits_1NV.device)
        self._target_logits_1NV = target_logits_1NV
        if not self.is_known:
            content = struct.pack(f"<{self.tokens_1N.numel()}i", *example.output_token_ids)
            key = int.from_bytes(hashlib.sha256(content).digest()[:8], "big", signed=True)
            self._keys_1 = torch.tensor([key], device=target_logits_1NV.device)

    def picks(self, logits_1JV: torch.Tensor, first: int) -> torch.Tensor:
        """Return what a model with these logits picks [J] at the output tokens from `first` on."""
        if self.is_known:
            return self.rows.pick(logits_1JV, self.tokens_1N[:, :-1], first).token_ids_BJ[0]
        found = [torch.empty(0, dtype=torch.int64, device=logits_1JV.device)]
        for start, end in spans(logits_1JV):
            scores_JV = self.scores(logits_1JV[:, start:end], first + start)
            found.append((scores_JV + self._drawn(first + start, end - start)).argmax(-1))
        return torch.cat(found)

    def targets_own(self, close_call: float) -> tuple[list[int], frozenset[int]]:
        """Return the places in the output where the target picks another token, and those of close calls.

        A close call is a pick that rounding could have decided, with this margin, as the engine sees it. Both are empty
        where the noise is not known.
        """
        if not self.is_known:
            return [], frozenset()
        picks = self.rows.pick(self._target_logits_1NV, self.tokens_1N[:, :-1], 0, close_call)
        others = (picks.token_ids_BJ != self.tokens_1N)[0].nonzero()[:, 0].tolist()
        if not close_call:
            return others, frozenset()
        return others, frozenset(close_calls(picks, self.rows.sampling, close_call)[0].nonzero()[:, 0].tolist())

    def scores(self, logits_1JV: torch.Tensor, first: int) -> torch.Tensor:
        """Return the scores [J, V] of the law that is sampled at the output tokens from `first` on."""
        history = self.rows.history(self.tokens_1N[:, :-1], first, logits_1JV.shape[1])
        return process_logits(logits_1JV, self.rows.sampling, history)[0]

    def _drawn(self, first: int, num_positions: int) -> torch.Tensor:
        """Draw the noise [J, V] of these positions, given that the target picked their tokens."""
        logits_1JV = self._target_logits_1NV[:, first : first + num_positions]
        logp_JV = self.scores(logits_1JV, first).log_softmax(-1)
        positions_1J = self.rows.positions(first, num_positions)
        free_JV = GumbelNoise.draw(self._keys_1, positions_1J, logp_JV.shape[-1], Stream.DRAFT).dense(
            logp_JV.shape[-1]
        )[0]
        largest_J1 = -(-uniform(self._keys_1, positions_1J, Stream.RECOVER)[0].log()).log().float()[:, None]
        below_JV = -torch.logaddexp(-largest_J1, -(logp_JV + free_JV))
        noise_JV = torch.where(logp_JV.isinf(), free_JV, below_JV - logp_JV)
        ids_J1 = self.tokens_1N[0, first : first + num_positions, None]
        own_J1 = logp_JV.gather(-1, ids_J1)
        # A token that the target cannot draw says nothing of the noise: it was not picked there.
        own_J1 = torch.where(own_J1.isinf(), free_JV.gather(-1, ids_J1), largest_J1 - own_J1)
        return noise_JV.scatter(-1, ids_J1, own_J1)


def spans(logits_1JV: torch.Tensor) -> Iterator[tuple[int, int]]:
    """Yield the ranges of positions that are turned into laws at once, which bounds their memory."""
    num_positions, vocab_size = logits_1JV.shape[1:]
    size = max(1, _SCORES_AT_ONCE // vocab_size)
    for start in range(0, num_positions, size):
        yield start, min(start + size, num_positions)


_MOST_RECHECKS = 8  # of a text, where rounding may have decided a pick; a text of the target needs hardly one


def score(pair: Pair, examples: Iterable[Example], num_draft_tokens: int) -> DraftScore:
    """Score a draft on these examples, with rounds of at most `num_draft_tokens`.

    In float32 the rounds are those of a run with `engine.draft_length` "fixed" that writes the same rows, but for two
    known differences: more tokens are counted as drafted where a live draft would have met an end token behind a
    rejected one (so the acceptance rate is a little low), and a near tie of the draft's own may fall the other way.
    """
    by_kind: dict[str, KindScore] = {}
    for example in examples:
        found = score_example(pair, example, num_draft_tokens)
        by_kind[example.kind] = by_kind.get(example.kind, KindScore()) + found
    return DraftScore(pair.draft_path, num_draft_tokens, dict(sorted(by_kind.items())))


@torch.inference_mode()
def score_example(pair: Pair, example: Example, num_draft_tokens: int) -> KindScore:
    """Score a draft on one example."""
    prompt, output = example.prompt_token_ids, example.output_token_ids
    eos_token_ids = pair.target.eos_token_ids
    reading = pair.read([*prompt, *output], len(output), num_draft_tokens)
    noise = NoiseOfText(example, reading.target_logits_1NV, eos_token_ids)
    drafted_KN = _drafted(reading, noise, num_draft_tokens)
    (row,) = noise.rows.sequences
    num_agreed, sum_overlap = _likeness(reading, noise)
    other_picks, close_calls = noise.targets_own(pair.target.close_call)
    max_drafted_len = pair.max_drafted_len
    rounds = replay(
        output,
        drafted_KN.tolist(),
        example.params.max_tokens,
        row.stop_ids(eos_token_ids),
        max_drafted_len=len(output) if max_drafted_len is None else max_drafted_len - len(prompt),
        first=reading.first,
        close_calls=close_calls,
    )
    return KindScore(
        num_rows=1,
        num_tokens=len(output),
        num_agreed=num_agreed,
        sum_overlap=sum_overlap,
        num_matched=int((drafted_KN[0] == noise.tokens_1N[0]).sum()),
        num_known=len(output) if noise.is_known else 0,
        num_reproduced=_num_reproduced(pair, noise, other_picks) if noise.is_known else 0,
        rounds=rounds,
    )


def _drafted(reading: Reading, noise: NoiseOfText, num_draft_tokens: int) -> torch.Tensor:
    """Return what a round that begins at output token s drafts for token s + k, [K, N]; -1 where that is nothing."""
    num_output, first = noise.tokens_1N.shape[1], reading.first
    drafted_KN = torch.full((num_draft_tokens, num_output), -1, device=noise.tokens_1N.device)
    if reading.has_all_steps:
        for step, logits_1JV in enumerate(reading.draft_steps):
            drafted_KN[step, first : num_output - step] = noise.picks(logits_1JV, first + step)
        return drafted_KN
    picks_N = noise.picks(reading.draft_steps[0], 0)
    for step in range(min(num_draft_tokens, num_output)):
        drafted_KN[step, : num_output - step] = picks_N[step:]
    return drafted_KN


def _likeness(reading: Reading, noise: NoiseOfText) -> tuple[int, float]:
    """Return at how many tokens both models find the same one likeliest, and the sum of what their laws share."""
    target_1JV, draft_1JV = reading.target_logits_1NV[:, reading.first :], reading.draft_steps[0]
    agreed, shared = 0, 0.0
    for start, end in spans(draft_1JV):
        parts = [logits_1JV[:, start:end] for logits_1JV in (target_1JV, draft_1JV)]
        agreed += int((parts[0].argmax(-1) == parts[1].argmax(-1)).sum())
        laws = [
            probabilities(noise.scores(part, reading.first + start)[None], noise.rows.sampling).double()
            for part in parts
        ]
        shared += float(torch.minimum(*laws).sum())
    return agreed, shared


def _num_reproduced(pair: Pair, noise: NoiseOfText, other_picks: Sequence[int]) -> int:
    """Count the tokens that the target picks again, near ties decided as the engine does: by the row alone."""
    output: list[int] = noise.tokens_1N[0].tolist()
    num_equal = len(output) - len(other_picks)
    if not pair.target.close_call or len(other_picks) > _MOST_RECHECKS:
        return num_equal
    again = [pair.target.decide(noise.rows, output[:at], None).next_token for at in other_picks]
    return num_equal + sum(token == output[at] for token, at in zip(again, other_picks, strict=True))
