"""Packed steps: transformers' functions for one token of each row, for the packed tokens of rows in slots.

A model file calls such a function with the states of a batch, where each row has one token. With a `StateHandle` in
their place it computes a whole forward: each token of a row goes on from the state of the one before. The rest of the
model file computes each token by itself and never notices. With any other states the function is transformers' own.

Shapes: N tokens, B rows, E entries, C channels, T columns of a window, G key heads, H heads, K and V sizes of theirs.
"""

import inspect
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.nn import functional
from transformers.activations import ACT2FN

from decoding.cpu import convolution
from decoding.cpu.recurrence import kernel, recur
from decoding.gpu.available import kernels_run_on
from decoding.states.model_file import source_of
from decoding.states.rows import StateHandle


def is_packed(module: torch.nn.Module) -> bool:
    """Tell whether a module can run packed tokens here, by functions of its model file that are known."""
    source = source_of(type(module))
    recurrences = _recurrences(source)
    if f"{_WINDOW}(" not in source or bool(recurrences) != (".update_recurrent_state(" in source):
        return False
    # Where its steps are limited, a model file limits those of many tokens alone, and packed tokens have one formula.
    if tuple(getattr(module, "time_step_limit", _NO_LIMIT)) != _NO_LIMIT:
        return False
    device = next(module.parameters()).device
    has_kernel = kernels_run_on(device) or (device.type in ("cpu", "meta") and kernel() is not None)
    return not recurrences or has_kernel


def install(module: torch.nn.Module) -> bool:
    """Let the model file of a module run packed tokens, if it can; tell whether it does."""
    if not is_packed(module):
        return False
    model_file = sys.modules[type(module).__module__]
    for name in (_WINDOW, *_recurrences(source_of(type(module)))):
        own = getattr(model_file, name)
        if not hasattr(own, "dray_own"):
            setattr(model_file, name, _for_handles(own, *_STEPS[name]))
    return True


def _recurrences(source: str) -> list[str]:
    return [name for name in _STEPS if name != _WINDOW and f"{name}(" in source]


def _for_handles(own: Callable[..., Any], state: str, step: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(own)

    @wraps(own)
    def chosen(*args: Any, **kwargs: Any) -> Any:
        given = [each for each in (*args, kwargs.get(state)) if isinstance(each, StateHandle)]
        if not given:
            return own(*args, **kwargs)
        known = {name: value for name, value in kwargs.items() if name in signature.parameters}
        bound = signature.bind(*args, **known)
        bound.apply_defaults()
        return step(**{name: value for name, value in bound.arguments.items() if name != "kwargs"})

    chosen.dray_own = own  # type: ignore[attr-defined]
    return chosen


def _window(
    hidden_states: torch.Tensor,
    conv_state: StateHandle,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str | None,
) -> torch.Tensor:
    """Return the convolution [N, C, 1] of packed tokens [N, C, 1] with the columns before them."""
    new_NC, states = hidden_states[..., 0], conv_state.states
    packed = states.packed(new_NC.device)
    rows = packed.rows
    size = weight.shape[-1]
    stored_ETC = states.storage(conv_state.name, new_NC.new_empty(1, size - 1, new_NC.shape[1]))
    if new_NC.device.type == "cpu" and activation in (None, "silu") and convolution.kernel(new_NC.dtype) is not None:
        has_silu = activation == "silu"
        return convolution.convolve(rows, stored_ETC, new_NC, weight, bias, has_silu=has_silu)[..., None]
    before_BTC = stored_ETC[rows.read.clamp(min=0)]
    before_BTC[rows.read < 0] = 0
    columns_MC = torch.cat([before_BTC.flatten(0, 1), new_NC])
    places_NT = packed.columns(size)
    out_NC = torch.zeros_like(new_NC, dtype=weight.dtype) if bias is None else bias.expand_as(new_NC)
    for column in range(size):
        out_NC = torch.addcmul(out_NC, columns_MC[places_NT[:, column]].to(weight.dtype), weight[:, column])
    kept_N = (rows.written >= 0).nonzero()[:, 0]
    stored_ETC[rows.written[kept_N]] = columns_MC[places_NT[kept_N, 1:]]
    if activation is not None:
        out_NC = ACT2FN[activation](out_NC)
    return out_NC.to(hidden_states.dtype)[..., None]


def _gated_delta(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    initial_state: StateHandle,
    output_final_state: bool,
    use_qk_l2norm_in_kernel: bool,
) -> tuple[torch.Tensor, StateHandle]:
    """Read [N, 1, H, V] by a gated delta rule from queries and keys [N, 1, G, K] and values [N, 1, H, V].

    The decay `g`, a logarithm, is [N, 1, H], or [N, 1, H, K] of each key.
    """
    query_NGK, key_NGK = (each[:, 0].float() for each in (query, key))
    if use_qk_l2norm_in_kernel:
        query_NGK, key_NGK = (_of_length_one(each) for each in (query_NGK, key_NGK))
    query_NGK = query_NGK * query.shape[-1] ** -0.5
    out_NHV = _recurred(initial_state, query_NGK, key_NGK, value[:, 0], g[:, 0].float().exp(), beta[:, 0])
    return out_NHV[:, None].to(query.dtype), initial_state


def _of_length_one(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def _mamba_2(
    state: StateHandle,
    hidden_states: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor | None,
    dt_bias: torch.Tensor | None,
    dt_softplus: bool,
    z: torch.Tensor | None,
) -> torch.Tensor:
    """Read [N, H, V] by Mamba 2 from `hidden_states` [N, H, V], with B and C [N, G, K]; `z` [N, H, V] gates them.

    The rest is one for a head.
    """
    dt_NH = dt[..., 0] if dt_bias is None else dt[..., 0] + dt_bias[:, 0]
    dt_NH = functional.softplus(dt_NH) if dt_softplus else dt_NH
    decay_NH = torch.exp(dt_NH.float() * A[:, 0, 0].float())
    value_NHV = hidden_states.float() * dt_NH.float()[..., None]
    out_NHV = _recurred(state, C, B, value_NHV, decay_NH, None)
    if D is not None:
        out_NHV = out_NHV + hidden_states.float() * D.float()
    if z is not None:
        out_NHV = out_NHV * functional.silu(z.float())
    return out_NHV.to(hidden_states.dtype)


def _recurred(
    handle: StateHandle, query_NGK: torch.Tensor, key_NGK: torch.Tensor, value_NHV: torch.Tensor, *decay: Any
) -> torch.Tensor:
    num_heads, value_size = value_NHV.shape[1:]
    device = value_NHV.device
    like_1HKV = torch.empty(1, num_heads, key_NGK.shape[-1], value_size, device=device)
    stored_EHKV = handle.states.storage(handle.name, like_1HKV)
    rows = handle.states.packed(device).rows
    return _kernel_on(device)(rows, stored_EHKV, query_NGK, key_NGK, value_NHV, *decay)


def _kernel_on(device: torch.device) -> Callable[..., torch.Tensor]:
    if not kernels_run_on(device):
        return recur
    from decoding.gpu import recurrence  # Triton is only where the kernels run

    return recurrence.recur


_NO_LIMIT = (0.0, float("inf"))
_WINDOW = "causal_conv1d_update"
# By their names in model files: which argument has the states, and what computes packed tokens.
_STEPS: dict[str, tuple[str, Callable[..., Any]]] = {
    _WINDOW: ("conv_state", _window),
    "torch_recurrent_gated_delta_rule": ("initial_state", _gated_delta),
    "recurrent_kimi_delta_attention": ("initial_state", _gated_delta),
    "mamba2_selective_state_update": ("state", _mamba_2),
}
