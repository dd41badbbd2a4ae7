"""The texts among the bad words of sampling parameters, as the token ids that an engine needs."""

from dataclasses import replace

from decoding.sampling_params import SamplingParams
from pipeline.text.codec import TextCodec


def with_bad_word_ids(params: SamplingParams, codec: TextCodec) -> SamplingParams:
    """Return the parameters with token ids in place of texts; the argument itself if it has no texts.

    Raises ValueError for a text that has none.
    """
    if not any(isinstance(word, str) for word in params.bad_words):
        return params
    return replace(params, bad_words=codec.bad_words(params.bad_words))
