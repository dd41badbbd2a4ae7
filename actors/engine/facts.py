"""Facts about a loaded engine: for the log, and for the footer of each part that it makes."""

from __future__ import annotations

from typing import Any

import torch

from decoding.engine.engine import Engine
from decoding.pace.cost_table import CostTable


def footer_facts(engine: Engine) -> dict[str, str | bool | int]:
    """Return what a part records about the engine that made it: engines of one run may be on different machines.

    `is_batch_invariant`: a token's logits were the same, bit for bit, whatever ran beside it (docs/adr/0011).
    """
    target = engine.target
    return {
        "device": target.runs_on,
        "dtype": _name(target.dtype),
        "is_batch_invariant": target.is_batch_invariant,
        "placement": "split" if engine.has_remote_drafts else "colocated",
        "stages": target.facts().get("stages", 1),
        "ranks": target.facts().get("ranks", 1),
    }


def load_facts(engine: Engine, draft: str | None) -> dict[str, Any]:
    """Return what the log says about an engine: models, device, which code runs, slots, and the measured costs."""
    target = engine.target
    return {
        **footer_facts(engine),
        "drafter": engine.options.pick_drafter(draft),
        **target.facts(),
        "slots": engine.options.num_slots,
        "max_model_len": engine.max_model_len,
        **_cost_facts(engine.lanes[0].schedule.costs),
    }


def _cost_facts(costs: CostTable | None) -> dict[str, Any]:
    """Return milliseconds of a target forward by tokens and of a draft step by rows; nothing where none was timed."""
    if costs is None:
        return {}
    return {
        "target_ms": {str(tokens): round(1e3 * seconds, 3) for tokens, seconds in costs.target},
        "draft_ms": {str(rows): round(1e3 * seconds, 3) for rows, seconds in costs.draft},
        "round_ms": round(1e3 * costs.round_seconds, 3),
    }


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
