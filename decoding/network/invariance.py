"""The measurement of batch invariance: are a token's logits the same, bit for bit, whatever runs beside it?

Kernels can be written so that they are, and the compiler, the driver or another library can undo that. So the promise
follows a measurement of the loaded model on its own device: one row is read and scored by itself, one token a forward,
and then again beside other rows, in other slots, and several tokens at once. Forwards that are recorded as graphs are
run as they are in rounds: plain, recorded and replayed.

Shapes: B rows, T tokens of each, V vocabulary.
"""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import Protocol

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig

from decoding.device import to_device
from decoding.fused import kernels
from decoding.fused.decoder import FusedDecoder
from decoding.fused.linear import kernel_for
from decoding.network.language_model import LanguageModel

# Rows and tokens of each in a forward, so that products have every tile (`decoding/gpu/tiles.py`): 5 and 16 lines of
# one row, 2 to 512 beside others, and about 2,000 of prompts that are read together.
_FORWARDS = ((1, 16), (2, 1), (1, 5), (4, 4), (2, 16), (16, 4), (8, 16), (16, 16), (32, 16))
_NUM_SCORED = 16  # tokens of a row
# Tokens: the prompt crosses the end of a chunk of keys (`decoding/gpu/attention.py`), and the scored ones another.
_LONGEST_PROMPT = 506


def is_invariant_on_cpu(config: PretrainedConfig, dtype: torch.dtype) -> bool:
    """Tell before weights are read whether only our CPU kernels will run a model, which makes it invariant there."""
    with torch.device("meta"):
        network = AutoModelForCausalLM.from_config(config, dtype=dtype)
    if not FusedDecoder.fits(network):
        return False
    head_size, hidden_size = network.model.layers[0].self_attn.head_dim, config.get_text_config().hidden_size
    sizes = {module.in_features for module in network.modules() if isinstance(module, torch.nn.Linear)}
    has_kernels = kernels.load(dtype, head_size, hidden_size) is not None
    return has_kernels and all(kernel_for(dtype, size) is not None for size in sizes)


class Slots(Protocol):
    """A model over slots, as far as it is measured."""

    vocab_size: int
    max_positions: int | None

    def allocate(self, num_slots: int, num_positions: int, num_draft_tokens: int = 0) -> None: ...
    def prefill(self, slots: Seq[int], token_ids: Seq[Seq[int]], starts: Seq[int] | None = None) -> None: ...


# Takes starts and tokens of rows in the first slots, padded to one length, and returns the last one's logits [T, V].
Score = Callable[[list[int], list[list[int]]], torch.Tensor]


@torch.inference_mode()
def is_invariant(model: LanguageModel) -> bool:
    """Measure a model whose weights are laid out; its cache is lost."""

    def score(starts: list[int], tokens: list[list[int]]) -> torch.Tensor:
        tokens_BT = to_device(tokens, model.device)
        every_BT = torch.arange(tokens_BT.shape[1], device=model.device).expand_as(tokens_BT)
        return model.forward(starts, tokens_BT, every_BT)[-1].clone()

    try:
        return are_invariant(model, score, num_ways=1 if model.graphs is None else 3)
    finally:
        model.cache = None


def are_invariant(model: Slots, score: Score, num_ways: int) -> bool:
    """Measure the logits that `score` returns of a model; a forward is run as often as it takes to see all its ways."""
    num_prompt = _LONGEST_PROMPT
    if model.max_positions is not None:
        num_prompt = max(1, min(num_prompt, model.max_positions - _NUM_SCORED))
    generator = torch.Generator().manual_seed(0)
    num_rows = max(rows for rows, _ in _FORWARDS)
    texts = torch.randint(model.vocab_size, (num_rows, num_prompt + _NUM_SCORED), generator=generator).tolist()

    def logits(texts: list[list[int]], num_tokens: int) -> torch.Tensor:
        return _logits(model, score, num_ways, texts, num_prompt, num_tokens)

    alone = logits(texts[:1], 1)
    # The first text is the last of this many rows.
    return all(torch.equal(logits([*texts[1:rows], texts[0]], tokens), alone) for rows, tokens in _FORWARDS)


def _logits(
    model: Slots, score: Score, num_ways: int, texts: list[list[int]], num_prompt: int, num_tokens: int
) -> torch.Tensor:
    """Return the last row's logits [T, V] at its scored tokens, `num_tokens` of each row a forward."""
    num_rows = len(texts)
    model.allocate(num_rows, num_prompt + _NUM_SCORED)
    lengths = [max(1, num_prompt // (num_rows - row)) for row in range(num_rows)]  # shorter prompts beside the last
    model.prefill(range(num_rows), [text[:length] for text, length in zip(texts, lengths, strict=True)])
    found = []
    for first in range(0, _NUM_SCORED, num_tokens):
        starts = [length + first for length in lengths]
        tokens = [text[start : start + num_tokens] for text, start in zip(texts, starts, strict=True)]
        padded = [row + [0] * (len(tokens[-1]) - len(row)) for row in tokens]
        ways = [score(starts, padded) for _ in range(num_ways)]
        agree = all(torch.equal(ways[0], each) for each in ways)
        found.append(ways[0] if agree else torch.full_like(ways[0], float("nan")))
    return torch.cat(found)
