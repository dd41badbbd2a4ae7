"""The check that target and draft mean the same by a token id."""

from transformers import AutoTokenizer


def check_same_vocabulary(target: str, draft: str, target_size: int, draft_size: int) -> None:
    """Raise a ValueError naming the first token id that means something else to the draft than to the target.

    One may know more ids than the other (padding, added tokens): the draft never proposes an id the target lacks.
    Without a tokenizer beside both models only the sizes can be compared, and they must be equal.
    """
    target_tokens, draft_tokens = _tokens_by_id(target), _tokens_by_id(draft)
    if target_tokens is None or draft_tokens is None:
        if target_size != draft_size:
            raise ValueError(
                f"the draft {draft!r} has {draft_size} token ids and the target {target!r} has {target_size}, and "
                "without a tokenizer in both folders nobody can tell whether they agree; put the tokenizer files there"
            )
        return
    for token_id in sorted(target_tokens.keys() & draft_tokens.keys()):
        if target_tokens[token_id] != draft_tokens[token_id]:
            raise ValueError(
                f"the draft {draft!r} does not share the vocabulary of the target {target!r}: token id {token_id} is "
                f"{draft_tokens[token_id]!r} to the draft and {target_tokens[token_id]!r} to the target; "
                "use a draft of the same family, or drafter 'ngram', which needs no second model"
            )


def _tokens_by_id(path: str) -> dict[int, str] | None:
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except (OSError, ValueError, KeyError):
        return None
    return {token_id: token for token, token_id in tokenizer.get_vocab().items()}
