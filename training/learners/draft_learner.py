"""DraftLearner: an independent draft model that learns its target's distributions, all its weights.

Shapes: B rows, T tokens, K positions that are kept, N tokens that are taught, V vocabulary of the target.
"""

from __future__ import annotations

import copy
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from decoding.checkpoint.fp8_format import fp8_format
from decoding.checkpoint.loading import load_network
from decoding.checkpoint.supported import check_same_vocabulary, load_config, max_positions, model_folder
from decoding.device import Device
from pipeline.run.fingerprint import tokenizer_files
from training.learners.losses import LossName, TargetLaw, scaled, token_losses
from training.learners.packing import PackedRows, StepResult
from training.learners.teacher import Teacher, dtype_of, packed_logits, tells_documents


@dataclass(frozen=True)
class DraftLearner:
    """A draft in float32, and the teacher that it learns from."""

    network: PreTrainedModel  # all of it is trained
    teacher: Teacher
    path: str  # of the draft that training begins with
    dtype: torch.dtype  # of its checkpoint
    loss: LossName = "kl"
    reads_packed: bool = True  # whether it tells the documents of a row

    @classmethod
    def load(
        cls,
        path: str,
        teacher: Teacher,
        device: Device,
        loss: LossName = "kl",
        use_gradient_checkpointing: bool = False,
    ) -> DraftLearner:
        """Load a draft to be trained. Raises ValueError, in one line, for one that cannot learn from this target."""
        path = model_folder(path)
        config = trainable_model(path, teacher.path, teacher.vocab_size)
        network, _ = load_network(path, device, "float32")
        reads_packed = tells_documents(network, path)
        network.eval().requires_grad_(True)  # dropout stays off: the draft learns a distribution, not a text
        if use_gradient_checkpointing:
            network.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            for module in network.modules():
                if isinstance(module, GradientCheckpointingLayer):
                    module.training = True  # the layer alone, which looks at it; what is inside stays without dropout
        return cls(network, teacher, path, dtype_of(config), loss, reads_packed)

    @property
    def max_len(self) -> int | None:
        """The longest document that both models can read; None: any."""
        limits = [limit for limit in (self.teacher.max_len, max_positions(self.network.config)) if limit is not None]
        return min(limits, default=None)

    def num_predictions(self, rows: PackedRows) -> int:
        return int(rows.is_taught_BT.sum())

    def step(self, rows: PackedRows, progress: float) -> StepResult:
        """Return the loss over all tokens that are taught, at least one."""
        rows = self.teacher.readable(rows) if self.reads_packed else rows.apart()
        kept_K = rows.is_taught_BT.any(0).nonzero()[:, 0]
        is_taught_BK = rows.is_taught_BT[:, kept_K]
        temperatures_N = rows.temperatures_BT[:, kept_K][is_taught_BK]
        token_ids_N = rows.token_ids_BT[:, kept_K + 1][is_taught_BK]
        logits_NV = packed_logits(self.network, rows, kept_K)[is_taught_BK]
        taught_NV = self.teacher.logits(rows, kept_K)[is_taught_BK]
        num_known = min(logits_NV.shape[-1], taught_NV.shape[-1])  # one may be padded: those ids are no tokens
        known_V = None if num_known == taught_NV.shape[-1] else torch.arange(num_known, device=taught_NV.device)
        law = TargetLaw.of(taught_NV, temperatures_N, known_V)
        scaled_NV = scaled(logits_NV[:, :num_known], temperatures_N)
        token_ids_N = torch.where(token_ids_N < num_known, token_ids_N, -1)
        losses_N = token_losses(self.loss, scaled_NV, law, token_ids_N, progress)
        return StepResult(losses_N.sum(), (scaled_NV.argmax(-1) == law.best_N).sum(), law.outside_N.sum())

    def save(self, folder: str) -> None:
        """Write the model in the type of its checkpoint, with the tokenizer and the end tokens that it came with."""
        # transformers names the type of the weights in config.json, so the weights themselves are turned into it.
        network = copy.deepcopy(self.network).to(self.dtype)
        network.save_pretrained(folder)
        source = Path(self.path)
        for file in (*tokenizer_files(source), source / "generation_config.json"):
            if file.is_file():
                copied = Path(folder) / file.relative_to(source)
                copied.parent.mkdir(exist_ok=True)
                shutil.copyfile(file, copied)


def trainable_model(path: str, target_path: str, vocab_size: int) -> PretrainedConfig:
    """Return the configuration of the draft model in a folder.

    Raises ValueError, in one line, for one that cannot be trained, or that has another vocabulary than the target.
    """
    config = load_config(path)
    if fp8_format(config) is not None:
        raise ValueError(f"{path!r} has FP8 weights, which cannot be trained; name a draft in bfloat16 or float32")
    check_same_vocabulary(target_path, path, vocab_size, config.get_text_config().vocab_size)
    return config
