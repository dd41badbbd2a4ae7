"""A head beside its target: its folder is read, checked against the target, and its layers are measured.

A head that reads other layers than those it was trained with drafts without an error, and nearly nothing of it is
accepted: ids of layers mean the layer's input to one half of the world, and its output to the other. So it is measured
at load how often a head's first guess is the token that its target finds most likely.

Shapes: B rows, T tokens of each, P of them that are guessed, N tokens in all, A layers, E hidden size of the target.
"""

import logging
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Protocol

import torch
from transformers import PreTrainedModel

from decoding.cache.features import FeatureTap
from decoding.checkpoint.layer_subset import num_layers
from decoding.checkpoint.supported import load_config, model_folder
from decoding.device import to_device
from decoding.fused.linear import KernelLinear, PackedEmbedding, source_of
from decoding.heads.assistant_folder import fitting_assistant
from decoding.heads.assistant_head import AssistantHead
from decoding.heads.dflash_head import DFlashHead
from decoding.heads.eagle3_head import Eagle3Head
from decoding.heads.fit import LENT, fitting_config
from decoding.heads.format.folder import Head, read_head
from decoding.heads.format.head_config import HeadConfig
from decoding.heads.format.networks import Eagle3Network
from decoding.heads.mtp.files import own_head
from decoding.heads.mtp.head import MtpHead
from decoding.heads.mtp.network import MtpModule, MtpNetwork
from decoding.heads.target_parts import final_norm, load_ends, make_network
from decoding.network.language_model import LanguageModel
from decoding.network.slot_network import layers_to_read
from decoding.network.target import Target, once_more
from decoding.sampling.judging import ScoreRequest
from decoding.sampling.logprobs import Stretch
from decoding.sampling.rows import Rows, sampling_batch
from decoding.sampling.rules import COUPLED
from decoding.sampling.verdicts import Draft
from decoding.sampling_params import SamplingParams
from decoding.sequence import Sequence

LEAST_AGREEMENT = 0.15
_log = logging.getLogger(__name__)


class Guesser(Protocol):
    """What is measured of a head: see `SlotHead.guesses`."""

    def guesses(self, tokens_BT: torch.Tensor, features_BTX: torch.Tensor) -> tuple[torch.Tensor, list[int]]: ...


def check_agreement(what: str, shares: Mapping[str, float], cause: str) -> None:
    """Log on how many tokens of a text a head agrees with its target, for each way in which it may read the target.

    `what` begins that line. Raises ValueError, with the line and a `cause`, if no way gives 15 %.
    """
    line = f"{what} on " + ", ".join(f"{share:.0%} of the tokens{way}" for way, share in shares.items())
    if max(shares.values()) < LEAST_AGREEMENT:
        raise ValueError(f"{line}, expected at least {LEAST_AGREEMENT:.0%}: {cause}")
    _log.info("%s", line)


def attach_own(target: Target, target_path: str) -> MtpHead:
    """Load the MTP head in the target's own files, beside the target, in its dtype and on its device.

    Raises ValueError, in one line that names the folder, for files without a head that can be read, and for one that
    agrees with the target on less than 15 % of its tokens.
    """
    files, network = own_head(target_path), _ends(target, target_path)
    loaded = (MtpNetwork.load(files, number, target.dtype) for number in range(len(files.modules)))
    modules = [MtpModule(each.to(target.device), number) for number, each in enumerate(loaded)]
    ends = source_of(network.get_input_embeddings()), final_norm(network), network.get_output_embeddings()
    own, shares = MtpHead(modules, *ends, num_layers(network.config)), {}
    for own.reads in files.family.reads:
        shares[own.reads] = once_more(lambda: agreements(own, target, [own.layer_ids]))[0]
    own.reads = max(shares, key=lambda reads: shares[reads])
    what = f"the MTP head in the files of {target_path!r} agrees with its target"
    cause = "it was trained for other weights, or saved in another way; leave models.draft out"
    check_agreement(what, {"": shares[own.reads]}, cause)
    return own


def attach_assistant(path: str, target: Target, target_path: str) -> AssistantHead:
    """Load the assistant in the folder or hub model `path` beside a target, in its dtype and on its device.

    Raises ValueError, in one line that names the folder, for one that does not fit its target, or that agrees with it
    on less than 15 % of its tokens.
    """
    assert isinstance(target, LanguageModel), "a target in other processes is refused before"
    head = AssistantHead.load(fitting_assistant(path, target.network.config, target_path), target)
    (share,) = once_more(lambda: agreements(head, target, [head.feature_layers]))
    check_agreement(f"{path!r} agrees with {target_path!r}", {"": share}, "it was trained for another target")
    return head


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

    def lent() -> tuple[torch.Tensor, torch.Tensor]:
        ends = _ends(target, target_path)
        return ends.get_input_embeddings().weight, ends.get_output_embeddings().weight

    network = make_network(head, lent, target.device, target.dtype)
    if isinstance(target, LanguageModel):
        ends = target.network.get_input_embeddings(), target.network.get_output_embeddings()
        for name, end in zip(LENT, ends, strict=True):  # a packed one itself, not a copy of its weight
            is_packed = isinstance(end, PackedEmbedding) or (isinstance(end, KernelLinear) and end.bias is None)
            if name in network.lent and is_packed:
                setattr(network, name.removesuffix(".weight"), end)
    read = head.target_ids, config.layer_ids
    own = Eagle3Head(network, *read) if isinstance(network, Eagle3Network) else DFlashHead(network, *read)
    readings = _readings(config, num_layers(target_config))
    shares = dict(zip(readings, once_more(lambda: agreements(own, target, readings)), strict=True))
    ways = {f" if it reads what enters layers {list(reading)}": share for reading, share in shares.items()}
    cause = "it was trained for another target, or for other layers (dray convert-draft writes other ones)"
    check_agreement(f"{path!r} agrees with {target_path!r}", ways, cause)
    own.layer_ids = max(shares, key=lambda reading: shares[reading])
    return own


def _readings(config: HeadConfig, num_target_layers: int) -> list[tuple[int, ...]]:
    """Return the layers whose input the head may read, by both conventions, the one that it states first."""
    assert config.layer_ids is not None
    as_inputs, as_outputs = config.layer_ids, tuple(each + 1 for each in config.layer_ids)
    readings = [as_outputs, as_inputs] if config.layer_ids_are == "outputs" else [as_inputs, as_outputs]
    return [reading for reading in readings if max(reading) <= num_target_layers]


def _ends(target: Target, target_path: str) -> PreTrainedModel:
    """Return the target's network; from its files, without its layers, where those are apart."""
    if isinstance(target, LanguageModel):
        return target.network
    return load_ends(target_path, "cpu", "auto").to(target.device, target.dtype)


_NUM_ROWS, _NUM_TOKENS = 8, 40


@torch.inference_mode()
def agreements(head: Guesser, target: Target, readings: Seq[Seq[int]]) -> list[float]:
    """Return the share of tokens on which head and target agree, for each list of layers whose input may be read.

    The text is drawn from the target itself, always the same. The caches of both are lost, and so is the target's tap.
    """
    layer_ids = sorted({layer_id for reading in readings for layer_id in reading})
    kept: list[torch.Tensor] = []
    tap = FeatureTap(tuple(layer_ids), lambda stream_NX: stream_NX, lambda *given: kept.append(given[-1]))
    num_tokens = min(_NUM_TOKENS, target.max_positions or _NUM_TOKENS)
    first = torch.randint(target.vocab_size, (_NUM_ROWS,), generator=torch.Generator().manual_seed(0)).tolist()
    try:
        texts = drawn(target, first, num_tokens)
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


@torch.inference_mode()
def drawn(target: Target, first: Seq[int], num_tokens: int) -> list[list[int]]:
    """Return texts that the target writes at temperature 1 behind these tokens; none ends early.

    They are always the same. What is in the target's slots is lost, and so is its tap.
    """
    target.hand_out(None)  # an earlier drafter must not get what is written here
    target.allocate(len(first), num_tokens)
    params = SamplingParams(max_tokens=num_tokens - 1, seed=0, ignore_eos=True)
    texts = tuple(Sequence.create([token], params, row=row) for row, token in enumerate(first))
    nothing = (0,) * len(texts)
    rows = Rows(texts, sampling_batch(texts, frozenset(), target.device), nothing, COUPLED)
    keys_B = rows.sampling.keys_B
    no_draft = Draft(keys_B.new_zeros(len(texts), 0), torch.zeros_like(keys_B), max_draft_tokens_B=nothing)
    for _ in range(num_tokens - 1):
        request = ScoreRequest(replace(rows), no_draft, (None,) * len(texts))  # rows remember what is true of one round
        for text, verdict in zip(texts, target.score(request).result(), strict=True):
            text.commit([verdict.next_token], num_draft_tokens=0, eos_token_ids=frozenset())
    return [list(text.token_ids) for text in texts]
