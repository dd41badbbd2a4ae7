"""A transformers model class whose linear layers have FP8 weights, through the same load path.

transformers' own quantizers dequantize where there is no GPU, and need further packages where there is one. So they are
not asked: while the network is built, before any weight is read, its linear layers are replaced by ours, whose tensors
have the names and the dtypes of the checkpoint.
"""

from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel

from decoding.checkpoint.fp8_format import Fp8Format
from decoding.fp8.arithmetic import Arithmetic
from decoding.fp8.linear import Fp8Linear


def fp8_class(whole: type[PreTrainedModel], form: Fp8Format, arithmetic: Arithmetic) -> type[PreTrainedModel]:
    """Return a model class with FP8 layers where the format says so; `from_pretrained` works as usual."""

    def __init__(self: Any, config: PretrainedConfig, *args: Any, **kwargs: Any) -> None:
        whole.__init__(self, config, *args, **kwargs)
        _replace_linears(self, form, arithmetic)

    return type(whole.__name__, (whole,), {"__init__": __init__, "__module__": whole.__module__})


def _replace_linears(network: PreTrainedModel, form: Fp8Format, arithmetic: Arithmetic) -> None:
    head = network.get_output_embeddings()
    found = [
        (name, module)
        for name, module in network.named_modules()
        if type(module) is torch.nn.Linear and module is not head and form.has(name)
    ]
    for name, linear in found:
        has_bias = linear.bias is not None
        layer = Fp8Linear(linear.in_features, linear.out_features, has_bias, form.scaling, arithmetic)
        network.set_submodule(name, layer)
