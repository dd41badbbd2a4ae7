"""InvariantLinear: a linear layer on a GPU whose lines do not depend on each other, bit for bit.

Shapes: N lines, I inputs, O outputs.
"""

import torch


class InvariantLinear(torch.nn.Module):
    """`nn.Linear` for inference, over the same weight; the operation that follows is done before the one rounding."""

    def __init__(self, weight_OI: torch.Tensor, bias_O: torch.Tensor | None) -> None:
        """Share the weight and the bias."""
        super().__init__()
        from decoding.gpu import linear  # Triton is only where the kernels run

        self.weight = torch.nn.Parameter(weight_OI.detach(), requires_grad=False)
        self.bias = None if bias_O is None else torch.nn.Parameter(bias_O.detach(), requires_grad=False)
        self.out_features, self.in_features = weight_OI.shape
        self._products = linear

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute `x W^T + b`, [..., O]."""
        out_NO = self._products.multiply(x.reshape(-1, self.in_features), self.weight, self.bias)
        return out_NO.view(*x.shape[:-1], self.out_features)

    def plus(self, x_NI: torch.Tensor, other_NO: torch.Tensor) -> torch.Tensor:
        """Compute `(x W^T + b) + other`, rounded once."""
        return self._products.multiply(x_NI, self.weight, self.bias, other_NO)

    def gated(self, x_NI: torch.Tensor, gate: "InvariantLinear") -> torch.Tensor:
        """Compute `silu(gate(x)) * (x W^T + b)`, rounded once."""
        return self._products.multiply_gated(x_NI, gate.weight, self.weight, gate.bias, self.bias)
