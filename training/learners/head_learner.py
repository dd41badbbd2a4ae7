"""HeadLearner: an EAGLE-3 head that learns to draft several tokens ahead from what its target computes.

At step k the head predicts token p + 2 + k from pair p (`decoding/heads/unrolled.py`); the target's own
prediction of that token stands at position p + 1 + k.

Shapes: B rows, T tokens, P pairs, N predictions that are taught, D vocabulary of the head, V of the target.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn
from transformers import PretrainedConfig

from decoding.checkpoint.supported import model_folder
from decoding.heads.fit import fitting_config
from decoding.heads.format.folder import Head, read_head, save_head
from decoding.heads.format.head_config import HeadConfig
from decoding.heads.format.tensors import target_ids
from decoding.heads.networks import Eagle3Network, make_network
from decoding.heads.unrolled import unrolled
from training.learners.losses import LossName, TargetLaw, scaled, token_losses
from training.learners.new_head import new_head
from training.learners.packing import PackedRows, StepResult
from training.learners.teacher import Teacher

_OF_VOCABULARY = ("d2t", "t2d")


@dataclass(frozen=True)
class HeadLearner:
    """A head in float32, and the teacher that it learns from."""

    network: Eagle3Network
    teacher: Teacher
    config: HeadConfig
    marks: dict[str, torch.Tensor]  # the tensors of its folder that are no weights
    dtype: torch.dtype  # of its folder
    steps_ahead: int
    loss: LossName = "kl"
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
        assert isinstance(network, Eagle3Network)
        borrowed = tuple(name for name, weight in network.named_parameters() if not weight.requires_grad)
        network.embed_tokens.requires_grad_(False)  # a table of all tokens: what the corpus lacks would not learn
        marks = {name: head.tensors[name] for name in _OF_VOCABULARY if name in head.tensors}
        config = replace(config, num_speculative_tokens=steps_ahead)
        return cls(network, teacher, config, marks, head.tensors["fc.weight"].dtype, steps_ahead, loss, borrowed)

    @classmethod
    def new(
        cls,
        teacher: Teacher,
        known_ids: Sequence[int] | None,
        steps_ahead: int,
        loss: LossName = "kl",
        *,
        seed: int = 0,
    ) -> HeadLearner:
        """Make a head that knows these of the target's tokens (None: all), with weights drawn by the seed."""
        network, marks = new_head(teacher, known_ids, steps_ahead, seed)
        dtype = getattr(torch, network.config.layer_config.get("dtype") or "float32")
        return cls(network, teacher, network.config, marks, dtype, steps_ahead, loss)

    @property
    def module(self) -> nn.Module:
        """The network, of which all but the embedding is trained."""
        return self.network

    @property
    def max_len(self) -> int | None:
        """The longest document that both can read; None: any. Beyond a sliding window a head would see too much."""
        limits = [limit for limit in (self.teacher.max_len, self.config.sliding_window) if limit is not None]
        return min(limits, default=None)

    def num_predictions(self, rows: PackedRows) -> int:
        """Return how many predictions are taught, over all steps ahead."""
        return sum(int(is_taught_BP.sum()) for is_taught_BP in self._taught(rows))

    def step(self, rows: PackedRows, progress: float) -> StepResult:
        """Return the loss over all predictions of all steps ahead; what is agreed on is counted at the first one."""
        layer_ids = self.config.layer_ids
        assert layer_ids is not None, "they were settled when the head was loaded or made"
        logits_BTV, features_BTX = self.teacher.logits_and_features(rows, layer_ids)
        target_ids_D, head_ids_V = self._ids(logits_BTV.device)
        device_type = logits_BTV.device.type
        loss = agreed = outside = logits_BTV.new_zeros(())
        with torch.autocast(device_type, torch.bfloat16, enabled=device_type == "cuda"):
            steps = unrolled(self.network, rows.token_ids_BT, features_BTX.float(), self.steps_ahead, rows.documents_BT)
            for step, (drafted_BPD, is_taught_BP) in enumerate(zip(steps, self._taught(rows), strict=True)):
                first = 1 + step  # the target's prediction stands this far behind the pair
                temperatures_N = rows.temperatures_BT[:, first:][is_taught_BP]
                law = TargetLaw.of(logits_BTV[:, first:][is_taught_BP], temperatures_N, target_ids_D)
                token_ids_N = rows.token_ids_BT[:, first:].roll(-1, 1)[is_taught_BP]
                scaled_ND = scaled(drafted_BPD[is_taught_BP], temperatures_N)
                losses_N = token_losses(self.loss, scaled_ND, law, head_ids_V[token_ids_N], progress)
                loss = loss + losses_N.sum()
                if step == 0:
                    best_N = scaled_ND.argmax(-1)
                    agreed = ((best_N if target_ids_D is None else target_ids_D[best_N]) == law.best_N).sum()
                    outside = law.outside_N.sum()
        return StepResult(loss, agreed, outside)

    def save(self, folder: str) -> None:
        """Write the head in the speculators format, in the type of its folder; the target's weights are left out."""
        weights = {
            name: weight.detach().to("cpu", self.dtype)
            for name, weight in self.network.named_parameters()
            if name not in self.borrowed
        }
        config = replace(self.config, format="speculators", target_name=self.config.target_name or self.teacher.name)
        save_head(Head(config, {**weights, **self.marks}), folder, "speculators")

    def _taught(self, rows: PackedRows) -> Iterator[torch.Tensor]:
        """Yield for each step ahead which pairs [B, P - k] predict an output token of their own document."""
        for step in range(min(self.steps_ahead, rows.token_ids_BT.shape[1] - 1)):
            is_own_BP = rows.documents_BT[:, : -1 - step] == rows.documents_BT[:, 1 + step :]
            yield is_own_BP & rows.is_taught_BT[:, 1 + step :]

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
    if config.kind != "eagle3" or config.num_layers != 1:
        raise ValueError(
            f"{path!r} is a head of kind {config.kind} with {config.num_layers} layers, and only eagle3 heads of one "
            "layer are trained here; use such a head, or leave models.draft out for a new one"
        )
    try:
        return replace(config, layer_ids=config.layer_ids_as("inputs"), layer_ids_are="inputs")
    except ValueError as error:
        raise ValueError(f"{path!r} {error} by python -m jobs.convert_draft") from error
