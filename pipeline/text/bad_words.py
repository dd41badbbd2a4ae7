"""Bad words: the tokens of a text that an output must not have."""

from __future__ import annotations

from pipeline.text.codec import TextCodec


def bad_word_ids(codec: TextCodec, text: str) -> list[tuple[int, ...]]:
    """Return the token ids of a text where it begins an output, and where a space is before it, if these differ.

    vLLM leaves the second out where it has another number of tokens than the first. Here it stays: a word that is
    forbidden is forbidden behind a space, too. Raises ValueError for a text without tokens.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"it holds half a surrogate pair, which is no character: {error}") from error
    bare = text.lstrip(" ")
    found = []
    for spelling in [bare, f" {bare}"] if bare else [text]:
        found.append(tuple(codec.tokenizer(spelling, add_special_tokens=False, verbose=False)["input_ids"]))
    if not all(found):
        raise ValueError("it has no tokens: the tokenizer drops all of its characters")
    return list(dict.fromkeys(found))
