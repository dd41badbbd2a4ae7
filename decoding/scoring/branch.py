"""Branch: a prompt with one of its continuations, as it is read by forwards.

The first branch of a text also asks for the first tokens of all other continuations, which stand behind the same
position. So a label of one token costs no forward of its own, and the other branches ask for nothing of the prompt.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from decoding.common_prefix import common_prefix
from decoding.sampling.logprobs import Stretch
from decoding.scoring.text import ScoredText
from decoding.sequence import TokenLogprobs


@dataclass(eq=False)
class Branch:
    """Tokens to read, what is asked for behind them, and what was found so far."""

    text: ScoredText
    token_ids: tuple[int, ...]
    asked: tuple[tuple[int, int], ...]  # (index into token_ids, a token that may stand behind it), in order
    owners: tuple[int, ...]  # the continuation that each asked token belongs to
    is_suspect: bool = False  # something failed over it, or over one beside it: it runs alone
    num_losses: int = 0  # of the target over it, since it last went on
    num_read: int = 0  # tokens that it has come to, though slots may have been lost since
    logprobs: list[TokenLogprobs] = field(default_factory=list)  # of the first asked tokens

    @cached_property
    def asked_set(self) -> frozenset[tuple[int, int]]:
        """All that is asked for."""
        return frozenset(self.asked)

    def num_shareable(self, other: "Branch") -> int:
        """Return how many of the first tokens another branch reads for this one, too: with all that is asked there.

        A branch of another scope reads none for it.
        """
        text, others = self.text, other.text
        if text.scope.prefixes != others.scope.prefixes:
            return 0
        num_common = common_prefix(self.token_ids, other.token_ids)
        is_alike = (text.num_top, text.has_ranks) == (others.num_top, others.has_ranks)
        answered = other.asked_set if is_alike else frozenset()
        for index, token in self.asked[len(self.logprobs) :]:
            if index >= num_common:
                break
            if (index, token) not in answered:
                return index
        return num_common

    def take_over(self, other: "Branch", num_tokens: int) -> None:
        """Take the answers of a branch that has read these first tokens, too."""
        answers = dict(zip(other.asked, other.logprobs, strict=False))
        for asked in self.asked[len(self.logprobs) :]:
            if asked[0] >= num_tokens:
                break
            self.logprobs.append(answers[asked])

    @property
    def is_done(self) -> bool:
        """Whether all that is asked for was found."""
        return len(self.logprobs) == len(self.asked)

    def stretch(self, slot: int, num_held: int, num_tokens: int) -> Stretch:
        """Return the next tokens behind those that the slot holds. What was found is not asked for again."""
        end = num_held + num_tokens
        unknown = self.asked[len(self.logprobs) :]
        asked = tuple((index - num_held, token) for index, token in unknown if num_held <= index < end)
        return Stretch(slot, num_held, self.token_ids[num_held:end], asked, self.text.num_top, self.text.has_ranks)


def branches_of(text: ScoredText) -> Iterator[Branch]:
    """Yield the branches of a text, whose results `collect` takes. There is none if nothing is asked for."""
    prompt, last = text.prompt_token_ids, len(text.prompt_token_ids) - 1
    begun = [number for number, continuation in enumerate(text.continuations) if continuation]
    if not begun:
        return
    firsts = tuple((last, text.continuations[number][0]) for number in begun)
    longer = [number for number in begun if len(text.continuations[number]) > 1]
    for place, number in enumerate(longer or begun[:1]):
        continuation = text.continuations[number]
        asked = tuple((last + index, token) for index, token in enumerate(continuation) if index)
        owners, token_ids = (number,) * len(asked), (*prompt, *continuation[:-1])
        if place == 0:
            yield Branch(text, token_ids, firsts + asked, (*begun, *owners))
        else:
            yield Branch(text, token_ids, asked, owners)


def collect(text: ScoredText, branches: list[Branch]) -> None:
    """Finish a text with what its branches found; they come in the order of `branches_of`."""
    scores: list[list[TokenLogprobs]] = [[] for _ in text.continuations]
    for branch in branches:
        for owner, logprob in zip(branch.owners, branch.logprobs, strict=True):
            scores[owner].append(logprob)
    text.scores, text.is_finished = scores, True
