"""Networks of heads as modules of torch, named as the tensors of their folders: what a trainer trains, and what drafts.

EAGLE-3: a head reads pairs, a feature of the target at position i (its residual stream before some layers) and the
token at position i + 1, and predicts the token at position i + 2. The first layer's queries, keys and values are
computed from both side by side, so its products have twice as many inputs; all else is a decoder layer of Llama or
Qwen 3.

P-EAGLE: the pairs that follow the last known one have a learned feature and the mask's token, so that one forward
drafts all tokens.

DFlash: a head fills in a block of masked tokens at once. Its layers see the text before the block as keys and values
that are computed from the target's features directly, and the block's own tokens as any decoder layer does. DSpark adds
the Markov head, a bias of each token's logits by the token before it, and the confidence head, the chance that a token
is accepted. DFlash 2 adds convolutions around the two parts of each layer, and chooses among the likeliest tokens of a
place by the token before it.

Source: EAGLE-3 (arXiv 2503.01840), DFlash (arXiv 2602.06036), DSpark (arXiv 2607.05147); the speculators format,
version 0.9; DFlash 2 (github.com/z-lab/dflash, dflash/model.py).

Shapes: N tokens or pairs, A features of a token, E hidden size of the target, H that of the head, V vocabulary of the
target, D that of the head, R rank of the Markov head or of the selector, C tokens among which it chooses, S places of a
block, X places of several blocks, T tokens that a convolution reads.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig
from transformers.models.llama import modeling_llama as llama
from transformers.models.qwen3 import modeling_qwen3 as qwen3

from decoding.heads.format.head_config import READ_PAIRS, HeadConfig

RMSNorm = llama.LlamaRMSNorm
_CLASSES: dict[str, tuple[type[nn.Module], type[nn.Module]]] = {
    "llama": (llama.LlamaDecoderLayer, llama.LlamaRotaryEmbedding),
    "qwen3": (qwen3.Qwen3DecoderLayer, qwen3.Qwen3RotaryEmbedding),
}


class HeadNetwork(nn.Module):
    """What every head has: its own layers and what is around them. Its layers are run over slots by a `SlotHead`."""

    lent: tuple[str, ...] = ()  # its tensors that are its target's

    def __init__(self, config: HeadConfig) -> None:
        """Make the modules, with weights of no meaning."""
        super().__init__()
        layer_config: Any = AutoConfig.for_model(**config.layer_config)
        layer_class, rotary_class = _CLASSES[layer_config.model_type]
        hidden_size = config.hidden_size
        self.config, self.layer_config = config, layer_config
        self.fc = nn.Linear(config.num_features * config.target_hidden_size, hidden_size, bias=False)
        self.layers = nn.ModuleList(layer_class(layer_config, index) for index in range(layer_config.num_hidden_layers))
        self.norm = RMSNorm(hidden_size, layer_config.rms_norm_eps)
        self.lm_head = nn.Linear(hidden_size, config.draft_vocab_size, bias=False)
        self.embed_tokens = nn.Embedding(config.vocab_size, hidden_size)
        self.rotary_emb = rotary_class(layer_config)

    def project(self, features_NX: torch.Tensor) -> torch.Tensor:
        """Return what the head keeps of a token's features, [N, H], from all of them side by side [N, A * E]."""
        raise NotImplementedError


class Eagle3Network(HeadNetwork):
    """The parameters of a head. Its layers are run over slots by `Eagle3Head`."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__(config)
        hidden_size, epsilon = config.hidden_size, self.layer_config.rms_norm_eps
        self.input_norm = RMSNorm(self.fc.in_features, epsilon) if config.norm_before_fc else None
        self.fc_norm: nn.ModuleList | None = None
        if config.fc_norm:
            norms = (RMSNorm(config.target_hidden_size, epsilon) for _ in range(config.num_features))
            self.fc_norm = nn.ModuleList(norms)
        self.mask_hidden = nn.Parameter(torch.empty(1, 1, self.fc.in_features)) if config.kind == "peagle" else None
        first: Any = self.layers[0]
        first.hidden_norm = RMSNorm(hidden_size, epsilon)
        for name in ("q_proj", "k_proj", "v_proj"):
            linear = getattr(first.self_attn, name)
            wider = nn.Linear(2 * hidden_size, linear.out_features, bias=linear.bias is not None)
            setattr(first.self_attn, name, wider)

    def project(self, features_NX: torch.Tensor) -> torch.Tensor:
        features_NX = features_NX.to(self.norm.weight.dtype)  # asking a packed layer for its weight unpacks it
        if self.input_norm is not None:
            features_NX = self.input_norm(features_NX)
        if self.fc_norm is not None:
            parts = features_NX.chunk(len(self.fc_norm), dim=-1)
            features_NX = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        projected_NH: torch.Tensor = self.fc(features_NX)
        return projected_NH


class DFlashNetwork(HeadNetwork):
    """The parameters of a head. Its layers are run over slots by `DFlashHead`."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__(config)
        self.hidden_norm = RMSNorm(config.hidden_size, self.layer_config.rms_norm_eps)
        self.markov_head = MarkovHead(config) if config.markov_rank else None
        self.confidence_head = ConfidenceHead(config) if config.enable_confidence_head else None
        self.candidate_selector = CandidateSelector(config) if config.selector_rank else None
        for layer in self.layers if config.conv_kernel_size else ():
            layer.attention_conv, layer.mlp_conv = BlockConvolution(config), BlockConvolution(config)

    def project(self, features_NX: torch.Tensor) -> torch.Tensor:
        projected_NH: torch.Tensor = self.hidden_norm(self.fc(features_NX.to(self.norm.weight.dtype)))
        return projected_NH

    def finished(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the output layer's logits, scaled and capped as the head was trained."""
        logits, cap = logits * self.config.output_multiplier, self.config.final_logit_softcapping
        return (logits / cap).tanh() * cap if cap else logits


class BlockConvolution(nn.Module):
    """Two convolutions over the places of a block: of what a part of a layer reads, and of what it computes.

    The coefficients of both follow from what it reads: each channel has its own, plus one of a group of channels.
    """

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        num_taps, hidden_size, self._group_size = config.conv_kernel_size, config.hidden_size, config.conv_group_size
        self._block_size = config.block_size or 0
        self.base_kernel = nn.Parameter(torch.empty(2, num_taps, hidden_size))
        self.kernel_projection = nn.Linear(hidden_size, 2 * num_taps * hidden_size // self._group_size, bias=False)

    def forward(self, x_XH: torch.Tensor, part: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """Return what a part of a layer computes of blocks, whose places lie end to end, with both convolutions."""
        _, num_taps, hidden_size = self.base_kernel.shape
        shared_X2TG = self.kernel_projection(x_XH).view(len(x_XH), 2, num_taps, hidden_size // self._group_size)
        kernels_X2TH = self.base_kernel + shared_X2TG.repeat_interleave(self._group_size, dim=-1)
        return self._convolved(part(self._convolved(x_XH, kernels_X2TH[:, 0])), kernels_X2TH[:, 1])

    def _convolved(self, x_XH: torch.Tensor, kernel_XTH: torch.Tensor) -> torch.Tensor:
        x_NSH = x_XH.view(-1, self._block_size, x_XH.shape[-1])
        kernel_NSTH = kernel_XTH.reshape(*x_NSH.shape[:2], *kernel_XTH.shape[1:])
        found_NSH: torch.Tensor = kernel_NSTH[:, :, 0] * x_NSH
        for tap in range(1, kernel_NSTH.shape[2]):  # nothing is before the first place of a block
            found_NSH[:, tap:] += kernel_NSTH[:, tap:, tap] * x_NSH[:, :-tap]
        return found_NSH.flatten(0, 1)


class CandidateSelector(nn.Module):
    """Scores of the likeliest tokens of a place behind the token before it, by a code of each of the two."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self._num_candidates, rank = config.selector_top_k, config.selector_rank
        self.predecessor_codebook = nn.Parameter(torch.empty(config.vocab_size, rank))
        self.successor_codebook = nn.Parameter(torch.empty(config.vocab_size, rank))
        self.hidden_projection = nn.Linear(config.hidden_size, rank, bias=False)

    def rescored(
        self, logits_ND: torch.Tensor, states_NH: torch.Tensor, before_N: torch.Tensor, ids_D: torch.Tensor | None
    ) -> torch.Tensor:
        """Return logits [N, D] of the likeliest tokens, -inf for all others; `ids_D` are the target's (None: the same).

        `before_N` are the target's ids of the tokens before this place.
        """
        best_NC, own_NC = logits_ND.topk(self._num_candidates, dim=-1)
        wanted_NR = self.predecessor_codebook[before_N] * self.hidden_projection(states_NH)
        codes_NCR = self.successor_codebook[own_NC if ids_D is None else ids_D[own_NC]]
        scores_NC = best_NC + (codes_NCR * wanted_NR[:, None]).sum(-1)
        return torch.full_like(logits_ND, float("-inf")).scatter_(1, own_NC, scores_NC)


class MarkovHead(nn.Module):
    """A bias of logits by the token before. It has a low rank: the token's embedding, and a projection."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        rank, hidden_size = config.markov_rank, config.hidden_size
        self.kind = config.markov_head_type  # of "rnn", a token's bias depends on all earlier tokens of the block
        self.markov_w1 = nn.Embedding(config.vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, config.draft_vocab_size, bias=False)
        if self.kind == "gated":
            self.gate_proj = nn.Linear(hidden_size + rank, rank)
        if self.kind == "rnn":
            self.joint_proj = nn.Linear(2 * rank + hidden_size, 3 * rank)

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


def network_of(config: HeadConfig) -> Eagle3Network | DFlashNetwork:
    """Return a network without memory for its weights."""
    with torch.device("meta"):
        return Eagle3Network(config) if config.kind in READ_PAIRS else DFlashNetwork(config)
