"""Example: one text of the target, as tokens, with what decided them."""

from __future__ import annotations

from dataclasses import dataclass

from decoding.sampling_params import SamplingParams


@dataclass(frozen=True)
class Example:
    """A prompt and what the target wrote behind it.

    `noise_key` is that of the row in its run (`decoding.noise.noise_key`), so that the target's pick at each position
    can be computed again; None where it is not known. `params` are those of the run, with `max_tokens` lowered where
    the context ends first, as the engine lowers it.
    """

    prompt_token_ids: tuple[int, ...]
    output_token_ids: tuple[int, ...]  # never empty
    kind: str  # the value of corpus.kind_column, "all" without one
    noise_key: int | None
    params: SamplingParams
