"""TrainableHead: a head as a trainer needs it, beside the parts of its target that are no layers."""

from dataclasses import dataclass

import torch

from decoding.checkpoint.loading import DType
from decoding.checkpoint.supported import load_config, model_folder
from decoding.device import Device
from decoding.heads.fit import fitting_config
from decoding.heads.format.folder import Head
from decoding.heads.format.head_config import HeadConfig
from decoding.heads.networks.dflash_network import DFlashNetwork
from decoding.heads.networks.eagle3_network import Eagle3Network
from decoding.heads.networks.make_network import make_network, target_ids_of
from decoding.heads.target_parts import TargetParts


@dataclass(frozen=True)
class TrainableHead:
    """A head's network, whole, and what turns the target's last hidden states into logits."""

    network: Eagle3Network | DFlashNetwork  # what its folder lacks is the target's own tensor, without a gradient
    target_ids_D: torch.Tensor | None  # the target's ids of the head's D tokens; None: the same ids
    config: HeadConfig  # with the layers of this target that the head reads, as its folder says them
    target: TargetParts

    @classmethod
    def load(cls, path: str, head: Head, target_path: str, device: Device, dtype: DType) -> "TrainableHead":
        """Put the head that was read from `path` beside a target's parts; no layer of the target is read.

        Raises ValueError, in one line, for a head of another target, and for a target whose parts are not known.
        """
        config = fitting_config(path, load_config(model_folder(target_path)), target_path)
        parts = TargetParts.load(target_path, device, dtype)
        embedding, output = parts.embed_tokens.weight, parts.lm_head.weight
        network = make_network(head, lambda: (embedding, output), output.device, output.dtype)
        return cls(network, target_ids_of(head), config, parts)
