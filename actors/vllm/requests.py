"""What a sequence is to vLLM: sampling parameters going in; tokens, log-probabilities and counts coming out."""

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

from vllm import SamplingParams as VllmParams
from vllm.sampling_params import RequestOutputKind

from actors.vllm.forms import structured_outputs
from decoding.scope import Scope
from decoding.sequence import AskedScores, Sequence, TokenLogprobs


def vllm_params(sequence: Sequence, eos_token_ids: frozenset[int]) -> VllmParams:
    """Return the sampling parameters of one sequence: one sample, whose tokens come round by round.

    vLLM ends it at the same ids as Dray's engine, which are named here one by one. Stop strings are looked for in the
    text of Dray's own codec. The seed is that of the row and sample, so that equal prompts get different texts.
    """
    params = sequence.params
    asked = VllmParams(
        n=1,
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        logit_bias=dict(params.logit_bias) or None,
        seed=sequence.noise_key % 2**63 if params.temperature else None,
        max_tokens=sequence.max_tokens,
        min_tokens=min(params.min_tokens, sequence.max_tokens),
        stop_token_ids=sorted(sequence.stop_ids(eos_token_ids)),
        ignore_eos=True,
        logprobs=params.logprobs,
        structured_outputs=None if params.structured is None else structured_outputs(params.structured),
        allowed_token_ids=None if params.allowed_token_ids is None else list(params.allowed_token_ids),
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )
    if params.bad_words:  # as token ids, which vLLM makes of texts by a tokenizer that it does not have here
        asked._bad_words_token_ids = [list(word) for word in params.bad_word_ids]
    return asked


def vllm_prompt(token_ids: Seq[int], scope: Scope) -> dict[str, Any]:
    """Return a prompt, whose prefixes vLLM computes anew for each scope: it keeps them by the salt."""
    return {"prompt_token_ids": list(token_ids), **({"cache_salt": scope.prefixes} if scope.prefixes else {})}


def scoring_params(num_top: int) -> VllmParams:
    """Return the parameters of a prompt whose own tokens are scored; the one token that it writes is not wanted."""
    return VllmParams(
        temperature=0.0,
        max_tokens=1,
        prompt_logprobs=num_top,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )


@dataclass
class Running:
    """A sequence that vLLM works on, with what was read of its counts so far."""

    sequence: Sequence
    internal_id: str  # vLLM's own name of the request
    num_drafted: int = 0
    num_accepted: int = 0  # also of tokens beyond an end, which are no part of the text

    def take(self, output: Any, metrics: Any, eos_token_ids: frozenset[int]) -> None:
        """Append the tokens of a round, which `output` has, and count them by `metrics`, which may be None.

        Both are vLLM's: a CompletionOutput, and the RequestSpecDecodeMetrics of the request so far.
        """
        sequence, tokens = self.sequence, list(output.token_ids)
        drafted, accepted = _totals(metrics)
        if tokens:
            num_accepted = accepted - self.num_accepted
            if output.finish_reason == "length":  # its last token counts as the target's own, as no draft is longer
                num_accepted = min(num_accepted, len(tokens) - 1)
            sequence.commit(
                tokens,
                num_draft_tokens=drafted - self.num_drafted,
                num_accepted=num_accepted,
                eos_token_ids=eos_token_ids,
                logprobs=[] if output.logprobs is None else logprobs_of(output.logprobs, tokens, sequence),
            )
        self.num_drafted, self.num_accepted = drafted, accepted
        if output.finish_reason is not None and not sequence.is_finished:
            sequence.fail(f"vLLM ended it with {output.finish_reason!r}")


def _totals(metrics: Any) -> tuple[int, int]:
    """Return how many tokens were drafted and accepted so far."""
    if metrics is None:
        return 0, 0
    return metrics.num_draft_tokens, sum(length * times for length, times in enumerate(metrics.histogram))


def logprobs_of(positions: Seq[Mapping[int, Any]], tokens: Seq[int], sequence: Sequence) -> list[TokenLogprobs]:
    """Return vLLM's log-probabilities of these tokens, each with as many others as the sequence wants."""
    num_top = sequence.params.logprobs or 0
    return [token_logprobs(entries, token, num_top) for entries, token in zip(positions, tokens, strict=True)]


def asked_logprobs(positions: Seq[Mapping[int, Any]], asked: AskedScores) -> list[TokenLogprobs]:
    """Return vLLM's log-probabilities of a text's own tokens, of which it says none for the first one."""
    return [token_logprobs(positions[index + 1], token, asked.num_top) for index, token in asked.pairs]


def token_logprobs(entries: Mapping[int, Any], token: int, num_top: int) -> TokenLogprobs:
    """Return the log-probability of a token, with the `num_top` most likely ones, best first."""
    ranked = sorted((entry.rank, token_id, entry.logprob) for token_id, entry in entries.items())
    top = tuple((token_id, logprob) for rank, token_id, logprob in ranked if rank <= num_top)
    return TokenLogprobs(entries[token].logprob, top, entries[token].rank)
