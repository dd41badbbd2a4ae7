"""A new EAGLE-3 head for a target: its shape, the tokens that it knows, and the weights that it begins with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from transformers import AutoTokenizer

from decoding.checkpoint.supported import read_config
from decoding.heads.format.fields import normalized
from decoding.heads.format.head_config import HeadConfig, default_layer_inputs
from decoding.heads.format.tensors import offsets
from decoding.heads.networks import Eagle3Network
from training.learners.teacher import Teacher


def new_head(
    teacher: Teacher, known_ids: Sequence[int] | None, steps_ahead: int, seed: int
) -> tuple[Eagle3Network, dict[str, torch.Tensor]]:
    """Return a head of one layer in the target's own sizes, and the tensors of its folder that are no weights.

    `known_ids` are the target's ids of its tokens, ascending; None: all. Its embedding is the target's and stays as it
    is; its output layer begins with the target's rows.
    """
    config = head_config(teacher, len(known_ids) if known_ids is not None else teacher.vocab_size, steps_ahead)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = Eagle3Network(config)
    ids_D = None if known_ids is None else torch.tensor(known_ids, dtype=torch.int64)
    embedding, output = teacher.network.get_input_embeddings(), teacher.network.get_output_embeddings()
    with torch.no_grad():
        network.embed_tokens.weight.copy_(embedding.weight)
        rows = output.weight if ids_D is None else output.weight[ids_D.to(output.weight.device)]
        network.lm_head.weight.copy_(rows)
    network.embed_tokens.requires_grad_(False)
    return network.to(teacher.device), {} if ids_D is None else {"d2t": offsets(ids_D)}


def head_config(teacher: Teacher, num_known: int, steps_ahead: int) -> HeadConfig:
    """Return the configuration of a head that reads low, middle and high layers, with the norms of EAGLE 3.1."""
    whole = teacher.network.config
    text = whole.get_text_config()
    said = read_config(teacher.path).get_text_config().dtype  # what was loaded may be in another type
    num_layers, num_heads = int(text.num_hidden_layers), int(text.num_attention_heads)
    hidden_size = int(text.hidden_size)
    layer = {
        "model_type": "llama",
        "vocab_size": teacher.vocab_size,
        "hidden_size": hidden_size,
        "intermediate_size": int(getattr(text, "intermediate_size", None) or 4 * hidden_size),
        "num_hidden_layers": 1,
        "num_attention_heads": num_heads,
        "num_key_value_heads": int(getattr(text, "num_key_value_heads", None) or num_heads),
        "head_dim": int(getattr(text, "head_dim", None) or hidden_size // num_heads),
        "rms_norm_eps": float(getattr(text, "rms_norm_eps", None) or 1e-6),
        "max_position_embeddings": int(getattr(text, "max_position_embeddings", None) or 2048),
        "dtype": str(said or torch.float32).removeprefix("torch."),
    }
    return HeadConfig(
        kind="eagle3",
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
        norm_before_residual=True,
        norm_before_fc=True,
        norm_output=True,
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
