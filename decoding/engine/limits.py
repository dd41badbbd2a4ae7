"""Limits: which sequences an engine can run, by the length of its context and its vocabulary."""

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from decoding.sampling.token_history import dead_end
from decoding.scoring.text import ScoredText
from decoding.sequence import Sequence


@dataclass(frozen=True)
class Limits:
    """What every sequence must keep to."""

    max_model_len: int  # tokens of prompt and output
    vocab_size: int
    eos_token_ids: frozenset[int]

    def problem_with(self, sequence: Sequence) -> str | None:
        """Return why the engine cannot run this sequence; None if it can."""
        params, vocab_size = sequence.params, self.vocab_size
        if problem := self.problem_with_prompt(sequence.prompt_token_ids, self.max_model_len - 1):
            return problem
        stop_ids = sequence.stop_ids(self.eos_token_ids)
        if params.min_tokens and sum(token_id < vocab_size for token_id in stop_ids) == vocab_size:
            return "every token id is a stop id and sampling.min_tokens forbids them all; name fewer stop_token_ids"
        named = (params.logit_bias, params.allowed_token_ids or (), params.bad_word_list.outside(vocab_size))
        if problem := next(filter(None, map(self._foreign, named)), None):
            return problem
        return dead_end(sequence, (), vocab_size, stop_ids, with_grammar=False)

    def problem_with_prompt(self, token_ids: Seq[int], max_tokens: int) -> str | None:
        """Return why the engine cannot read a prompt of at most `max_tokens`; None if it can."""
        if not token_ids:
            return "the prompt has no tokens; a language model needs at least one to continue"
        if len(token_ids) > max_tokens:
            also = ", which must also hold the output" if max_tokens < self.max_model_len else ""
            return (
                f"the prompt has {len(token_ids)} tokens and the context is {self.max_model_len}{also}; shorten the "
                "prompt or raise engine.max_model_len"
            )
        return self._foreign(token_ids)

    def problem_with_text(self, text: ScoredText, num_behind: int = 0) -> str | None:
        """Return why the engine cannot score this text with `num_behind` tokens behind it; None if it can."""
        if problem := self.problem_with_prompt(text.prompt_token_ids, self.max_model_len - num_behind):
            return problem
        longest = max(map(len, text.continuations), default=0)
        num_tokens = len(text.prompt_token_ids) + longest
        if num_tokens > self.max_model_len - num_behind:
            parts = f"({len(text.prompt_token_ids)} of the prompt and {longest} behind it) "
            return (
                f"the text has {num_tokens} tokens {parts if len(text.prompt_token_ids) > 1 else ''}and the context is "
                f"{self.max_model_len}; shorten the text or raise engine.max_model_len"
            )
        return next(filter(None, map(self._foreign, text.continuations)), None)

    def _foreign(self, token_ids: Iterable[int]) -> str | None:
        foreign = next((token_id for token_id in token_ids if not 0 <= token_id < self.vocab_size), None)
        return (
            None if foreign is None else f"token id {foreign} is outside the target's vocabulary of {self.vocab_size}"
        )
