"""Scores of a request's prompts, for `echo` and for `prompt_logprobs`, whose form is vLLM's."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

from actors.engine.requests import Scoring
from decoding.sequence import TokenLogprobs
from endpoint.answers.logprobs import finite
from endpoint.service.backend import in_time
from endpoint.service.service import PreparedRequest, Service
from pipeline.text.codec import TextCodec


async def score_prompts(
    service: Service, prepared: PreparedRequest, num_top: int, *, has_ranks: bool, has_next: bool = False
) -> list[list[TokenLogprobs]]:
    """Return the log-probabilities of each prompt's tokens but the first. Raises ApiError.

    With `has_next` an entry of the token behind a prompt may follow, as `Replica.score` says. There may be more likely
    tokens than `num_top` then.
    """
    generation = prepared.generation
    scoring = Scoring(
        request_id=generation.request_id,
        prompts=generation.prompts,
        num_top=num_top,
        owner=generation.owner,
        has_ranks=has_ranks,
        has_next=has_next,
    )
    async with in_time(prepared.call.deadline):
        return await service.backend.score(scoring)


def prompt_logprobs(
    codec: TextCodec, token_ids: Seq[int], scores: Seq[TokenLogprobs], num_top: int
) -> list[dict[str, dict[str, Any]] | None]:
    """Return for each token of a prompt its log-probability with those of the `num_top` likeliest ones, by token id.

    There is None for the first token, which nothing stands before.
    """
    entries: list[dict[str, dict[str, Any]] | None] = [None]
    for token_id, score in zip(token_ids[1:], scores, strict=True):
        ranked = [(token_id, score.logprob, score.rank)]
        ranked += [(other, logprob, rank) for rank, (other, logprob) in enumerate(score.top[:num_top], 1)]
        entries.append(
            {
                str(other): {"logprob": finite(logprob), "rank": rank, "decoded_token": codec.token_text(other)}
                for other, logprob, rank in ranked
            }
        )
    return entries
