"""The one place where rows become scored texts, and scored texts become rows."""

import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

from actors.engine.translation import top_logprobs
from decoding.engine.scored_text import ScoredText
from pipeline.errors import RowError
from pipeline.inputs.rows import InputRow
from pipeline.inputs.score import BestBy, ScoreOptions
from pipeline.text.codec import TextCodec
from pipeline.text.text_behind import TextBehind


@dataclass(frozen=True)
class ScoredRow:
    """An input row with its prompt as text and what is scored behind it, as texts and as one ScoredText."""

    row: InputRow
    prompt: str
    texts: tuple[str, ...]  # of the candidates; the prompt itself where its own tokens are scored
    num_prompt_tokens: int
    scored: ScoredText


def encode_scored_row(row: InputRow, codec: TextCodec, options: ScoreOptions) -> ScoredRow:
    """Return the row ready to be scored. Raises RowError."""
    candidates = options.candidates(row)
    prompt, token_ids = codec.prompt(row)
    num_top = max(1, options.top_logprobs)  # the best one says whether a text is greedy
    if not candidates:
        if len(token_ids) < 2:
            raise RowError("encode", "the text has one token, and the first token of a text has no score")
        return ScoredRow(row, prompt, (prompt,), len(token_ids), ScoredText.whole(token_ids, num_top))
    continuations, texts = list[tuple[int, ...]](), list[str]()
    for candidate in candidates:
        if isinstance(candidate, str):
            continuations.append(tuple(codec.continuation(prompt, token_ids, candidate, row.messages is not None)))
            texts.append(candidate)
        else:
            continuations.append(candidate)
            texts.append("")  # decoded once the engine has found them to be tokens
    scored = ScoredText(tuple(token_ids), tuple(continuations), num_top)
    return ScoredRow(row, prompt, tuple(texts), len(token_ids), scored)


def decode_scored_row(scored: ScoredRow, codec: TextCodec, options: ScoreOptions) -> list[dict[str, Any]]:
    """Return the output rows of a row whose text is finished, in the order of `schema.generations_schema`.

    Raises RowError (stage "generate") if the text failed.
    """
    text = scored.scored
    if text.error is not None:
        raise RowError("generate", text.error)
    logprobs = [math.fsum(entry.logprob for entry in scores) for scores in text.scores]
    probabilities = _probabilities(logprobs)
    best = best_of(logprobs, [len(scores) for scores in text.scores], options.best_by)
    kept = [best] if options.keep == "best" else range(len(logprobs))
    rows = []
    for sample, number in enumerate(kept):
        rows.append(
            {
                **_shared_columns(scored, number, sample, codec, options),
                "candidate": number,
                "logprob": logprobs[number],
                "perplexity": _perplexity(logprobs[number], len(text.scores[number])),
                "is_greedy": all(entry.logprob >= entry.top[0][1] for entry in text.scores[number]),
                "probability": None if probabilities is None else probabilities[number],
                "is_best": number == best,
                "candidate_logprobs": logprobs if options.keep == "best" else None,
                "candidate_probabilities": probabilities if options.keep == "best" else None,
                **scored.row.carried,
            }
        )
    return rows


def best_of(logprobs: Seq[float], num_tokens: Seq[int], best_by: BestBy) -> int:
    """Return the number of the best text, the first one of equal ones."""
    values = logprobs
    if best_by == "mean_logprob":
        values = [logprob / max(1, number) for logprob, number in zip(logprobs, num_tokens, strict=True)]
    return max(range(len(values)), key=lambda number: (values[number], -number))


def _shared_columns(
    scored: ScoredRow, number: int, sample: int, codec: TextCodec, options: ScoreOptions
) -> dict[str, Any]:
    """Return the columns that generations have, too."""
    row, text, scores = scored.row, scored.scored, scored.scored.scores[number]
    token_ids, num_top = list(text.continuations[number]), options.top_logprobs
    return {
        "row_id": row.row_id,
        "sample": sample,
        "id": row.user_id,
        "prompt": scored.prompt,
        "is_chat": row.messages is not None,
        "text": scored.texts[number] or TextBehind(codec, text.prompt_token_ids).decode(token_ids),
        "token_ids": token_ids,
        "finish_reason": "scored",
        "stop_reason": None,
        "num_prompt_tokens": scored.num_prompt_tokens,
        "num_cached_tokens": min(text.num_cached_tokens, scored.num_prompt_tokens - 1) if sample == 0 else 0,
        "num_output_tokens": len(token_ids),
        "num_rounds": 0,
        "num_draft_tokens": 0,
        "num_accepted_tokens": 0,
        "accepted_per_position": [],
        "logprobs": [entry.logprob for entry in scores],
        "top_logprobs": [top_logprobs(entry.top[:num_top]) for entry in scores] if num_top else None,
        "draft_version": 0,
    }


def _probabilities(logprobs: Seq[float]) -> list[float] | None:
    """Return the distribution over texts of these log-probabilities; None if none of them can be written."""
    highest = max(logprobs)
    if highest == -math.inf:
        return None
    weights = [math.exp(logprob - highest) for logprob in logprobs]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def _perplexity(logprob: float, num_tokens: int) -> float:
    try:
        return math.exp(-logprob / num_tokens)
    except OverflowError:
        return math.inf
