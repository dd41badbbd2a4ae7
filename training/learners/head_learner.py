"""HeadLearner: an EAGLE-3, DFlash or DFlash 2 head that learns to draft from what layers of its target compute.

Shapes: B rows, T tokens, P pairs, D vocabulary of the head, V of the target, X any number of features.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import Any

import torch
from transformers import AutoTokenizer, PretrainedConfig

from decoding.checkpoint.supported import model_folder
from decoding.heads.blocks import blocks_ahead
from decoding.heads.fit import fitting_config
from decoding.heads.format.folder import Head, read_head, save_head
from decoding.heads.format.head_config import OF_SCALES, HeadConfig, Kind, default_layer_inputs, normalized
from decoding.heads.format.networks import DFlashNetwork, Eagle3Network
from decoding.heads.format.tensors import OF_VOCABULARY, offsets, target_ids
from decoding.heads.target_parts import make_network
from decoding.heads.unrolled import unrolled
from training.learners.ahead import AheadLearner
from training.learners.losses import LossName
from training.learners.packing import PackedRows
from training.learners.teacher import Teacher

_TRAINED: tuple[Kind, ...] = ("eagle3", "dflash", "dflash2")


@dataclass(frozen=True, kw_only=True)
class HeadLearner(AheadLearner):
    """A head with a folder of its own."""

    network: Eagle3Network | DFlashNetwork  # of which all but the embedding is trained
    config: HeadConfig
    marks: dict[str, torch.Tensor]  # the tensors of its folder that are no weights
    dtype: torch.dtype  # of its folder
    borrowed: tuple[str, ...] = ("embed_tokens.weight",)  # weights that are the target's, and not saved

    @classmethod
    def load(cls, path: str, teacher: Teacher, steps_ahead: int, loss: LossName = "kl") -> HeadLearner:
        """Load a head to be trained further. Raises ValueError, in one line, for one that cannot learn here."""
        path = model_folder(path)
        config = trainable_config(path, teacher.network.config, teacher.path)
        head = read_head(path, config)
        embedding, output = teacher.network.get_input_embeddings(), teacher.network.get_output_embeddings()
        network = make_network(
            head,
            lambda: (embedding.weight.detach().clone(), output.weight.detach().clone()),
            teacher.device,
            torch.float32,
        )
        borrowed = tuple(name for name, weight in network.named_parameters() if not weight.requires_grad)
        network.embed_tokens.requires_grad_(False)  # a table of all tokens: what the corpus lacks would not learn
        marks = {name: head.tensors[name] for name in OF_VOCABULARY if name in head.tensors}
        if config.block_size is not None:  # which stays as it is
            steps_ahead = config.block_size - (not config.sample_from_anchor)
        return cls(
            teacher=teacher,
            steps_ahead=steps_ahead,
            loss=loss,
            network=network,
            config=replace(config, num_speculative_tokens=steps_ahead),
            marks=marks,
            dtype=head.tensors["fc.weight"].dtype,
            borrowed=borrowed,
        )

    @classmethod
    def new(
        cls,
        teacher: Teacher,
        known_ids: Sequence[int] | None,
        steps_ahead: int,
        loss: LossName = "kl",
        *,
        kind: Kind = "eagle3",
        seed: int = 0,
    ) -> HeadLearner:
        """Make a head of one layer in the target's own sizes, with weights drawn by the seed.

        `known_ids` are the target's ids of its tokens, ascending; None: all. Its embedding is the target's and stays as
        it is; its output layer begins with the target's rows.
        """
        num_known = len(known_ids) if known_ids is not None else teacher.vocab_size
        config = head_config(teacher, num_known, steps_ahead, kind)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = Eagle3Network(config) if kind == "eagle3" else _new_blocks(config)
        ids_D = None if known_ids is None else torch.tensor(known_ids, dtype=torch.int64)
        embedding, output = teacher.network.get_input_embeddings(), teacher.network.get_output_embeddings()
        with torch.no_grad():
            network.embed_tokens.weight.copy_(embedding.weight)
            rows = output.weight if ids_D is None else output.weight[ids_D.to(output.weight.device)]
            network.lm_head.weight.copy_(rows)
        network.embed_tokens.requires_grad_(False)
        marks = {} if ids_D is None else {"d2t": offsets(ids_D)}
        dtype = getattr(torch, config.layer_config.get("dtype") or "float32")
        own = {"network": network.to(teacher.device), "config": config, "marks": marks, "dtype": dtype}
        return cls(teacher=teacher, steps_ahead=steps_ahead, loss=loss, **own)

    @property
    def max_len(self) -> int | None:
        """The longest document that both can read; None: any. Beyond a sliding window a head would see too much."""
        limits = [limit for limit in (self.teacher.max_len, self.config.sliding_window) if limit is not None]
        return min(limits, default=None)

    @property
    def every(self) -> int:
        """How far apart the pairs are of which drafts begin."""
        return max(1, (self.config.block_size or 0) // 2)

    def readable(self, rows: PackedRows) -> PackedRows:
        return self.teacher.readable(rows) if isinstance(self.network, Eagle3Network) else super().readable(rows)

    def drafted(self, rows: PackedRows) -> tuple[torch.Tensor, Iterator[tuple[torch.Tensor, ...]]]:
        """Return the target's logits, and the head's for each step ahead, as `AheadLearner.drafted` says."""
        layer_ids = self.config.layer_ids
        assert layer_ids is not None, "they were settled when the head was loaded or made"
        logits_BTV, features_BTX = self.teacher.logits_and_features(rows, layer_ids)
        fed = rows.token_ids_BT, features_BTX.float()
        if isinstance(self.network, Eagle3Network):
            steps = unrolled(self.network, *fed, self.steps_ahead, rows.documents_BT)
            return logits_BTV, ((logits_BPD,) for logits_BPD in steps)
        return logits_BTV, blocks_ahead(self.network, *fed, self.every, self._ids(logits_BTV.device)[0])

    def save(self, folder: str) -> None:
        """Write the head in the speculators format, in the type of its folder; the target's weights are left out."""
        weights = {
            name: weight.detach().to("cpu", self.dtype)
            for name, weight in self.network.named_parameters()
            if name not in self.borrowed
        }
        config = replace(self.config, format="speculators", target_name=self.config.target_name or self.teacher.name)
        save_head(Head(config, {**weights, **self.marks}), folder, "speculators")

    def _ids(self, device: torch.device) -> tuple[torch.Tensor | None, torch.Tensor]:
        """Return the target's ids of the head's tokens (None: all), and for each target id the head's, or -1."""
        all_V = torch.arange(self.config.vocab_size, device=device)
        if "d2t" not in self.marks:
            return None, all_V
        ids_D = target_ids(self.marks["d2t"], self.config.vocab_size).to(device)
        return ids_D, torch.full_like(all_V, -1).index_copy(0, ids_D, torch.arange(len(ids_D), device=device))


def trainable_config(path: str, target_config: PretrainedConfig, target_path: str) -> HeadConfig:
    """Return the configuration of the head in a folder, with the layers of this target whose input it reads.

    Raises ValueError, in one line that names the folder, for a head of another target and for one that is not trained
    here.
    """
    config = fitting_config(path, target_config, target_path)
    is_deep = config.kind == "eagle3" and config.num_layers != 1
    is_cut = config.kind != "eagle3" and config.sliding_window is not None
    is_scaled = any(getattr(config, name) != unchanged for name, unchanged in OF_SCALES.items())
    if config.kind not in _TRAINED or is_deep or is_cut or is_scaled:
        raise ValueError(
            f"{path!r} is a head of kind {config.kind} with {config.num_layers} layers, and only eagle3 heads of one "
            "layer, and dflash and dflash2 heads without sliding windows and scales, are trained here; use such a "
            "head, or leave models.draft out for a new one"
        )
    try:
        return replace(config, layer_ids=config.layer_ids_as("inputs"), layer_ids_are="inputs")
    except ValueError as error:
        raise ValueError(f"{path!r} {error} by dray convert-draft") from error


def _new_blocks(config: HeadConfig) -> DFlashNetwork:
    """Return a DFlash network that begins as if it had no convolutions and no selector."""
    network = DFlashNetwork(config)
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if name.endswith(("kernel_projection.weight", "successor_codebook", "base_kernel")):
                weight.zero_()
            if name.endswith("base_kernel"):
                weight[:, 0] = 1.0
            if name.endswith("predecessor_codebook"):
                weight.normal_()
    return network


def head_config(teacher: Teacher, num_known: int, steps_ahead: int, kind: Kind = "eagle3") -> HeadConfig:
    """Return the configuration of a head that reads low, middle and high layers, with the norms of EAGLE 3.1.

    A head that fills in blocks takes an end token for its mask: no draft has one before it.
    """
    whole = teacher.network.config
    text = whole.get_text_config()
    num_layers, num_heads = int(text.num_hidden_layers), int(text.num_attention_heads)
    hidden_size = int(text.hidden_size)
    layer = {
        "model_type": "llama" if kind == "eagle3" else "qwen3",
        "vocab_size": teacher.vocab_size,
        "hidden_size": hidden_size,
        "intermediate_size": int(getattr(text, "intermediate_size", None) or 4 * hidden_size),
        "num_hidden_layers": 1,
        "num_attention_heads": num_heads,
        "num_key_value_heads": int(getattr(text, "num_key_value_heads", None) or num_heads),
        "head_dim": int(getattr(text, "head_dim", None) or hidden_size // num_heads),
        "rms_norm_eps": float(getattr(text, "rms_norm_eps", None) or 1e-6),
        "max_position_embeddings": int(getattr(text, "max_position_embeddings", None) or 2048),
        "dtype": str(teacher.dtype).removeprefix("torch."),
    }
    own: dict[str, Any] = dict.fromkeys(("norm_before_residual", "norm_before_fc", "norm_output"), True)
    if kind != "eagle3":
        own = {"block_size": steps_ahead + 1, "mask_token_id": min(teacher.end_token_ids, default=0)}
    if kind == "dflash2":
        own |= {"sliding_window_non_causal": True, "conv_kernel_size": 2, "conv_group_size": gcd(16, hidden_size)}
        own |= {"selector_rank": min(256, max(1, hidden_size // 4)), "selector_top_k": min(16, num_known)}
    return HeadConfig(
        kind=kind,
        format="speculators",
        layer_config=normalized(layer),
        draft_vocab_size=num_known,
        target_hidden_size=hidden_size,
        layer_ids=layers_to_read(num_layers),
        layer_ids_are="inputs",
        num_speculative_tokens=steps_ahead,
        num_target_layers=num_layers,
        target_name=teacher.name,
        target_architectures=tuple(whole.architectures or ()),
        **own,
    )


def layers_to_read(num_layers: int) -> tuple[int, ...]:
    """Return the layers whose input a new head reads: a low one, a middle one and a high one, or as many as there are.

    For targets of 8 layers and more these are the ids that training software takes, of which vLLM knows, too.
    """
    ids = default_layer_inputs(num_layers)
    if list(ids) == sorted(set(ids)) and ids[0] >= 0:
        return ids
    return tuple(sorted({num_layers // 4, num_layers // 2, num_layers - 1}))


def tokens_to_know(counts: Sequence[int], num_known: int, forced: Iterable[int]) -> list[int]:
    """Return the ids of the most frequent tokens, ascending, of which those that are `forced` are some.

    `counts` has the occurrences of each of the target's tokens. Between equal counts the lower id is taken. Raises
    ValueError if not even the forced ones fit.
    """
    first = {token for token in forced if token < len(counts)}
    if len(first) > num_known:
        raise ValueError(
            f"train.draft_vocab is {num_known}, fewer than the target's {len(first)} end tokens and special tokens, "
            "which a head has to know; raise it"
        )
    ranked = sorted((token for token in range(len(counts)) if token not in first), key=lambda token: -counts[token])
    return sorted([*first, *ranked[: num_known - len(first)]])


def special_tokens(path: str) -> set[int]:
    """Return the ids of the special tokens and those added to the tokenizer in a model's folder; none without one."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except (OSError, ValueError, KeyError):
        return set()
    return {int(token) for token in (*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder)}


def coverage(counts: Sequence[int], known_ids: Sequence[int]) -> float:
    """Return the share of the counted tokens that a head with these ids knows."""
    return sum(counts[token] for token in known_ids) / max(sum(counts), 1)
