"""SamplingParams: what a request asks of the target's distribution and the text's length. Checked when it is made.

Its bad words are arrays, made once for all rows that have the same words. Shapes: W words, T tokens of all of them.
"""

import math
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from decoding.grammar.structured import Structured

Words = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, eq=False)
class BadWordList:
    """Words as token ids, one behind the other. Equal words have one list, which lives as long as its rows."""

    words: Words
    token_ids_T: np.ndarray[Any, np.dtype[np.int32]]
    ends_W: np.ndarray[Any, np.dtype[np.int64]]  # where in T each word has ended
    num_before_W: np.ndarray[Any, np.dtype[np.int64]]  # tokens before a word's last

    @classmethod
    def of(cls, words: Seq[tuple[int, ...]]) -> "BadWordList":
        """Return the list of these words, none of which is empty."""
        words = tuple(words)
        found = _KNOWN.get(words)
        if found is None:
            lengths_W = np.fromiter(map(len, words), np.int64, len(words))
            token_ids_T = np.fromiter(chain.from_iterable(words), np.int32, int(lengths_W.sum()))
            found = _KNOWN[words] = cls(words, token_ids_T, lengths_W.cumsum(), lengths_W - 1)
        return found

    def __len__(self) -> int:
        """Return the number of words."""
        return len(self.words)

    def outside(self, vocab_size: int) -> list[int]:
        """Return the token ids that a vocabulary does not have, in their order."""
        ids_T = self.token_ids_T
        found: list[int] = ids_T[(ids_T < 0) | (ids_T >= vocab_size)].tolist()
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        """Send the words alone, so that equal lists are one object in another process, too."""
        # A function of the module: cloudpickle would send a class method by its code, and what the code holds.
        return _received, (self.words,)


_KNOWN: WeakValueDictionary[Words, BadWordList] = WeakValueDictionary()


def _received(words: Words) -> BadWordList:
    return BadWordList.of(words)


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How to turn the target's logits into tokens, and when to stop.

    Names and meanings follow the OpenAI API where it has one, vLLM elsewhere. The order of application is:
    structured, allowed_token_ids, bad_words, logit_bias, repetition, presence and frequency penalty, min_tokens,
    temperature, top_k, top_p, min_p.
    An invalid value is a ValueError that names the field, the value and what is allowed.
    """

    temperature: float = 1.0
    """Temperature; 0 is greedy."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the most likely tokens of this total probability; 1 keeps all."""
    min_p: float = 0.0
    """Keep tokens at least this likely, relative to the most likely one; 0 keeps all."""
    repetition_penalty: float = 1.0  # Keskar et al., arXiv 1909.05858
    """Penalty over prompt and output, multiplicative; 1 is none."""
    presence_penalty: float = 0.0
    """Penalty over the output, once for each token id (-2 to 2)."""
    frequency_penalty: float = 0.0
    """Penalty over the output, for each occurrence (-2 to 2)."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Numbers added to the logits of these token ids (-100 to 100)."""
    allowed_token_ids: tuple[int, ...] | None = None
    """The only token ids that may be written; all unless given. To end, an end token must be among them."""
    bad_words: tuple[str | tuple[int, ...], ...] = ()
    """What the output may not have: texts, in their tokens with and without a space before them, or lists of token ids.
    Where the output has all tokens of one but the last, that is forbidden."""
    seed: int | None = None  # of a row; None: from the run's seed and the row
    n: int = 1
    """Samples of each prompt."""
    max_tokens: int = 256
    """Most output tokens of a sample."""
    min_tokens: int = 0
    """Output tokens before the end token or a stop may end the text."""
    stop: tuple[str, ...] = ()
    """Strings that end the text; not part of it."""
    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end the text, besides the model's own."""
    ignore_eos: bool = False
    """Go on after the model's own end token."""
    logprobs: int | None = None
    """Log-probabilities under the raw logits: of each token and of this many most likely ones (0 to 20)."""
    structured: Structured | None = None
    """What the output must be: one of json_schema, json_object, regex, choice and grammar (docs/structured.md)."""

    def __post_init__(self) -> None:
        """Convert sequences to tuples and check every field."""
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        for name in ("stop", "stop_token_ids"):
            value = getattr(self, name)
            if not isinstance(value, list | tuple):
                raise ValueError(f"sampling.{name} must be a list, got {value!r}")
            object.__setattr__(self, name, tuple(value))
        for name, (rule, allows) in _RULES.items():
            value = getattr(self, name)
            if not allows(value):
                raise ValueError(f"sampling.{name} must be {rule}, got {_shown(value)}")
        if self.allowed_token_ids is not None:
            ids = tuple(sorted(set(self.allowed_token_ids)))
            if ids != self.allowed_token_ids:  # rows that share their parameters share one tuple
                object.__setattr__(self, "allowed_token_ids", ids)
        words = tuple(word if isinstance(word, str) else tuple(word) for word in self.bad_words)
        object.__setattr__(self, "bad_words", words)
        if self.min_tokens > self.max_tokens:
            raise ValueError(
                f"sampling.min_tokens must not exceed max_tokens, got {self.min_tokens} > {self.max_tokens}"
            )
        object.__setattr__(self, "logit_bias", {int(k): float(v) for k, v in self.logit_bias.items()})
        if self.structured is not None:
            object.__setattr__(self, "structured", Structured.of(self.structured))
            for name, neutral in (("ignore_eos", False), ("min_tokens", 0)):
                if (value := getattr(self, name)) != neutral:
                    raise ValueError(
                        f"sampling.{name} is {value!r}, which would forbid the end token where the grammar of "
                        f"sampling.structured asks for it; leave it out, or ask for longer output in the grammar"
                    )

    @property
    def is_greedy(self) -> bool:
        """Whether the best token is always taken: with top_k 1 only that one is left, and no cut can remove it."""
        return self.temperature == 0 or self.top_k == 1

    @property
    def uses_token_counts(self) -> bool:
        """Whether the logits at a position depend on which tokens came before it, beyond the model itself."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)

    @property
    def forbids_tokens(self) -> bool:
        """Whether some token ids are forbidden, everywhere or behind others."""
        return self.allowed_token_ids is not None or bool(self.bad_words)

    @property
    def bad_word_ids(self) -> list[tuple[int, ...]]:
        """The bad words as token ids, which they are once a tokenizer has read their texts."""
        ids = [word for word in self.bad_words if not isinstance(word, str)]
        assert len(ids) == len(self.bad_words), "a sequence has no texts among its bad words"
        return ids

    @cached_property
    def bad_word_list(self) -> BadWordList:
        """The same as arrays."""
        return BadWordList.of(self.bad_word_ids)


_MAX_BAD_WORDS, _MAX_CHARACTERS, _MAX_TOKENS = 2000, 100, 404  # of a bad word: as text, as tokens
_MAX_SHOWN = 1000  # characters of a value that an error shows
_LARGEST = 2**31 - 1  # of any count or token id: larger ones are a mistake, and would overflow in tensors


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= _MAX_SHOWN else f"{shown[:_MAX_SHOWN]} ... ({len(shown)} characters)"


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return _is_int(value) and 0 <= value <= _LARGEST


def _is_number(value: Any) -> bool:
    # An int may be too large for a float; no field allows one that large.
    return math.isfinite(value) if isinstance(value, float) else _is_int(value) and abs(value) <= _LARGEST


def _is_token_id(value: Any) -> bool:
    """Tell whether a value is a token id, also as a string of digits: the keys of a JSON object are strings."""
    if isinstance(value, str):
        return value.isdecimal() and len(value) <= len(str(_LARGEST)) and int(value) <= _LARGEST
    return _is_count(value)


def _are_ids(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(map(_is_count, value))


def _is_bad_word(value: Any) -> bool:
    if isinstance(value, str):
        return 1 <= len(value) <= _MAX_CHARACTERS
    return _are_ids(value) and len(value) <= _MAX_TOKENS


def _are_bad_words(value: Any) -> bool:
    if not isinstance(value, list | tuple) or not all(map(_is_bad_word, value)):
        return False
    return sum(1 + isinstance(word, str) for word in value) <= _MAX_BAD_WORDS


_PENALTY: tuple[str, Callable[[Any], bool]] = ("a number from -2 to 2", lambda v: _is_number(v) and -2 <= v <= 2)
_RULES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "temperature": (
        "0 (greedy) or a number from 0.01 to 100",
        lambda v: _is_number(v) and (v == 0 or 0.01 <= v <= 100),
    ),
    "top_k": ("an integer from 0 to 2^31 - 1 (0 keeps every token)", _is_count),
    "top_p": ("a number above 0 and at most 1", lambda v: _is_number(v) and 0 < v <= 1),
    "min_p": ("a number from 0 to 1", lambda v: _is_number(v) and 0 <= v <= 1),
    "repetition_penalty": ("a number from 0.01 to 10", lambda v: _is_number(v) and 0.01 <= v <= 10),
    "presence_penalty": _PENALTY,
    "frequency_penalty": _PENALTY,
    "logit_bias": (
        "a mapping from token id to a number from -100 to 100",
        lambda v: (
            isinstance(v, Mapping) and all(_is_token_id(k) and _is_number(b) and -100 <= b <= 100 for k, b in v.items())
        ),
    ),
    "allowed_token_ids": ("null or a list of token ids that is not empty", lambda v: v is None or _are_ids(v)),
    "bad_words": (
        f"a list of texts of 1 to {_MAX_CHARACTERS} characters or lists of 1 to {_MAX_TOKENS} token ids, at most "
        f"{_MAX_BAD_WORDS}, of which a text counts twice",
        _are_bad_words,
    ),
    "seed": ("an integer that fits in 64 bits, or null", lambda v: v is None or (_is_int(v) and -(2**63) <= v < 2**64)),
    "n": ("an integer from 1 to 4096", lambda v: _is_count(v) and 1 <= v <= 4096),
    "max_tokens": ("an integer from 1 to 2^31 - 1", lambda v: _is_count(v) and v >= 1),
    "min_tokens": ("an integer from 0 to 2^31 - 1", _is_count),
    "stop": ("a list of non-empty strings", lambda v: all(isinstance(s, str) and s for s in v)),
    "stop_token_ids": ("a list of token ids", lambda v: all(_is_count(t) for t in v)),
    "ignore_eos": ("true or false", lambda v: isinstance(v, bool)),
    "logprobs": ("null or an integer from 0 to 20", lambda v: v is None or (_is_int(v) and 0 <= v <= 20)),
}
