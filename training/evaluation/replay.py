"""The rounds that a run would have had with a draft, replayed on texts that are written already.

Under shared noise a drafted token is accepted if and only if it is the token that stands there. As long as all before
were accepted, the tokens before it are those of the text. So from any place of the text it is known how many tokens
a draft of K would have had accepted, and with that where the next round begins.

Where rounding could decide a pick of the target, the engine ends the round and scores the row again alone, which costs
the tokens behind it; rounds end there here, too.

What the tokens behind the first rejected one would have been is not known. One of them may be an end token, behind
which a live run drafts no more: its number of drafted tokens is then smaller. All other counts are those of a run.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from itertools import accumulate

from pipeline.counts import Counts


def replay(
    output_token_ids: Sequence[int],
    drafted_KN: Sequence[Sequence[int]],
    max_tokens: int,
    stop_ids: Set[int],
    max_drafted_len: int,
    first: int = 0,
    close_calls: Set[int] = frozenset(),
) -> Counts:
    """Return the counts of the rounds that would have written this output with drafts of K tokens.

    `drafted_KN[k][s]` is what a round that begins at output token s drafts for token s + k, given the text before that;
    what would lie behind the text's end is not looked at. A row may have `max_tokens` output tokens, may draft tokens
    that lie before output token `max_drafted_len`, and drafts nothing in rounds before output token `first`. At each of
    the `close_calls` (places in the output) a round ends.
    """
    num_output, num_steps = len(output_token_ids), len(drafted_KN)
    num_rounds = num_drafted = 0
    rounds_by_accepted = [0] * (num_steps + 1)
    start = 0
    while start < num_output:
        # A round adds one token to what it accepts, so a draft is no longer than what the row may keep less one.
        limit = max(0, min(num_steps, max_tokens - start - 1, max_drafted_len - start)) if start >= first else 0
        accepted, drafted = 0, limit
        for step in range(min(limit, num_output - start)):
            token, place = drafted_KN[step][start], start + step
            if token in stop_ids:  # what is drafted after an end token cannot be kept
                drafted = step + 1
            if token != output_token_ids[place] or place in close_calls:
                break
            accepted += 1
        num_rounds += 1
        num_drafted += drafted
        rounds_by_accepted[accepted] += 1
        start += accepted + 1
    per_position = list(accumulate(reversed(rounds_by_accepted[1:])))[::-1]
    num_accepted = sum(per_position)
    return Counts(
        num_rounds=num_rounds,
        num_draft_tokens=num_drafted,
        num_accepted_tokens=num_accepted,
        accepted_per_position=tuple(per_position),
    )
