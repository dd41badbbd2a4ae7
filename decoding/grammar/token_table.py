"""TokenTable: what the token ids of a target write, and which of them end a text, as llguidance reads them."""

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from llguidance import LLTokenizer

Words = np.dtype(np.uint32)  # of a packed mask: bit i of word w stands for token id 32 * w + i
Mask = npt.NDArray[np.uint32]  # packed, one bit for each token id


class TokenTable:
    """The vocabulary of a target, for the grammars of its output."""

    def __init__(self, tokenizer: "LLTokenizer", vocab_size: int, eos_token_ids: frozenset[int]) -> None:
        """Take a tokenizer that knows the end tokens and has at most `vocab_size` token ids."""
        self.tokenizer, self.vocab_size, self.eos_token_ids = tokenizer, vocab_size, eos_token_ids
        self.bytes_of = lru_cache(1 << 16)(lambda token_id: tokenizer.decode_bytes([token_id]))  # what a token writes
        self._tokens_of = lru_cache(1 << 12)(tokenizer.tokenize_bytes)

    @property
    def num_words(self) -> int:
        """Words of a packed mask."""
        return -(-self.vocab_size // 32)

    @property
    def num_tokenizer_words(self) -> int:
        """Words of a packed mask over all token ids of the tokenizer, which may have more than the target."""
        return -(-self.tokenizer.vocab_size // 32)

    def tokens_of(self, text: bytes) -> list[int]:
        """Return the tokens of a text."""
        return list(self._tokens_of(text))

    @classmethod
    def of_tokenizer(cls, tokenizer: Any, vocab_size: int, eos_token_ids: frozenset[int]) -> Self:
        """Return the table of a tokenizer of transformers that the library `tokenizers` runs.

        Ids of the target that the tokenizer lacks are never allowed. Raises ValueError, in one line, for a tokenizer
        that llguidance cannot read, and for a target without an end token in its vocabulary.
        """
        from llguidance import LLTokenizer

        ends = sorted(token_id for token_id in eos_token_ids if token_id < vocab_size)
        if not ends:
            raise ValueError("the target has no end token, so an output that fulfils a grammar could not end")
        num_own = max(len(tokenizer), 1)
        backend = tokenizer.backend_tokenizer
        try:
            made = LLTokenizer(backend.to_str(), n_vocab=max(vocab_size, num_own), eos_token=ends)
        except Exception as error:  # of the Rust library, without a type of its own
            raise ValueError(f"llguidance cannot read the tokenizer: {' '.join(str(error).split())}") from error
        return cls(made, vocab_size, eos_token_ids)
