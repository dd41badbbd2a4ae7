"""The memory of states, known before any weight is read: each module says what it would keep of a row."""

import inspect
from typing import TYPE_CHECKING

import torch

from decoding.states.book import NUM_SHARED_ENTRIES, num_recent_states
from decoding.states.calls import StateCalls
from decoding.states.layers import CACHE_ARGUMENTS, state_modules
from decoding.states.packed_steps import is_packed
from decoding.states.rows import StateName

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_TOKENS = 4  # of the row that is shown to a module


class _Sizes:
    """In place of `RowStates`: rows have no tokens before, and what they would keep is measured."""

    has_previous = False

    def __init__(self, *, lacks_column: bool) -> None:
        self.num_bytes: dict[StateName, int] = {}
        self._lacks_column = lacks_column  # windows of packed steps have no column for the newest token

    def get(self, name: StateName) -> None:
        return None

    def put(self, name: StateName, state: torch.Tensor) -> None:
        self.num_bytes[name] = state.numel() * state.element_size()

    def extend_window(self, name: StateName, new_BCT: torch.Tensor, size: int | None) -> torch.Tensor:
        size = new_BCT.shape[-1] if size is None else size
        self.put(name, new_BCT[..., :1].expand(*new_BCT.shape[:-1], size - self._lacks_column))
        return torch.nn.functional.pad(new_BCT, (max(0, size - new_BCT.shape[-1]), 0))


class _Shown(StateCalls):
    """A cache to which a module says what it would keep of a row."""

    def __init__(self, sizes: _Sizes) -> None:
        self.states = sizes  # type: ignore[assignment]


@torch.inference_mode()
def state_bytes(network: "PreTrainedModel", num_draft_tokens: int) -> int:
    """Return the bytes of all states of one slot, whose row drafts up to `num_draft_tokens` in a round.

    The network may be on torch's meta device.
    """
    config = network.config.get_text_config()
    size = config.hidden_size
    num_bytes = 0
    for module in state_modules(network):
        try:
            num_bytes += _bytes_of(module, size)
        except RuntimeError:
            if not hasattr(config, "hc_count"):
                raise
            # It reads all of the residual streams, side by side.
            num_bytes += _bytes_of(module, size * config.hc_count)
    return num_bytes * (num_recent_states(num_draft_tokens) + NUM_SHARED_ENTRIES)


def _bytes_of(module: torch.nn.Module, size: int) -> int:
    """Return the bytes of one state of a module whose input has that size."""
    weight, sizes = next(module.parameters()), _Sizes(lacks_column=is_packed(module))
    hidden, *others = inspect.signature(module.forward).parameters.values()
    needed = [each for each in others if each.default is each.empty and each.kind is not each.VAR_KEYWORD]
    arguments: dict[str, object] = dict.fromkeys(each.name for each in needed)
    arguments.update({each.name: _Shown(sizes) for each in others if each.name in CACHE_ARGUMENTS})
    if "input_ids" in arguments:
        arguments["input_ids"] = torch.zeros(1, _TOKENS, dtype=torch.int64, device=weight.device)
    module(**{hidden.name: torch.empty(1, _TOKENS, size, dtype=weight.dtype, device=weight.device)}, **arguments)
    return sum(sizes.num_bytes.values())
