"""Teacher: the frozen target, which reads packed rows and says what it would have written, and what heads read of it.

Nothing of it is stored: a forward over text that exists costs less than reading its logits back would.

Shapes: B rows, T tokens, K positions that are kept, V vocabulary, A layers that are read, E hidden size, J positions
at the end, N tokens in all.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import Cache, PreTrainedModel

from decoding.cache.features import Features, FeatureTap
from decoding.checkpoint.loading import DType, load_network
from decoding.checkpoint.supported import max_positions, model_folder, read_config
from decoding.device import Device
from decoding.network.slot_network import layer_hooks
from training.learners.packing import PackedRows

_SAMPLE = 7, 5  # tokens of two documents that check a network
_MAX_DIFFERENCE = 1e-2  # of logits: packed and alone they round differently; another document moves them by whole units


@dataclass(frozen=True)
class Teacher:
    """A target without gradients."""

    network: PreTrainedModel
    path: str
    name: str  # by which heads name their target
    end_token_ids: frozenset[int]
    reads_packed: bool = True  # whether it tells the documents of a row

    @classmethod
    def load(cls, path: str, device: Device, dtype: DType, name: str | None = None) -> "Teacher":
        """Load the target. Raises ValueError, in one line, for one that cannot be loaded.

        `name` is what the heads that learn from it call it, by default its path.
        """
        name, path = name or path, model_folder(path)
        network, end_token_ids = load_network(path, device, dtype)
        reads_packed = tells_documents(network, path)
        return cls(network.eval().requires_grad_(False), path, name, end_token_ids, reads_packed)

    def readable(self, rows: PackedRows) -> PackedRows:
        """Return rows whose documents it tells: the same ones, or a row for each document."""
        return rows if self.reads_packed else rows.apart()

    @property
    def device(self) -> torch.device:
        """The device of the target."""
        device: torch.device = self.network.device
        return device

    @property
    def dtype(self) -> torch.dtype:
        """The type of its checkpoint; what was loaded may be in another one."""
        return dtype_of(read_config(self.path).get_text_config())

    @property
    def vocab_size(self) -> int:
        """The number of tokens that the target has logits for."""
        return int(self.network.config.get_text_config().vocab_size)

    @property
    def max_len(self) -> int | None:
        """The longest document that it can read; None: any."""
        return max_positions(self.network.config)

    @torch.no_grad()
    def logits(self, rows: PackedRows, kept_K: torch.Tensor) -> torch.Tensor:
        """Return the logits [B, K, V] at these positions of each row."""
        return packed_logits(self.network, rows, kept_K)

    @torch.inference_mode()
    def logits_behind(self, token_ids: Sequence[int], num_logits: int) -> torch.Tensor:
        """Return the logits [num_logits, V] behind the last of these tokens of one text."""
        ids_1T = torch.tensor([list(token_ids)], device=self.device)
        logits_JV: torch.Tensor = self.network(input_ids=ids_1T, use_cache=False, logits_to_keep=num_logits).logits[0]
        return logits_JV

    @torch.no_grad()
    def logits_and_features(
        self, rows: PackedRows, layer_ids: tuple[int, ...], cache: Cache | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return all logits [B, T, V], and side by side the streams that enter these layers [B, T, A * E].

        Keys and values are left in `cache`, for rows of one document each.
        """
        features = Features(FeatureTap(layer_ids, lambda stream_NX: stream_NX, lambda *_: None))
        with layer_hooks(self.network, features):
            logits_BTV = packed_logits(self.network, rows, cache=cache)
        features.project()
        return logits_BTV, features.take().view(*rows.token_ids_BT.shape, -1)


def packed_logits(
    network: PreTrainedModel, rows: PackedRows, kept_K: torch.Tensor | None = None, cache: Cache | None = None
) -> torch.Tensor:
    """Return a network's logits for packed rows, [B, T, V] or at the kept positions [B, K, V].

    transformers tells documents by positions that begin anew: a token sees its own document alone.
    """
    device_type = network.device.type
    with torch.autocast(device_type, torch.bfloat16, enabled=device_type == "cuda"):
        logits: torch.Tensor = network(
            input_ids=rows.token_ids_BT,
            position_ids=rows.positions_BT,
            use_cache=cache is not None,
            logits_to_keep=0 if kept_K is None else kept_K,
            **({} if cache is None else {"past_key_values": cache}),
        ).logits
    return logits


def tells_documents(network: PreTrainedModel, path: str) -> bool:
    """Return whether a network tells the documents of a row by their positions, measured on two of them.

    Layers with states do not. A network that does not is given each document in a row of its own: otherwise it would
    learn from texts that it will never be given. Raises ValueError for logits that are not finite.
    """
    first, second = _SAMPLE
    ids_1T = (
        torch.arange(3, 3 + first + second, device=network.device)[None] % network.get_input_embeddings().num_embeddings
    )
    positions = [*range(first), *range(second)]
    with torch.no_grad():
        packed = network(
            input_ids=ids_1T, position_ids=torch.tensor([positions], device=network.device), use_cache=False
        )
        alone = network(input_ids=ids_1T[:, first:], use_cache=False)
    if not alone.logits.isfinite().all():
        raise ValueError(f"{path!r} has logits that are not finite for plain tokens; copy or download it again")
    difference = (packed.logits[:, first:] - alone.logits).abs().max() / alone.logits.abs().max()
    return bool(difference <= _MAX_DIFFERENCE)


def dtype_of(config: object) -> torch.dtype:
    """Return the type of a checkpoint's weights by its configuration."""
    said = getattr(config, "dtype", None)
    return said if isinstance(said, torch.dtype) else getattr(torch, said) if isinstance(said, str) else torch.float32
