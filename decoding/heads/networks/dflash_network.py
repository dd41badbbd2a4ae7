"""DFlashNetwork: the layers of a DFlash or DSpark head as modules, named as the tensors of its folder.

A head fills in a block of masked tokens at once. Its layers see the text before the block as keys and values that are
computed from the target's features directly, and the block's own tokens as any decoder layer does. DSpark adds the
Markov head, a bias of each token's logits by the token before it, and the confidence head, the chance that a token is
accepted.

Source: DFlash (arXiv 2602.06036), DSpark (arXiv 2607.05147); the speculators format, version 0.9.

Shapes: N tokens, A features of a token, E hidden size of the target, H that of the head, V vocabulary of the target, D
that of the head, R rank of the Markov head.
"""

import torch
from torch import nn

from decoding.heads.format.head_config import HeadConfig
from decoding.heads.networks.decoder_layers import HeadNetwork, RMSNorm


class DFlashNetwork(HeadNetwork):
    """The parameters of a head. Its layers are run over slots by `DFlashHead`."""

    def __init__(self, config: HeadConfig) -> None:
        """Make the modules, with weights of no meaning."""
        super().__init__(config)
        self.hidden_norm = RMSNorm(config.hidden_size, self.layer_config.rms_norm_eps)
        self.markov_head = MarkovHead(config) if config.markov_rank else None
        self.confidence_head = ConfidenceHead(config) if config.enable_confidence_head else None

    def project(self, features_NX: torch.Tensor) -> torch.Tensor:
        """Return what the head keeps of a token's features, [N, H], from all of them side by side [N, A * E]."""
        projected_NH: torch.Tensor = self.hidden_norm(self.fc(features_NX.to(self.norm.weight.dtype)))
        return projected_NH


class MarkovHead(nn.Module):
    """A bias of logits by the token before. It has a low rank: the token's embedding, and a projection."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        rank, hidden_size = config.markov_rank, config.hidden_size
        self.kind = config.markov_head_type
        self.markov_w1 = nn.Embedding(config.vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, config.draft_vocab_size, bias=False)
        if self.kind == "gated":
            self.gate_proj = nn.Linear(hidden_size + rank, rank)
        if self.kind == "rnn":
            self.joint_proj = nn.Linear(2 * rank + hidden_size, 3 * rank)

    @property
    def is_recurrent(self) -> bool:
        """Whether a token's bias depends on all earlier tokens of the block."""
        return self.kind == "rnn"

    def mix(
        self, states_NH: torch.Tensor, before_NR: torch.Tensor, carried_NR: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what `markov_w2` projects, and what the next place of the block gets as `carried_NR`.

        `before_NR` is the embedding of the token before this place.
        """
        if self.kind == "vanilla":
            return before_NR, carried_NR
        if self.kind == "gated":
            return self.gate_proj(torch.cat((states_NH, before_NR), dim=-1)).sigmoid() * before_NR, carried_NR
        joint_NX = self.joint_proj(torch.cat((carried_NR, before_NR, states_NH), dim=-1))
        gate_NR, candidate_NR, out_NR = joint_NX.chunk(3, dim=-1)
        gate_NR = gate_NR.sigmoid()
        return out_NR.tanh(), gate_NR * carried_NR + (1 - gate_NR) * candidate_NR.tanh()


class ConfidenceHead(nn.Module):
    """The chance that a token is accepted if those before it are, without a look at the token itself."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.reads_markov = config.confidence_head_with_markov and config.markov_rank > 0
        self.proj = nn.Linear(config.hidden_size + config.markov_rank * self.reads_markov, 1)

    def chances(self, states_NH: torch.Tensor, before_NR: torch.Tensor | None) -> torch.Tensor:
        """Return the chances [N], float32; `before_NR` as in `MarkovHead.mix`."""
        if self.reads_markov:
            assert before_NR is not None
            states_NH = torch.cat((states_NH, before_NR), dim=-1)
        chances_N: torch.Tensor = self.proj(states_NH)[:, 0].float().sigmoid()
        return chances_N
