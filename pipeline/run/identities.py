"""The identities that the counts of every generation row obey."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

COLUMNS = [
    "row_id",
    "sample",
    "token_ids",
    "finish_reason",
    "num_prompt_tokens",
    "num_cached_tokens",
    "num_output_tokens",
    "num_rounds",
    "num_draft_tokens",
    "num_accepted_tokens",
    "accepted_per_position",
    "logprobs",
]


def contradictions(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each contradiction in a generation row's counts; a sound row has none."""
    accepted, drafted, rounds = row["num_accepted_tokens"], row["num_draft_tokens"], row["num_rounds"]
    per_position, num_output = row["accepted_per_position"], row["num_output_tokens"]
    nulls = [name for name in COLUMNS if row[name] is None and name != "logprobs"]
    if nulls:
        yield f"{', '.join(nulls)} is null"
        return
    if len(row["token_ids"]) != num_output:
        yield f"num_output_tokens is {num_output} and there are {len(row['token_ids'])} token_ids"
    if row["logprobs"] is not None and len(row["logprobs"]) != num_output:
        yield f"num_output_tokens is {num_output} and there are {len(row['logprobs'])} logprobs"
    prompt, cached = row["num_prompt_tokens"], row["num_cached_tokens"]
    if cached >= prompt:
        yield f"num_cached_tokens is {cached} and num_prompt_tokens {prompt}: the newest token is always computed"
    if min(accepted, drafted, rounds, num_output, cached, *per_position, 0) < 0:
        yield "a count is negative"
    if sum(per_position) != accepted:
        yield f"accepted_per_position sums to {sum(per_position)} and num_accepted_tokens is {accepted}"
    if any(later > earlier for earlier, later in pairwise(per_position)):
        yield f"accepted_per_position increases: {per_position}"
    if accepted > drafted:
        yield f"num_accepted_tokens is {accepted} and num_draft_tokens {drafted}"
    # Each round commits its accepted tokens and one of the target's own. A sequence that stops at an accepted token
    # never gets the target's own token of the last round; one that reaches its length limit does, since no draft goes
    # beyond the limit.
    lost = accepted + rounds - num_output
    if not 0 <= lost <= (0 if row["finish_reason"] == "length" else 1):
        yield (
            f"{accepted} accepted tokens and {rounds} rounds do not make {num_output} output tokens "
            f"(finish_reason {row['finish_reason']})"
        )
