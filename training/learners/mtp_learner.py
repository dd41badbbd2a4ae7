"""MtpLearner: an MTP head of one module that learns beside its target, into whose own files it is written.

Embedding and output layer are the target's, and stay as they are.

Shapes: B rows, T tokens, E hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import load_file
from torch.nn.functional import embedding, linear

from decoding.checkpoint.layer_subset import num_layers
from decoding.heads.mtp.family import Family
from decoding.heads.mtp.files import family_of, own_head, save_beside
from decoding.heads.mtp.network import MtpNetwork
from decoding.heads.mtp.unrolled import unrolled
from decoding.heads.target_parts import final_norm
from training.learners.ahead import AheadLearner
from training.learners.losses import LossName
from training.learners.packing import PackedRows
from training.learners.teacher import Teacher


@dataclass(frozen=True, kw_only=True)
class MtpLearner(AheadLearner):
    """A head in the form of its target's family."""

    network: MtpNetwork  # the module's own layers and norms
    family: Family

    @classmethod
    def load(cls, teacher: Teacher, steps_ahead: int, loss: LossName = "kl") -> MtpLearner:
        """Load the head that the target carries, to be trained further.

        Raises ValueError, in one line, for files without a head, and for a head of several modules.
        """
        head = own_head(teacher.path)
        if len(head.modules) != 1:
            raise ValueError(
                f"the MTP head in {teacher.path!r} has {len(head.modules)} modules, and only heads of one are trained "
                "here; leave models.draft out for a new one"
            )
        network = MtpNetwork.load(head).to(teacher.device)
        return cls(teacher=teacher, steps_ahead=steps_ahead, loss=loss, network=network, family=head.family)

    @classmethod
    def new(cls, teacher: Teacher, steps_ahead: int, loss: LossName = "kl", *, seed: int = 0) -> MtpLearner:
        """Make a head with weights drawn by the seed. Raises ValueError, in one line, for a family that has none."""
        family, config = family_of(teacher.path)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = MtpNetwork.new(config, family).to(teacher.device)
        return cls(teacher=teacher, steps_ahead=steps_ahead, loss=loss, network=network, family=family)

    def drafted(self, rows: PackedRows) -> tuple[torch.Tensor, Iterator[tuple[torch.Tensor, ...]]]:
        """Return the target's logits, and the head's for each step ahead, as `AheadLearner.drafted` says."""
        target = self.teacher.network
        logits_BTV, stream_BTE = self.teacher.logits_and_features(rows, (num_layers(target.config),))
        states_BTE = self.network.state(stream_BTE, final_norm(target)).float()
        embedded_BTE = embedding(rows.token_ids_BT, target.get_input_embeddings().weight).float()
        output: Any = target.get_output_embeddings()
        bias = None if output.bias is None else output.bias.float()
        steps = unrolled(self.network, embedded_BTE, states_BTE, self.steps_ahead)
        return logits_BTV, ((linear(step, output.weight.float(), bias),) for step in steps)

    def save(self, folder: str) -> None:
        """Write the target with this head, by the names that its family publishes, in the type of its checkpoint."""
        target, first = self.teacher.network, 0
        if self.family.begins_behind_target:
            first = num_layers(target.config)
        own = self.network
        parts = own.embedding_norm, own.hidden_norm, own.projection, own.final_norm
        size = num_layers(own.layers.config)
        ends = (end.format(first=first, last=first + size - 1) for end in self.family.ends)
        found = {f"{end}.weight": part.weight.detach() for end, part in zip(ends, parts, strict=True)}
        with TemporaryDirectory() as name:  # saved, tensors have the names and the shapes of checkpoints
            own.layers.save_pretrained(name)
            for file in Path(name).glob("*.safetensors"):
                found |= {self.family.published(of, first): each for of, each in load_file(file).items()}
        copied = {"embed_tokens": target.get_input_embeddings(), "shared_head.head": target.get_output_embeddings()}
        found |= {f"{self.family.layer.format(first)}{part}.weight": copied[part].weight for part in self.family.copies}
        written = {
            of: each.detach()
            .to("cpu", self.teacher.dtype if each.is_floating_point() else each.dtype, copy=True)
            .contiguous()
            for of, each in found.items()
        }
        save_beside(self.teacher.path, self.family, written, folder)
