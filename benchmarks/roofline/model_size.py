"""ModelSize: how much a decoder network reads, computes and keeps, counted from its configuration.

A product of a line of inputs with a matrix multiplies each weight once. What is small beside that (norms, biases,
rotation, activations) is left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_HEAD_VOCABULARY = 32_000  # tokens that a published EAGLE-3 head proposes, whatever the target's vocabulary
NUM_FEATURES = 3  # hidden states of the target that it joins


@dataclass(frozen=True)
class Forward:
    """The sizes of one forward over some rows."""

    num_tokens: int  # of all rows
    num_logits: int  # positions whose logits are wanted
    num_positions: int  # keys that are read, summed over rows
    num_pairs: int  # of a query and a key

    @classmethod
    def of_round(cls, num_rows: int, tokens_per_row: int, positions_per_row: int) -> "Forward":
        """Return the forward of a round: every row has as many tokens and positions, and all logits are wanted."""
        num_tokens = num_rows * tokens_per_row
        return cls(num_tokens, num_tokens, num_rows * positions_per_row, num_tokens * positions_per_row)

    @classmethod
    def of_rows(cls, starts: Sequence[int], lengths: Sequence[int], num_logits: int | None = None) -> "Forward":
        """Return the forward in which row b has `lengths[b]` tokens from position `starts[b]` on.

        Each token reads the keys up to its own. At most the logits of all tokens are wanted, which is the default.
        """
        num_tokens = sum(lengths)
        rows = list(zip(starts, lengths, strict=True))
        return cls(
            num_tokens,
            num_tokens if num_logits is None else min(num_logits, num_tokens),
            sum(start + length for start, length in rows),
            sum(length * start + length * (length + 1) // 2 for start, length in rows),
        )


@dataclass(frozen=True)
class ModelSize:
    """Numbers of weights, and of the values that attention handles for each token."""

    layer_weights: int  # of all layers
    head_weights: int
    embedding_weights: int  # of an input embedding that is not also the head: kept in memory, and hardly read
    cached_values: int  # keys and values of a token, over all layers
    query_values: int  # queries of a token, over all layers
    bytes_per_value: int = 2

    @classmethod
    def of_config(cls, config: Any, bytes_per_value: int = 2) -> "ModelSize | None":
        """Return the size of a Llama-shaped network (a transformers configuration).

        Return None for a network that this count does not describe: one with experts, with layers of several kinds, or
        with attention to a window.
        """
        text = config.get_text_config()
        kinds = set(getattr(text, "layer_types", None) or ("full_attention",))
        slides = bool(getattr(text, "sliding_window", None)) and getattr(text, "use_sliding_window", True)
        names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
        has_experts = any("experts" in name for name in vars(text) if not name.startswith("_"))
        if kinds != {"full_attention"} or slides or has_experts or not all(hasattr(text, name) for name in names):
            return None
        hidden, layers, heads = text.hidden_size, text.num_hidden_layers, text.num_attention_heads
        kv_heads = getattr(text, "num_key_value_heads", None) or heads
        head_size = getattr(text, "head_dim", None) or hidden // heads
        a_layer = 2 * hidden * (heads + kv_heads) * head_size + 3 * hidden * text.intermediate_size
        return cls(
            layer_weights=layers * a_layer,
            head_weights=text.vocab_size * hidden,
            embedding_weights=0 if text.tie_word_embeddings else text.vocab_size * hidden,
            cached_values=2 * layers * kv_heads * head_size,
            query_values=layers * heads * head_size,
            bytes_per_value=bytes_per_value,
        )

    @classmethod
    def of_head(cls, config: Any) -> "ModelSize":
        """Return the size of a draft head of one layer for this target, as EAGLE-3 has it (arXiv 2503.01840).

        Its layer has the sizes of the target's and reads the newest token's embedding beside a hidden state; a
        projection joins three hidden states of the target; the embedding is the target's own.
        """
        text = config.get_text_config()
        hidden, heads, kv_heads = text.hidden_size, text.num_attention_heads, text.num_key_value_heads
        head_size = getattr(text, "head_dim", None) or hidden // heads
        attention = 2 * hidden * (heads + 2 * kv_heads) * head_size + heads * head_size * hidden
        projection = NUM_FEATURES * hidden * hidden
        return cls(
            layer_weights=attention + 3 * hidden * text.intermediate_size + projection,
            head_weights=_HEAD_VOCABULARY * hidden,
            embedding_weights=0,
            cached_values=2 * kv_heads * head_size,
            query_values=heads * head_size,
        )

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights."""
        return (self.layer_weights + self.head_weights + self.embedding_weights) * self.bytes_per_value

    @property
    def cache_bytes(self) -> int:
        """Bytes of one token's keys and values."""
        return self.cached_values * self.bytes_per_value

    def weight_bytes_read(self, forward: Forward) -> int:
        """Return the bytes of weights that a forward reads: without the head's where no logits are wanted."""
        return (self.layer_weights + bool(forward.num_logits) * self.head_weights) * self.bytes_per_value

    def cache_bytes_read(self, forward: Forward) -> int:
        """Return the bytes of keys and values that a forward reads: those of each position once."""
        return forward.num_positions * self.cache_bytes

    def product_flops(self, forward: Forward) -> int:
        """Return the operations of the products with weights, a multiplication and an addition for each."""
        return 2 * (forward.num_tokens * self.layer_weights + forward.num_logits * self.head_weights)

    def attention_flops(self, forward: Forward) -> int:
        """Return the operations of attention: each pair of a query and a key is a product with each, twice."""
        return 4 * forward.num_pairs * self.query_values
