"""Features: what a drafter reads of the target, which is its residual stream before some layers, projected at once.

The stream that enters layer k is the output of layer k - 1; that of layer 0 is the embedded tokens, and the one that
"enters" as many layers as there are leaves the last layer, before the final norm.

Shapes: N tokens, A layers, E the target's hidden size, H features of a projected token.
"""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class FeatureTap:
    """What a drafter reads of the target: its residual stream before some layers, projected at once."""

    layer_ids: tuple[int, ...]  # the stream that enters these layers; the number of layers: before the final norm
    # [N, A * E], side by side in the order of `layer_ids` and in the target's dtype -> [N, H]. It may become part of a
    # recorded forward, so it must not wait for the device, and its weights must stay where they are.
    project: Callable[[torch.Tensor], torch.Tensor]
    # receive(slots, starts, lengths, tokens_N, features_NH) is called for each forward over slots, in their order and
    # in inference mode: row b has lengths[b] of the N tokens, at positions starts[b], starts[b] + 1, ... of
    # slot slots[b], row by row end to end. Padding is not handed out. The tensors belong to the receiver.
    receive: Callable[[Seq[int], Seq[int], Seq[int], torch.Tensor, torch.Tensor], None]
    is_dear: bool = True  # whether features cost enough, on a CPU, that a drafter at rest does without


class Features:
    """The features of the tokens of one call, filled by the forwards that it takes."""

    def __init__(self, tap: FeatureTap) -> None:
        """Begin with no token."""
        self.tap = tap
        self._stream_NX: torch.Tensor | None = None  # of the forward under way, all layers side by side
        self._missing: set[int] = set()
        self._done: list[torch.Tensor] = []

    def wants(self, layer_id: int) -> bool:
        """Tell whether the stream that enters this layer is read."""
        return layer_id in self.tap.layer_ids

    def keep(self, layer_id: int, hidden_NE: torch.Tensor) -> None:
        """Copy the stream that enters a layer, if it is read: kernels go on in the same memory."""
        if not self.wants(layer_id):
            return
        num_tokens, size = hidden_NE.shape
        if self._stream_NX is None:
            self._stream_NX = hidden_NE.new_empty(num_tokens, len(self.tap.layer_ids) * size)
            self._missing = set(self.tap.layer_ids)
        first = self.tap.layer_ids.index(layer_id) * size
        self._stream_NX[:, first : first + size] = hidden_NE
        self._missing.discard(layer_id)

    def project(self) -> None:
        """Compute the features of what a forward has left, and drop that: the stream of two forwards is never held."""
        assert self._stream_NX is not None, "a forward leaves something"
        assert not self._missing, f"the forward did not come by layers {sorted(self._missing)}"
        self._done.append(self.tap.project(self._stream_NX))
        self._stream_NX = None

    def add(self, features_NH: torch.Tensor) -> None:
        """Add the features of tokens whose forward was projected elsewhere."""
        self._done.append(features_NH)

    def take(self) -> torch.Tensor:
        """Return the features [N, H] of all tokens, in the order of their forwards, and begin anew."""
        done, self._done = self._done, []
        return done[0] if len(done) == 1 else torch.cat(done)


def check_layer_ids(layer_ids: Seq[int], num_layers: int) -> None:
    """Raise a ValueError if a target of this many layers has no such streams, or if one is asked for twice."""
    if not layer_ids or len(set(layer_ids)) < len(layer_ids) or not all(0 <= k <= num_layers for k in layer_ids):
        raise ValueError(
            f"the draft reads the target before layers {list(layer_ids)}, but a target of {num_layers} layers can be "
            f"read at different places from 0 to {num_layers}; use a draft that was trained for this target"
        )
