"""What tests of a target's features share: a tap that keeps what it is handed, and what transformers computes."""

from collections.abc import Sequence as Seq

import torch
from transformers import PreTrainedModel

from decoding.cache.features import FeatureTap
from decoding.network.language_model import LanguageModel
from tests.decoding.tiny import random_prompts

PROMPTS = random_prompts((20, 1, 9), seed=1)
SLOTS = [2, 0, 3]
STARTS, LENGTHS = [18, 0, 7], [2, 5, 1]  # over a part of what was prefilled
TOKENS_BT = torch.randint(48, (3, 5), generator=torch.Generator().manual_seed(2))
EVERY_BT = torch.arange(5).expand(3, -1)


class Kept:
    """A tap that projects nothing away and keeps each position's newest features, by slot, and all that it is told."""

    def __init__(self, layer_ids: Seq[int]) -> None:
        self.tap = FeatureTap(tuple(layer_ids), self._project, self._receive)
        self.calls: list[tuple[list[int], list[int], list[int], list[int]]] = []  # slots, starts, lengths, tokens
        self.at: dict[tuple[int, int], tuple[int, torch.Tensor]] = {}  # token and features by slot and position
        self.num_projected: list[int] = []  # lines of each projection

    def _project(self, stream_NX: torch.Tensor) -> torch.Tensor:
        self.num_projected.append(len(stream_NX))
        return 2 * stream_NX

    def _receive(
        self, slots: Seq[int], starts: Seq[int], lengths: Seq[int], tokens_N: torch.Tensor, features_NH: torch.Tensor
    ) -> None:
        tokens = tokens_N.tolist()
        assert len(tokens) == len(features_NH) == sum(lengths)
        self.calls.append((list(slots), list(starts), list(lengths), tokens))
        lines = iter(zip(tokens, features_NH / 2, strict=True))
        for slot, start, length in zip(slots, starts, lengths, strict=True):
            for position in range(start, start + length):
                self.at[slot, position] = next(lines)

    def of(self, slot: int, tokens: Seq[int]) -> torch.Tensor:
        """Return the features [T, A * E] of a row, whose tokens must be these."""
        found = [self.at[slot, position] for position in range(len(tokens))]
        assert [token for token, _ in found] == list(tokens)
        return torch.stack([features for _, features in found])


@torch.inference_mode()
def expected(network: PreTrainedModel, tokens: Seq[int], layer_ids: Seq[int]) -> torch.Tensor:
    """Return a row's features [T, A * E] as transformers computes them, without slots.

    The last one of `hidden_states` comes after the final norm, so the one before it is read where the last layer ends.
    """
    left: list[torch.Tensor] = []
    lists = [module for module in network.modules() if isinstance(module, torch.nn.ModuleList)]
    (layers,) = [each for each in lists if len(each) == network.config.num_hidden_layers]
    hook = layers[-1].register_forward_hook(lambda _, __, out: left.append(out[0] if isinstance(out, tuple) else out))
    try:
        output = network(input_ids=torch.tensor([list(tokens)]), use_cache=False, output_hidden_states=True)
    finally:
        hook.remove()
    streams = [*output.hidden_states[: len(layers)], left[-1]]
    return torch.cat([streams[layer_id][0] for layer_id in layer_ids], dim=-1)


def written(model: LanguageModel) -> list[torch.Tensor]:
    """Return the logits of rows in scattered slots, ragged and in a rectangle, and all keys and values after them."""
    model.allocate(4, 60)
    model.prefill(SLOTS, PROMPTS)
    packed_BJV = model.forward(STARTS, TOKENS_BT, EVERY_BT, slots=SLOTS, lengths=LENGTHS)
    logits = [row[:length].clone() for row, length in zip(packed_BJV, LENGTHS, strict=True)]
    logits.append(model.forward([20, 5, 9], TOKENS_BT, EVERY_BT[:, 1:3], slots=SLOTS).clone())
    logits.append(model.forward([3, 0], TOKENS_BT[:2], EVERY_BT[:2], slots=None).clone())
    model.prefill([1, 2], [TOKENS_BT[2].tolist(), PROMPTS[0][:7]], [0, 25])
    stored = [stored_SPHD[:, :60].clone() for layer in model.cache.layers for stored_SPHD in layer.stored()]
    return [*logits, *stored]


def rows_written() -> dict[int, list[int]]:
    """Return the tokens in each slot after `written`, up to where later ones were computed after another text."""
    tokens = TOKENS_BT.tolist()
    return {
        0: [*tokens[1][:3], *tokens[0]],
        1: tokens[2],
        2: [*PROMPTS[0][:18], *tokens[0][:2], *tokens[0], *PROMPTS[0][:7]],
        3: [*PROMPTS[2][:7], tokens[2][0]],
    }


def assert_equal(found: Seq[torch.Tensor], wanted: Seq[torch.Tensor]) -> None:
    """Compare bit for bit; what is not a number is the same as itself."""
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one.nan_to_num(), other.nan_to_num())


def check_tap(
    model: LanguageModel, reference: PreTrainedModel | None, layer_ids: Seq[int], tolerance: float = 1e-5
) -> Kept:
    """Check that a tap changes no bit of what a model writes, and that it gets what transformers computes."""
    before, kept = written(model), Kept(layer_ids)
    model.hand_out(kept.tap)
    tapped = written(model)
    model.hand_out(None)
    assert_equal(tapped, before)
    num_calls = len(kept.calls)
    assert_equal(written(model), before)
    assert len(kept.calls) == num_calls, "a tap that was taken off is handed nothing"
    for slot, tokens in rows_written().items() if reference is not None else ():
        right, found = expected(reference, tokens, layer_ids), kept.of(slot, tokens).float()
        assert (found - right).abs().max() <= tolerance * right.abs().max()
    return kept
