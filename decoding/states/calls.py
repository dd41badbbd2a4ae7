"""StateCalls: what transformers' model files ask of a cache about states, answered from those of rows in slots."""

import torch

from decoding.states.rows import RowStates, StateHandle, StateName

State = torch.Tensor | StateHandle | None


class StateCalls:
    """The part of a cache that has states, or none."""

    states: RowStates | None

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        return self._states.has_previous

    def is_recording_past(self, layer_idx: int) -> bool:
        return False

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> State:
        return self._states.get(StateName(layer_idx, "conv", state_idx))

    def update_conv_state(
        self,
        conv_states: torch.Tensor,
        layer_idx: int,
        state_idx: int = 0,
        conv_kernel_size: int | None = None,
        **_: object,
    ) -> torch.Tensor:
        return self._states.extend_window(StateName(layer_idx, "conv", state_idx), conv_states, conv_kernel_size)

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> State:
        return self._states.get(StateName(layer_idx, "recurrent", state_idx))

    def update_recurrent_state(
        self, recurrent_states: torch.Tensor | StateHandle, layer_idx: int, state_idx: int = 0, **_: object
    ) -> torch.Tensor | StateHandle:
        self._states.put(StateName(layer_idx, "recurrent", state_idx), recurrent_states)
        return recurrent_states

    def get_linear_cache(self, layer_idx: int) -> State:
        """Return the state of MiniMax's linear attention."""
        return self._states.get(StateName(layer_idx, "linear"))

    def set_linear_cache(self, layer_idx: int, linear_cache: torch.Tensor) -> None:
        self._states.put(StateName(layer_idx, "linear"), linear_cache)

    @property
    def _states(self) -> RowStates:
        assert self.states is not None, "the network keeps states, so its cache must"
        return self.states
