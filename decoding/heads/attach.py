"""A head beside its target: its folder is read, checked against the target, and its layers are measured."""

import logging

import torch

from decoding.heads.agreement import agreements
from decoding.heads.decoder_layers import HeadNetwork
from decoding.heads.dflash_head import DFlashHead
from decoding.heads.dflash_network import DFlashNetwork
from decoding.heads.eagle3_head import Eagle3Head
from decoding.heads.eagle3_network import Eagle3Network
from decoding.heads.fit import fitting_config
from decoding.heads.folder import Head, read_head
from decoding.heads.head_config import HeadConfig
from decoding.heads.vocabulary import target_ids
from decoding.network.language_model import LanguageModel
from decoding.network.layer_hooks import layers_to_read

LEAST_AGREEMENT = 0.15
_log = logging.getLogger(__name__)


def attach(path: str, target: LanguageModel, target_path: str, head: Head | None = None) -> Eagle3Head | DFlashHead:
    """Load the head in the folder or hub model `path` beside a target, in its dtype and on its device.

    `head` is what was read there before, if it was.
    Raises ValueError, in one line that names the folder, for a head that cannot be read, that belongs to another
    target, or that agrees with this one on less than 15 % of its tokens.
    """
    num_layers = len(layers_to_read(target.network))
    config = fitting_config(path, target.network.config, target_path)
    head = read_head(path, config) if head is None else head
    assert config.layer_ids is not None
    own = _made(head, target, config.layer_ids)
    readings = _readings(config, num_layers)
    shares = agreements(own, target, readings)
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


def _made(head: Head, target: LanguageModel, layer_ids: tuple[int, ...]) -> Eagle3Head | DFlashHead:
    """Return the head that drafts, over a network of its kind."""
    with torch.device("meta"):
        network = Eagle3Network(head.config) if head.config.kind == "eagle3" else DFlashNetwork(head.config)
    _load(network, head, target)
    if isinstance(network, Eagle3Network):
        return Eagle3Head(network, _ids_of(head), layer_ids)
    return DFlashHead(network, _ids_of(head), layer_ids)


def _load(network: HeadNetwork, head: Head, target: LanguageModel) -> None:
    """Load the network's weights; what its folder lacks is the target's."""
    weights = {name: tensor for name, tensor in head.tensors.items() if name not in ("d2t", "t2d")}
    for name, module in (
        ("embed_tokens.weight", target.network.get_input_embeddings()),
        ("lm_head.weight", target.network.get_output_embeddings()),
    ):
        if name not in weights:
            shared, expected = module.weight, network.get_parameter(name)
            if shared.shape != expected.shape:
                raise ValueError(
                    f"the head lacks {name!r}, and that of its target has the shape {list(shared.shape)} in place of "
                    f"{list(expected.shape)}; use a head that has its own"
                )
            weights[name] = shared
    weights = {name: tensor.to(target.device, target.dtype) for name, tensor in weights.items()}
    network.load_state_dict(weights, assign=True)
    network.rotary_emb = type(network.rotary_emb)(network.layer_config).to(target.device)


def _ids_of(head: Head) -> torch.Tensor | None:
    if "d2t" not in head.tensors:
        return None
    return target_ids(head.tensors["d2t"], head.config.vocab_size)
