"""The score of a draft on examples: what it would have drafted, and what of that would have been accepted.

Shapes: N output tokens, J of them, K drafted tokens of a round, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from decoding.checkpoint.loading import DType
from decoding.device import Device
from decoding.sampling.distribution import probabilities
from training.corpus.example import Example
from training.evaluation.kind_score import DraftScore, KindScore
from training.evaluation.noise_of_text import NoiseOfText, spans
from training.evaluation.pair import Pair, Reading
from training.evaluation.replay import replay

_MOST_RECHECKS = 8  # of a text, where rounding may have decided a pick; a text of the target needs hardly one


def score(
    draft: str | Pair,
    target: str,
    examples: Iterable[Example],
    num_draft_tokens: int = 4,
    device: Device = "auto",
    dtype: DType = "auto",
) -> DraftScore:
    """Score a draft, or one that is loaded, on these examples, with rounds of at most `num_draft_tokens`.

    In float32 the rounds are those of a run with `engine.draft_length` "fixed" that writes the same rows, but for two
    known differences: more tokens are counted as drafted where a live draft would have met an end token behind a
    rejected one (so the acceptance rate is a little low), and a near tie of the draft's own may fall the other way.
    Raises ValueError for a draft that the engine refuses, or whose rounds cannot be replayed.
    """
    pair = draft if isinstance(draft, Pair) else Pair.load(draft, target, device, dtype)
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
