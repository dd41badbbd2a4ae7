"""Limits of a request that depend on the model: how much of a prompt stays, and how much may be drafted."""

from __future__ import annotations

from pipeline.errors import FieldError


def num_kept_tokens(wanted: int, max_tokens: int, max_model_len: int) -> int:
    """Return how many of a prompt's tokens stay for `truncate_prompt_tokens`: -1 leaves room for `max_tokens`.

    Raises FieldError for more than the context has.
    """
    if wanted == -1:
        return max(1, max_model_len - min(max_tokens, max_model_len - 1))
    if wanted > max_model_len:
        raise FieldError("truncate_prompt_tokens", f"expected at most {max_model_len}, which is this model's context")
    return wanted


def check_num_drafted(wanted: int | None, most: int) -> None:
    """Raise FieldError if `num_speculative_tokens` is more than the engine drafts in a round."""
    if wanted is not None and wanted > most:
        reason = f"this server drafts at most {most} tokens in a round, got {wanted}; ask for fewer, or leave it out"
        raise FieldError("num_speculative_tokens", reason)
