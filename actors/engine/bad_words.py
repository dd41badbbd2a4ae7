"""The texts among the bad words of sampling parameters, as the token ids that an engine needs."""

from dataclasses import replace

from decoding.sampling_params import SamplingParams
from pipeline.text.bad_words import bad_word_ids
from pipeline.text.codec import TextCodec


def with_bad_word_ids(params: SamplingParams, codec: TextCodec) -> SamplingParams:
    """Return the parameters with token ids in place of texts; the argument itself if it has no texts.

    Raises ValueError for a text that has none.
    """
    if not any(isinstance(word, str) for word in params.bad_words):
        return params
    found: dict[tuple[int, ...], None] = {}
    for index, word in enumerate(params.bad_words):
        try:
            found |= dict.fromkeys(bad_word_ids(codec, word) if isinstance(word, str) else [word])
        except ValueError as error:
            raise ValueError(f"sampling.bad_words[{index}] is {word!r}, and {error}") from error
    return replace(params, bad_words=tuple(found))
