"""A head beside its target: its folder is read, checked against the target, and its layers are measured."""

import logging
from functools import partial

import torch

from decoding.checkpoint.layer_subset import num_layers
from decoding.checkpoint.supported import load_config, model_folder
from decoding.heads.agreement import agreements
from decoding.heads.dflash_head import DFlashHead
from decoding.heads.eagle3_head import Eagle3Head
from decoding.heads.fit import fitting_config
from decoding.heads.format.folder import Head, read_head
from decoding.heads.format.head_config import HeadConfig
from decoding.heads.networks.eagle3_network import Eagle3Network
from decoding.heads.networks.make_network import make_network, target_ids_of
from decoding.heads.target_parts import load_ends
from decoding.network.language_model import LanguageModel
from decoding.network.slot_network import layers_to_read
from decoding.network.target import Target, once_more

LEAST_AGREEMENT = 0.15
_log = logging.getLogger(__name__)


def attach(path: str, target: Target, target_path: str, head: Head | None = None) -> Eagle3Head | DFlashHead:
    """Load the head in the folder or hub model `path` beside a target, in its dtype and on its device.

    `head` is what was read there before, if it was.
    Raises ValueError, in one line that names the folder, for a head that cannot be read, that belongs to another
    target, or that agrees with this one on less than 15 % of its tokens.
    """
    if isinstance(target, LanguageModel):
        layers_to_read(target.network)  # refuses a network whose layers cannot be told
        target_config = target.network.config
    else:
        target_config = load_config(model_folder(target_path))
    config = fitting_config(path, target_config, target_path)
    head = read_head(path, config) if head is None else head
    assert config.layer_ids is not None
    own = _made(head, target, target_path, config.layer_ids)
    readings = _readings(config, num_layers(target_config))
    shares = once_more(lambda: agreements(own, target, readings))
    best = max(range(len(readings)), key=lambda index: shares[index])
    described = ", ".join(
        f"{share:.0%} of the tokens if it reads what enters layers {list(reading)}"
        for share, reading in zip(shares, readings, strict=True)
    )
    if shares[best] < LEAST_AGREEMENT:
        raise ValueError(
            f"{path!r} agrees with {target_path!r} on {described}, expected at least {LEAST_AGREEMENT:.0%}: it was "
            "trained for another target, or for other layers (python -m jobs.convert_draft writes other ones)"
        )
    _log.info("the head %r agrees with its target on %s", path, described)
    own.layer_ids = readings[best]
    return own


def _readings(config: HeadConfig, num_target_layers: int) -> list[tuple[int, ...]]:
    """Return the layers whose input the head may read, by both conventions, the one that it states first."""
    assert config.layer_ids is not None
    as_inputs, as_outputs = config.layer_ids, tuple(each + 1 for each in config.layer_ids)
    readings = [as_outputs, as_inputs] if config.layer_ids_are == "outputs" else [as_inputs, as_outputs]
    return [reading for reading in readings if max(reading) <= num_target_layers]


def _made(head: Head, target: Target, target_path: str, layer_ids: tuple[int, ...]) -> Eagle3Head | DFlashHead:
    """Return the head that drafts, over a network of its kind."""
    network = make_network(head, partial(_lent, target, target_path), target.device, target.dtype)
    if isinstance(network, Eagle3Network):
        return Eagle3Head(network, target_ids_of(head), layer_ids)
    return DFlashHead(network, target_ids_of(head), layer_ids)


def _lent(target: Target, target_path: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the target's embedding and the weight of its output layer; from its files where its layers are apart."""
    network = target.network if isinstance(target, LanguageModel) else load_ends(target_path, "cpu", "auto")
    return network.get_input_embeddings().weight, network.get_output_embeddings().weight
