"""The token ids that a request or a row names, against those that the model has; and those of its bad words."""

from collections.abc import Collection
from dataclasses import replace
from itertools import chain

from decoding.sampling_params import SamplingParams
from pipeline.errors import FieldError
from pipeline.inputs.rows import InputRow
from pipeline.requests.token_kinds import check_token_ids, outside_vocabulary
from pipeline.text.codec import TextCodec

_NAMES = ("logit_bias", "stop_token_ids", "allowed_token_ids", "bad_words")


def check_vocabulary(params: SamplingParams, vocab_size: int, names: Collection[str] = _NAMES) -> None:
    """Raise FieldError for a token id in these parameters that the model does not have."""
    named = {
        "logit_bias": params.logit_bias,
        "stop_token_ids": params.stop_token_ids,
        "allowed_token_ids": params.allowed_token_ids or (),
        "bad_words": chain.from_iterable(params.bad_word_ids),
    }
    for name, token_ids in named.items():
        for token_id in token_ids if name in names else ():
            if token_id >= vocab_size:
                raise outside_vocabulary(name, token_id, vocab_size)


def check_sampling(params: SamplingParams, codec: TextCodec, vocab_size: int | None) -> None:
    """Raise ValueError for a run's token id that the target does not have, and for a bad word that has no tokens.

    Without `vocab_size` only bad words are looked at. The run's stop ids may be any.
    """
    params = with_bad_word_ids(params, codec)
    try:
        if vocab_size is not None:
            check_vocabulary(params, vocab_size, ("logit_bias", "allowed_token_ids", "bad_words"))
    except FieldError as error:
        raise ValueError(f"sampling.{error}") from error


def check_row(row: InputRow, params: SamplingParams, vocab_size: int) -> None:
    """Raise FieldError for a token id of the row's own that the model does not have, in its prompt or its parameters.

    The run's own parameters may name some, which are never written.
    """
    if isinstance(row.prompt, list):
        check_token_ids("prompt", row.prompt, vocab_size)
    check_vocabulary(params, vocab_size, row.overrides)


def with_bad_word_ids(params: SamplingParams, codec: TextCodec) -> SamplingParams:
    """Return the parameters with token ids in place of texts; the argument itself if it has no texts.

    Raises ValueError for a text that has none.
    """
    if not any(isinstance(word, str) for word in params.bad_words):
        return params
    return replace(params, bad_words=codec.bad_words(params.bad_words))
