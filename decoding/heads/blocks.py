"""A DFlash or DFlash 2 head as it is trained: blocks behind many positions of whole documents at once, with gradients.

A block behind pair p has token p + 1 as its newest, at that position, and masks behind it. It sees the features of the
positions before, and all of itself. A row is one document; what follows from padding on its right has no meaning.

Shapes: B rows, T tokens, A blocks, S places of a block, X blocks that predict, N places of all blocks, H hidden size, D
vocabulary of the head (or size of an attention head), Q query heads, G KV heads, F any number of features.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from decoding.heads.format.networks import DFlashNetwork
from decoding.heads.unrolled import heads_of


def blocks_ahead(
    network: DFlashNetwork, tokens_BT: torch.Tensor, features_BTF: torch.Tensor, every: int, ids_D: torch.Tensor | None
) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield the logits [B, X, D] of each place that predicts: the output layer's, and behind them a selector's.

    Blocks begin behind pairs 0, `every`, 2 * `every` and so on. At step k those are for token p + 2 + k, given the
    token before it; X counts the pairs for which the row has the latter. A selector scores all tokens here, in drafting
    the likeliest. `ids_D` are the target's ids of the head's tokens (None: the same).
    """
    config, selector = network.config, network.candidate_selector
    first = 0 if config.sample_from_anchor else 1
    assert config.block_size is not None
    states_BASH = _filled_in(network, tokens_BT, features_BTF, every)
    for step in range(config.block_size - first):
        before_BX = tokens_BT[:, 1 + step :: every]
        if not before_BX.numel():
            return
        states_BXH = states_BASH[:, : before_BX.shape[1], first + step]
        logits_BXD = network.finished(network.lm_head(states_BXH))
        if selector is None:
            yield (logits_BXD,)
            continue
        codes_DR = selector.successor_codebook if ids_D is None else selector.successor_codebook[ids_D]
        wanted_BXR = selector.predecessor_codebook[before_BX] * selector.hidden_projection(states_BXH)
        yield logits_BXD, logits_BXD + wanted_BXR @ codes_DR.T


def _filled_in(network: DFlashNetwork, tokens_BT: torch.Tensor, features_BTF: torch.Tensor, every: int) -> torch.Tensor:
    """Return the normed states [B, A, S, H] of all blocks."""
    config, device = network.config, tokens_BT.device
    assert config.block_size is not None
    assert config.mask_token_id is not None
    (num_rows, num_tokens), size = tokens_BT.shape, config.block_size
    newest_A = torch.arange(1, num_tokens, every, device=device)
    ids_BAS = tokens_BT.new_full((num_rows, len(newest_A), size), config.mask_token_id)
    ids_BAS[:, :, 0] = tokens_BT[:, newest_A]
    context_BTH = network.project(features_BTF)
    hidden_NH = network.embed_tokens(ids_BAS.flatten()) * config.input_embedding_scale
    positions_T = torch.arange(num_tokens, device=device)
    places_1N = (newest_A[:, None] + torch.arange(size, device=device)).flatten()[None]
    turns = [network.rotary_emb(context_BTH, each) for each in (positions_T[None], places_1N)]
    is_before_A1T = positions_T < newest_A[:, None, None]
    for each in network.layers:
        layer: Any = each
        attended = _attention(layer.self_attn, context_BTH, turns, is_before_A1T, size)
        hidden_NH = hidden_NH + _around(layer, "attention_conv", layer.input_layernorm(hidden_NH), attended)
        hidden_NH = hidden_NH + _around(layer, "mlp_conv", layer.post_attention_layernorm(hidden_NH), layer.mlp)
    states_BASH: torch.Tensor = network.norm(hidden_NH).view(*ids_BAS.shape, -1)
    return states_BASH


def _around(layer: Any, name: str, x_NH: torch.Tensor, part: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Return what a part of a layer computes, within its convolutions if it has any."""
    found_NH: torch.Tensor = getattr(layer, name)(x_NH, part) if hasattr(layer, name) else part(x_NH)
    return found_NH


def _attention(
    module: Any, context_BTH: torch.Tensor, turns: list[Any], is_before_A1T: torch.Tensor, size: int
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the attention of blocks' places [N, H] over the context before each block, and over the block."""
    num_rows = len(context_BTH)

    def turned(which: str, x_BLH: torch.Tensor, turn: Any) -> torch.Tensor:
        found_BGLD = heads_of(module, which, x_BLH)
        turned_BGLD: torch.Tensor = apply_rotary_pos_emb(found_BGLD, found_BGLD, *turn)[0]
        return turned_BGLD

    def of_blocks(x_BQLD: torch.Tensor) -> torch.Tensor:
        return x_BQLD.reshape(*x_BQLD.shape[:2], -1, size, module.head_dim)

    def attended(x_NH: torch.Tensor) -> torch.Tensor:
        x_BLH = x_NH.view(num_rows, -1, x_NH.shape[-1])
        query_BQASD = of_blocks(turned("q", x_BLH, turns[1]))
        found = []
        for fed_BLH, turn in ((context_BTH, turns[0]), (x_BLH, turns[1])):
            pair = turned("k", fed_BLH, turn), heads_of(module, "v", fed_BLH)
            found.append([each.repeat_interleave(query_BQASD.shape[1] // each.shape[1], 1) for each in pair])
        (keys_BQTD, values_BQTD), inside = found
        keys_BQASD, values_BQASD = map(of_blocks, inside)
        scores_BQAST = torch.einsum("bqasd,bqtd->bqast", query_BQASD, keys_BQTD)
        scores_BQAST = scores_BQAST.masked_fill(~is_before_A1T, float("-inf"))
        scores = torch.cat((scores_BQAST, query_BQASD @ keys_BQASD.mT), dim=-1) * module.head_dim**-0.5
        before, own = scores.softmax(-1).split((keys_BQTD.shape[2], size), dim=-1)
        out_BQASD = torch.einsum("bqast,bqtd->bqasd", before, values_BQTD) + own @ values_BQASD
        out_NH: torch.Tensor = module.o_proj(out_BQASD.permute(0, 2, 3, 1, 4).flatten(3).flatten(0, 2))
        return out_NH

    return attended
