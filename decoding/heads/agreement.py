"""Agreement: how often a head's first guess is the token that its target finds most likely. Measured at load.

A head that reads other layers than those it was trained with drafts without an error, and nearly nothing of it is
accepted: ids of layers mean the layer's input to one half of the world, and its output to the other.

Shapes: B rows, T tokens of each, P of them that are guessed, N tokens in all, A layers, E hidden size of the target.
"""

from collections.abc import Sequence as Seq
from dataclasses import replace

import torch

from decoding.cache.features import FeatureTap
from decoding.device import to_device
from decoding.heads.slot_head import SlotHead
from decoding.network.target import Target
from decoding.sampling.judging import ScoreRequest
from decoding.sampling.logprobs import Stretch
from decoding.sampling.rows import Rows, sampling_batch
from decoding.sampling.rules import COUPLED
from decoding.sampling.verdicts import Draft
from decoding.sampling_params import SamplingParams
from decoding.sequence import Sequence

_NUM_ROWS, _NUM_TOKENS = 8, 40


@torch.inference_mode()
def agreements(head: SlotHead, target: Target, readings: Seq[Seq[int]]) -> list[float]:
    """Return the share of tokens on which head and target agree, for each list of layers whose input may be read.

    The text is drawn from the target itself, always the same. The caches of both are lost, and so is the target's tap.
    """
    layer_ids = sorted({layer_id for reading in readings for layer_id in reading})
    kept: list[torch.Tensor] = []
    tap = FeatureTap(tuple(layer_ids), lambda stream_NX: stream_NX, lambda *given: kept.append(given[-1]))
    num_tokens = min(_NUM_TOKENS, target.max_positions or _NUM_TOKENS)
    target.hand_out(None)  # an earlier drafter must not get what is written here
    try:
        target.allocate(_NUM_ROWS, num_tokens)
        texts = _drawn(target, num_tokens)
        target.hand_out(tap)
        scores = [target.logprobs([Stretch.over(0, 0, text, [*text[1:], text[0]], 1)])[0] for text in texts]
    finally:
        target.hand_out(None)
        target.release()
    tokens_BT = to_device(texts, target.device)
    picked_BT = to_device([[at.top[0][0] for at in row] for row in scores], target.device)
    streams_BTAE = torch.cat(kept).view(_NUM_ROWS, num_tokens, len(layer_ids), -1)
    found = []
    for reading in readings:
        features_BTX = streams_BTAE[:, :, [layer_ids.index(layer_id) for layer_id in reading]].flatten(2)
        guesses_BP, positions = head.guesses(tokens_BT, features_BTX)
        found.append(float((guesses_BP == picked_BT[:, positions]).float().mean()))
    return found


def _drawn(target: Target, num_tokens: int) -> list[list[int]]:
    """Return texts that the target writes at temperature 1; each begins with another token, and none ends early."""
    first = torch.randint(target.vocab_size, (_NUM_ROWS,), generator=torch.Generator().manual_seed(0)).tolist()
    params = SamplingParams(max_tokens=num_tokens - 1, seed=0, ignore_eos=True)
    texts = tuple(Sequence.create([token], params, row=row) for row, token in enumerate(first))
    rows = Rows(texts, sampling_batch(texts, frozenset(), target.device), (0,) * _NUM_ROWS, COUPLED)
    keys_B = rows.sampling.keys_B
    nothing = Draft(keys_B.new_zeros(_NUM_ROWS, 0), torch.zeros_like(keys_B), max_draft_tokens_B=(0,) * _NUM_ROWS)
    for _ in range(num_tokens - 1):
        request = ScoreRequest(replace(rows), nothing, (None,) * _NUM_ROWS)  # rows remember what is true of one round
        for text, verdict in zip(texts, target.score(request).result(), strict=True):
            text.commit([verdict.next_token], num_draft_tokens=0, eos_token_ids=frozenset())
    return [list(text.token_ids) for text in texts]
