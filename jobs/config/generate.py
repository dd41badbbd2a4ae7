"""GenerateConfig: the configuration of `jobs.generate`, that of a run and what is asked about it before it begins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pydantic

from jobs.config.run import RunConfig


@dataclass(frozen=True, kw_only=True)
class GenerateConfig(RunConfig):
    """Generates a corpus: prompts in, Parquet with acceptance counts out, exactly once, resumable."""

    estimate: Annotated[int, pydantic.Field(ge=10)] | None = None
    """Do about this many rows, spread over the input, with one engine and in a folder that is deleted afterwards; then
    print what the run would take."""
    price_per_hour: Annotated[float, pydantic.Field(ge=0)] | None = None
    """With --estimate: the price of an hour of what one engine holds, in any currency."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.price_per_hour is not None and self.estimate is None:
            raise ValueError("price_per_hour is set, but estimate is not, which alone reads it; set both")
        if self.estimate is not None and self.dry_run:
            raise ValueError("dry_run loads no model, and estimate generates rows; set one of the two")
