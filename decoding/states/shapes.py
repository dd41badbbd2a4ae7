"""The memory of states, known before any weight is read: each module says what it would keep of a row."""

import inspect

import torch
from transformers import PreTrainedModel

from decoding.states.book import NUM_SHARED_ENTRIES, RECENT_STATES
from decoding.states.layers import CACHE_ARGUMENTS, state_modules
from decoding.states.packed_steps import is_packed
from decoding.states.rows import StateName

_TOKENS = 4  # of the row that is shown to a module


class _Kept:
    """A cache that remembers the sizes of what it is given, and has no state of any row."""

    def __init__(self, lacks_column: bool) -> None:
        self.num_bytes: dict[StateName, int] = {}
        self._lacks_column = lacks_column  # windows of packed steps have no column for the newest token

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        return False

    def is_recording_past(self, layer_idx: int) -> bool:
        return False

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> None:
        return None

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> None:
        return None

    def get_linear_cache(self, layer_idx: int) -> None:
        return None

    def update_conv_state(
        self,
        conv_states: torch.Tensor,
        layer_idx: int,
        state_idx: int = 0,
        conv_kernel_size: int | None = None,
        **_: object,
    ) -> torch.Tensor:
        size = conv_states.shape[-1] if conv_kernel_size is None else conv_kernel_size
        missing = max(0, size - conv_states.shape[-1])
        name = StateName(layer_idx, "conv", state_idx)
        self._keep(name, conv_states[..., :1].expand(*conv_states.shape[:-1], size - self._lacks_column))
        return torch.nn.functional.pad(conv_states, (missing, 0))

    def update_recurrent_state(
        self, recurrent_states: torch.Tensor, layer_idx: int, state_idx: int = 0, **_: object
    ) -> None:
        self._keep(StateName(layer_idx, "recurrent", state_idx), recurrent_states)

    def set_linear_cache(self, layer_idx: int, linear_cache: torch.Tensor) -> None:
        self._keep(StateName(layer_idx, "linear"), linear_cache)

    def _keep(self, name: StateName, state: torch.Tensor) -> None:
        self.num_bytes[name] = state.numel() * state.element_size()


@torch.inference_mode()
def state_bytes(network: PreTrainedModel) -> int:
    """Return the bytes of all states of one slot; the network may be on torch's meta device."""
    num_bytes, size = 0, network.config.get_text_config().hidden_size
    for module in state_modules(network):
        weight, kept = next(module.parameters()), _Kept(is_packed(module))
        hidden, *others = inspect.signature(module.forward).parameters.values()
        needed = [each for each in others if each.default is each.empty and each.kind is not each.VAR_KEYWORD]
        arguments: dict[str, object] = dict.fromkeys(each.name for each in needed)
        arguments.update({each.name: kept for each in others if each.name in CACHE_ARGUMENTS})
        module(**{hidden.name: torch.empty(1, _TOKENS, size, dtype=weight.dtype, device=weight.device)}, **arguments)
        num_bytes += sum(kept.num_bytes.values())
    return num_bytes * (RECENT_STATES + NUM_SHARED_ENTRIES)
