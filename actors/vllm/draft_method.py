"""How vLLM calls the kinds of draft heads."""

from typing import Any

from decoding.heads.format.folder import kind_of_head

_METHODS = {"assistant": "mtp", "dflash2": "dflash", "peagle": "eagle3"}  # of kinds that vLLM calls otherwise


def method_of_head(draft: str) -> dict[str, Any]:
    """Return the fields of vLLM's speculative_config that name the kind of the head in a folder."""
    kind = kind_of_head(draft)
    return {"method": _METHODS.get(str(kind), kind)} | ({"parallel_drafting": True} if kind == "peagle" else {})
