"""AssistantLearner: an assistant of Gemma 4, whose queries learn to read its target's keys and values.

Pair p is the target's state at position p and token p + 1. In all steps of its draft position and keys stay those of
the round (`decoding/heads/assistant_head.py`): the query stands at p + 1, over the keys up to p. New assistants have
no sliding layers.

Shapes: B rows, T tokens, P = T - 1 pairs, N = B * P of all rows, E hidden size of the target, D size of a head.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch.nn.functional import rms_norm, scaled_dot_product_attention
from transformers import DynamicCache

from decoding.checkpoint.layer_subset import num_layers
from decoding.checkpoint.supported import read_config
from decoding.heads.assistant_folder import new_assistant
from decoding.heads.assistant_head import AssistantNetwork, tables_of
from decoding.heads.target_parts import final_norm
from training.learners.ahead import AheadLearner
from training.learners.losses import LossName
from training.learners.packing import PackedRows
from training.learners.teacher import Teacher


@dataclass(frozen=True, kw_only=True)
class AssistantLearner(AheadLearner):
    """An assistant, and the layers of its target that it reads."""

    network: AssistantNetwork
    config: Any
    layer_ids: tuple[int, ...]  # of the target, for each of its own layers
    dtype: torch.dtype  # of its folder

    @classmethod
    def new(cls, teacher: Teacher, steps_ahead: int, loss: LossName = "kl", *, seed: int = 0) -> AssistantLearner:
        """Make one with weights drawn by the seed. Raises ValueError, in one line, for a target of another family."""
        config, layer_ids = new_assistant(read_config(teacher.path), teacher.path)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = AssistantNetwork(config).to(teacher.device)
        own = {"network": network, "config": config, "layer_ids": layer_ids, "dtype": teacher.dtype}
        return cls(teacher=teacher, steps_ahead=steps_ahead, loss=loss, **own)

    def drafted(self, rows: PackedRows) -> tuple[torch.Tensor, Iterator[tuple[torch.Tensor, ...]]]:
        """Return the target's logits, and the assistant's for each step ahead, as `AheadLearner.drafted` says."""
        target, cache = self.teacher.network, DynamicCache()  # without a window: keys of all positions stay
        logits_BTV, stream_BTE = self.teacher.logits_and_features(rows, (num_layers(target.config),), cache)
        states_BPE = final_norm(target)(stream_BTE)[:, :-1].float()
        return logits_BTV, ((each,) for each in self._steps(rows.token_ids_BT, states_BPE, cache))

    def _steps(self, tokens_BT: torch.Tensor, states_BPE: torch.Tensor, cache: Any) -> Iterator[torch.Tensor]:
        own, embed = self.config.get_text_config(), self.teacher.network.get_input_embeddings()
        num_rows, num_pairs, _ = states_BPE.shape
        tables = {kind: of.reach(num_pairs + 1) for kind, of in tables_of(own, self.network).items()}
        pairs = [(cache.layers[index].keys.float(), cache.layers[index].values.float()) for index in self.layer_ids]
        is_seen_PT = torch.ones(num_pairs, num_pairs + 1, dtype=torch.bool, device=tokens_BT.device).tril()

        def norm(module: Any, x_NX: torch.Tensor) -> torch.Tensor:
            return rms_norm(x_NX, module.weight.shape, module.weight, own.rms_norm_eps)

        for step in range(min(self.steps_ahead, num_pairs)):
            left = num_pairs - step

            def attend(query_NQD: torch.Tensor, index: int, left: int = left) -> torch.Tensor:
                fed = query_NQD.view(num_rows, left, *query_NQD.shape[1:]).transpose(1, 2), *pairs[index]
                found_BQPD = scaled_dot_product_attention(*fed, is_seen_PT[:left], scale=1.0, enable_gqa=True)
                return found_BQPD.transpose(1, 2).flatten(0, 1).flatten(1)

            of_kind = [tables[kind] for kind in own.layer_types]
            turns = [[each[1 : left + 1, None].repeat(num_rows, 1, 1) for each in of] for of in of_kind]
            fed = embed(tokens_BT[:, 1 + step :]).float().flatten(0, 1), states_BPE[:, :left].flatten(0, 1)
            hidden_NH = self.network.states(*fed, turns, attend, norm)
            states_BPE = self.network.post_projection(hidden_NH).view(num_rows, left, -1)
            yield self.network.lm_head(hidden_NH).view(num_rows, left, -1)

    def save(self, folder: str) -> None:
        """Write the assistant in its published form, in the type of its folder: its output layer is its embedding."""
        self.config.save_pretrained(folder)
        tensors = {
            name: each.detach().to("cpu", self.dtype).contiguous() for name, each in self.network.state_dict().items()
        }
        tensors["model.embed_tokens.weight"] = tensors.pop("lm_head.weight")
        save_file(tensors, Path(folder) / "model.safetensors", metadata={"format": "pt"})
