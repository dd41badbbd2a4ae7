"""Log-probabilities in the forms of the two APIs: of what was written, and of prompts, for `echo` and vLLM's fields."""

from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any

from actors.engine.deltas import Delta, Ending
from actors.engine.requests import EngineFacts, Generation, Scoring
from decoding.sampling_params import SamplingParams
from decoding.sequence import TokenLogprobs
from endpoint.service.backend import in_time
from endpoint.service.service import PreparedRequest, Service
from pipeline.text.codec import TextCodec

_LOWEST = -9999.0  # JSON has no infinity
_ONE_LIKELIEST = SamplingParams(temperature=0, max_tokens=1)


def completion_logprobs(
    codec: TextCodec, token_ids: Seq[int], logprobs: Seq[TokenLogprobs | None], offsets: Seq[int], num_top: int
) -> dict[str, Any]:
    """Return four lists with an entry for each token, which is None for a token that has no token before it.

    Its alternatives are the `num_top` likeliest tokens and the token itself. Of those that are written alike the most
    likely one is shown.
    """
    tops: list[dict[str, float] | None] = []
    for token_id, entry in zip(token_ids, logprobs, strict=True):
        if entry is None:
            tops.append(None)
            continue
        top: dict[str, float] = {}
        for other, value in (*entry.top[:num_top], (token_id, entry.logprob)):
            top.setdefault(_written(codec, other), finite(value))
        tops.append(top)
    return {
        "tokens": [_written(codec, token_id) for token_id in token_ids],
        "token_logprobs": [None if entry is None else finite(entry.logprob) for entry in logprobs],
        "top_logprobs": tops,
        "text_offset": list(offsets),
    }


def chat_logprobs(codec: TextCodec, token_ids: Seq[int], logprobs: Seq[TokenLogprobs]) -> dict[str, Any]:
    """Return a list with an object for each token."""
    content = [
        {
            **_chat_entry(codec, token_id, entry.logprob),
            "top_logprobs": [_chat_entry(codec, other, value) for other, value in entry.top],
        }
        for token_id, entry in zip(token_ids, logprobs, strict=True)
    ]
    return {"content": content, "refusal": None}


def _chat_entry(codec: TextCodec, token_id: int, logprob: float) -> dict[str, Any]:
    token_bytes = codec.token_bytes(token_id)
    return {
        "token": codec.token_text(token_id),
        "logprob": finite(logprob),
        "bytes": None if token_bytes is None else list(token_bytes),
    }


def _written(codec: TextCodec, token_id: int) -> str:
    """Return a token's text, or its bytes in OpenAI's notation if they are a part of a character.

    The replacement character would be the same for all such tokens.
    """
    text = codec.token_text(token_id)
    token_bytes = codec.token_bytes(token_id) if "\ufffd" in text else None
    return text if token_bytes is None else "bytes:" + "".join(f"\\x{byte:02x}" for byte in token_bytes)


def finite(logprob: float) -> float:
    """Return a log-probability as JSON can hold it."""
    return max(logprob, _LOWEST)


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


def is_next_token(generation: Generation) -> bool:
    """Return whether a request asks for the likeliest token behind each prompt, and nothing else.

    lm-eval asks for one token behind each text that it wants scored, and does not look at it. Without noise that token
    is the likeliest one behind the text, which the forward that scores the text knows. To write it would read the text
    again.
    """
    return replace(generation.params, logprobs=None, seed=None) == _ONE_LIKELIEST


def known_deltas(
    generation: Generation, scores: Seq[Seq[TokenLogprobs]], facts: EngineFacts
) -> tuple[list[Seq[TokenLogprobs]], list[Delta]]:
    """Return the scores of the prompts' own tokens, and what is written behind the prompts: nothing if it is not known.

    It is known of a prompt whose scores have an entry more (`Replica.score`), and has to be for all prompts.
    """
    own = [each[: len(prompt) - 1] for prompt, each in zip(generation.prompts, scores, strict=True)]
    behind = [each[len(prompt) - 1 :] for prompt, each in zip(generation.prompts, scores, strict=True)]
    if not all(behind):
        return own, []
    return own, [_delta(index, entry, generation, facts) for index, (entry,) in enumerate(behind)]


def _delta(index: int, entry: TokenLogprobs, generation: Generation, facts: EngineFacts) -> Delta:
    token_id, num_top = entry.top[0][0], generation.params.logprobs
    logprobs = () if num_top is None else (TokenLogprobs(entry.logprob, entry.top[:num_top]),)
    ending = Ending("stop" if token_id in facts.eos_token_ids else "length", None, None, 0)
    return Delta(index, (token_id,), logprobs=logprobs, ending=ending)
