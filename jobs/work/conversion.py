"""The work of `dray convert-draft`: a draft head is written in another format, and what was decided is printed."""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from decoding.checkpoint.supported import read_config
from decoding.heads.format.folder import Head, read_head, read_head_config, save_head
from decoding.heads.format.head_config import READ_PAIRS, Format, HeadConfig
from jobs.names import tell

_LAYER_IDS_ARE: dict[Format, Literal["inputs", "outputs"]] = {"speculators": "inputs", "eagle": "outputs"}
_IN_WORDS = {"inputs": "what enters these layers", "outputs": "what leaves these layers"}
_NORMS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")


def convert(options: argparse.Namespace) -> int:
    """Return 0 if the head is written, 1 if it cannot be written, 2 if it cannot be read or does not fit the target."""
    try:
        config = _for_target(_with_ids(read_head_config(options.source), options), options)
        head = read_head(options.source, config)
    except (ValueError, OSError) as error:
        tell(f"error: {error}")
        return 2
    try:
        save_head(head, options.output, options.format)
        rows = list(_decided(head, options.format))
    except (ValueError, OSError) as error:
        tell(f"error: {error}")
        return 1
    table = Table(title=f"{options.output}, from {options.source}", title_justify="left", show_header=False)
    for name, value in rows:
        table.add_row(name, Text(value))
    Console().print(table)
    return 0


def _with_ids(config: HeadConfig, options: argparse.Namespace) -> HeadConfig:
    """Return the configuration with the layer ids, or what they mean, as the options say."""
    said = options.layer_ids_are
    if options.layer_ids is not None:
        if said is None:
            raise ValueError("--layer-ids is given without --layer-ids-are; say inputs or outputs")
        return replace(config, layer_ids=tuple(options.layer_ids), layer_ids_are=said)
    if said is None:
        return config
    if config.layer_ids is None:
        raise ValueError(f"--layer-ids-are {said} is given, and {options.source!r} names no ids; give --layer-ids, too")
    return replace(config, layer_ids_are=said)


def _for_target(config: HeadConfig, options: argparse.Namespace) -> HeadConfig:
    """Return the configuration of the head for its target; raise a ValueError if it cannot be the target's head."""
    target: str = options.target
    whole = read_config(target)
    text = whole.get_text_config()
    for what, has, expected in (
        ("tokens", config.vocab_size, text.vocab_size),
        ("values in a hidden state", config.target_hidden_size, text.hidden_size),
    ):
        if has != expected:
            raise ValueError(
                f"the head is for a target with {has} {what}, and {target!r} has {expected}; name the head's own target"
            )
    try:
        settled = config.settle_layer_ids(int(text.num_hidden_layers))
        settled.layer_ids_as(_LAYER_IDS_ARE[options.format])
    except ValueError as error:
        raise ValueError(f"the head {error}") from error
    return replace(settled, target_name=target, target_architectures=tuple(whole.architectures or ()))


def _decided(head: Head, form: Format) -> Iterator[tuple[str, str]]:
    """Yield the rows of the table: what the written folder says, and what was assumed."""
    config, layers, tensors = head.config, head.config.layer_config, head.tensors
    convention = _LAYER_IDS_ARE[form]
    ids = config.layer_ids_as(convention) or ()
    yield "kind", f"{config.kind}, drafting {config.num_speculative_tokens} tokens"
    yield "format", f"{config.format} -> {form}"
    yield "target", f"{config.target_name}, {config.num_target_layers} layers"
    window = f", sliding window {config.sliding_window}" if config.sliding_window else ""
    yield "layers", f"{config.num_layers} of {layers['model_type']}, hidden size {config.hidden_size}{window}"
    yield "vocabulary", f"{config.draft_vocab_size:,} of the target's {config.vocab_size:,} tokens"
    yield "layer ids", f"{', '.join(map(str, ids))} ({_IN_WORDS[convention]})"
    if config.kind in READ_PAIRS:
        yield "norms", ", ".join(name for name in _NORMS if getattr(config, name)) or "none of the optional ones"
    else:
        yield "block", f"{config.block_size} tokens, mask token {config.mask_token_id}"
    yield "embedding", "the head's own" if "embed_tokens.weight" in tensors else "the target's"
    yield "output layer", "the head's own" if "lm_head.weight" in tensors else "the target's"
    yield "tensors", f"{len(tensors)} unchanged, {sum(tensor.nbytes for tensor in tensors.values()):,} bytes"
    for line in config.assumed:
        yield "default taken", line
