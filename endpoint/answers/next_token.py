"""The token behind a prompt that is scored: what a request for a single token writes, known without writing it.

lm-eval asks for one token behind each text that it wants scored, and does not look at it. Without noise that token is
the likeliest one behind the text, which the forward that scores the text knows. To write it would read the text again.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace

from actors.engine.deltas import Delta, Ending
from actors.engine.requests import EngineFacts, Generation
from decoding.sampling_params import SamplingParams
from decoding.sequence import TokenLogprobs

_ONE_LIKELIEST = SamplingParams(temperature=0, max_tokens=1)


def is_next_token(generation: Generation) -> bool:
    """Return whether a request asks for the likeliest token behind each prompt, and nothing else."""
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
