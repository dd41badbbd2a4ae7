"""Agreement: how often a head's first guess is the token that its target finds most likely. Measured at load.

A head that reads other layers than those it was trained with drafts without an error, and nearly nothing of it is
accepted: ids of layers mean the layer's input to one half of the world, and its output to the other.

Shapes: B rows, T tokens of each, N tokens in all, A layers, E hidden size of the target, V vocabulary.
"""

from collections.abc import Sequence as Seq

import torch

from decoding.cache.features import FeatureTap
from decoding.device import to_device
from decoding.heads.slot_head import SlotHead
from decoding.network.language_model import LanguageModel

_NUM_ROWS, _NUM_TOKENS = 8, 40


@torch.inference_mode()
def agreements(head: SlotHead, target: LanguageModel, readings: Seq[Seq[int]]) -> list[float]:
    """Return the share of tokens on which head and target agree, for each list of layers whose input may be read.

    The text is drawn from the target itself, always the same. The caches of both are lost, and so is the target's tap.
    """
    layer_ids = sorted({layer_id for reading in readings for layer_id in reading})
    kept: list[torch.Tensor] = []
    tap = FeatureTap(tuple(layer_ids), lambda stream_NX: stream_NX, lambda *given: kept.append(given[-1]))
    try:
        tokens_BT = _drawn(target)
        num_tokens = tokens_BT.shape[1]
        target.hand_out(tap)
        target.allocate(_NUM_ROWS, num_tokens)
        every_BT = torch.arange(num_tokens, device=target.device).expand(_NUM_ROWS, -1)
        picked_BT = target.forward([0] * _NUM_ROWS, tokens_BT, every_BT).argmax(-1)
    finally:
        target.hand_out(None)
        target.release()
    streams_BTAE = kept[0].view(_NUM_ROWS, num_tokens, len(layer_ids), -1)
    found = []
    for reading in readings:
        features_BTX = streams_BTAE[:, :, [layer_ids.index(layer_id) for layer_id in reading]].flatten(2)
        guesses_BP, positions = head.guesses(tokens_BT, features_BTX)
        found.append(float((guesses_BP == picked_BT[:, positions]).float().mean()))
    return found


def _drawn(target: LanguageModel) -> torch.Tensor:
    """Draw tokens [B, T] from the target; each row begins with another token."""
    num_tokens = min(_NUM_TOKENS, target.max_positions or _NUM_TOKENS)
    generator = torch.Generator().manual_seed(0)
    newest_B = torch.randint(target.vocab_size, (_NUM_ROWS,), generator=generator).to(target.device)
    target.allocate(_NUM_ROWS, num_tokens)
    columns = [newest_B]
    for position in range(num_tokens - 1):
        first_B1 = torch.zeros_like(newest_B)[:, None]
        logits_B1V = target.forward([position] * _NUM_ROWS, newest_B[:, None], first_B1)
        chances_BV = logits_B1V[:, 0].float().softmax(-1).cpu()
        newest_B = to_device(torch.multinomial(chances_BV, 1, generator=generator)[:, 0].tolist(), target.device)
        columns.append(newest_B)
    return torch.stack(columns, dim=1)
