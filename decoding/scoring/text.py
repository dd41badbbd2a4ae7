"""ScoredText: a prompt and the continuations of it that are scored, with their log-probabilities in the end."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any

from decoding.scope import ONE_FOR_ALL, Scope
from decoding.sequence import TokenLogprobs


@dataclass(eq=False)
class ScoredText:
    """A prompt, continuations of it, and for each token of each continuation its log-probability.

    A token's is that under the target's raw logits, behind the prompt and the tokens of the continuation before it.
    `tag` belongs to the caller. A text ends with its scores or with an error.
    """

    prompt_token_ids: tuple[int, ...]
    continuations: tuple[tuple[int, ...], ...]
    num_top: int = 0  # likely tokens that are wanted beside each token
    tag: Any = None
    has_ranks: bool = False  # whether the rank of each token among all is wanted, too
    scope: Scope = ONE_FOR_ALL  # the texts that may be read together with it

    scores: list[list[TokenLogprobs]] = field(default_factory=list)  # of each continuation; once it is finished
    num_cached_tokens: int = 0  # the first ones, of prompt and first continuation, that another text had read
    error: str | None = None
    is_finished: bool = False

    @classmethod
    def whole(cls, token_ids: Seq[int], num_top: int = 0, **fields: Any) -> "ScoredText":
        """Return a text with these other fields of which all tokens but the first are scored."""
        return cls(tuple(token_ids[:1]), (tuple(token_ids[1:]),), num_top, **fields)

    def fail(self, message: str) -> None:
        """End with an error."""
        self.error, self.is_finished, self.scores = message, True, []
