"""Products of lines with a weight, and norms of lines, by our Triton kernels, in which no line depends on another.

The products of a GPU's library choose another kernel, and so another rounding, for another number of lines: in bfloat16
the text would depend on the batch. `decoding/gpu/kernels/linear.py` adds in an order that the weight alone decides.

Shapes: N lines, I inputs, O outputs, C parts, E numbers of a line.
"""

from dataclasses import dataclass, replace

import torch

from decoding.gpu.available import ROOMY, is_interpreted, shared_memory
from decoding.gpu.kernels import linear as kernels

_OUTPUTS = 64  # of a tile: the rows of one instruction of Hopper's tensor cores
_MANY = 128  # lines of a tile, and its outputs where there are more lines than that
_FEW_LINES = (16, 32, 64, _MANY)  # of a tile
_ENOUGH_PROGRAMS = 256  # about two for each multiprocessor
# Of tiles with more outputs or lines: fewer would leave multiprocessors without one.
_WORTH_MORE_OUTPUTS, _WORTH_MOST_LINES = 80, 1024
_STEP_OF_16_BITS = 64  # inputs of one step of a sum
_LEAST_PART = 512  # inputs: a smaller part costs more to add than it saves
_ADDED_AT_ONCE = 1024  # outputs
_NUMBERS_OF_A_WARP = 512  # of a norm


@dataclass(frozen=True)
class _Tile:
    """The sizes of a program. None of them changes the order in which a line's numbers are added."""

    outputs: int
    lines: int
    num_warps: int
    num_stages: int

    @classmethod
    def of(
        cls, num_lines: int, num_outputs: int, dtype: torch.dtype, num_weights: int = 1, num_parts: int = 1
    ) -> "_Tile":
        """Choose a tile for this many lines; `num_weights` products are computed at once, in this many parts.

        The choices are those that were the fastest on an H100 (`python -m benchmarks.gpu_check.kernels`).
        """
        if dtype.itemsize > 2:  # no tensor cores: a tile's numbers are in registers
            return cls(_OUTPUTS, 32, num_warps=8, num_stages=2)
        if num_lines > _MANY:
            outputs, num_stages = _OUTPUTS if num_weights == 2 else _MANY, 3
            least_programs = {_MANY: _WORTH_MORE_OUTPUTS}  # by the lines of a tile
            if shared_memory() >= ROOMY:  # on an A100, four stages spill registers
                num_stages = 4
                least_programs = {2 * _MANY: _WORTH_MOST_LINES // num_weights**2, **least_programs}
            for lines, least in least_programs.items():
                if -(-num_lines // lines) * -(-num_outputs // outputs) >= least:
                    return cls(outputs, lines, num_warps=8, num_stages=num_stages)._fitting(num_weights)
        lines = next((lines for lines in _FEW_LINES if num_lines <= lines), _MANY)
        num_stages = 5 if lines <= 32 else 4 if num_parts > 1 or num_lines > _MANY else 3
        return cls(_OUTPUTS, lines, num_warps=8 if lines == _MANY else 4, num_stages=num_stages)._fitting(num_weights)

    def _fitting(self, num_weights: int) -> "_Tile":
        """Return this with as many stages as the GPU's memory of a program has room for."""
        most = shared_memory() // self.bytes_of_stage(num_weights)
        return replace(self, num_stages=max(2, min(self.num_stages, most)))

    def bytes_of_stage(self, num_weights: int) -> int:
        """Return the fast memory that a step takes of numbers of 16 bits, with one weight or two at once."""
        return (self.outputs * num_weights + self.lines) * _STEP_OF_16_BITS * 2

    def options(self, dtype: torch.dtype) -> dict[str, int | bool]:
        """Return the sizes as the kernels take them."""
        sizes = {"LINES": self.lines, "OUTPUTS": self.outputs, "INPUTS": _step(dtype), "WIDENED": is_interpreted()}
        return sizes | {"num_warps": self.num_warps, "num_stages": self.num_stages, "enable_fp_fusion": False}


@dataclass(frozen=True)
class LaunchPlan:
    """How a product is divided among programs: by tiles and, if a weight has few outputs, by parts of its inputs."""

    tile: _Tile
    num_tiles: int
    part_size: int  # inputs
    num_parts: int

    @classmethod
    def of(
        cls, num_lines: int, num_outputs: int, num_inputs: int, dtype: torch.dtype, num_weights: int = 1
    ) -> "LaunchPlan":
        """Plan the product of lines with a weight [O, I], or with two at once."""
        part_size = _part_size(num_outputs, num_inputs, dtype) if num_weights == 1 else num_inputs
        num_parts = -(-num_inputs // part_size)
        tile = _Tile.of(num_lines, num_outputs, dtype, num_weights, num_parts)
        return cls(tile, -(-num_lines // tile.lines) * -(-num_outputs // tile.outputs), part_size, num_parts)

    @property
    def is_whole(self) -> bool:
        """Whether a program has all parts of its outputs; else `add_parts` adds them."""
        return self.num_parts == 1 or self.tile.outputs > _OUTPUTS


def multiply(
    x_NI: torch.Tensor,
    weight_OI: torch.Tensor,
    bias_O: torch.Tensor | None,
    added_NO: torch.Tensor | None = None,
    gate: tuple[torch.Tensor, torch.Tensor | None] | None = None,
) -> torch.Tensor:
    """Compute `x W^T + bias + added`, [N, O], rounded once.

    With a gate, a weight G and its bias, it is `silu(x G^T + gate bias) * (x W^T + bias)`; both have a bias, or none.
    """
    (num_lines, num_inputs), num_outputs = x_NI.shape, len(weight_OI)
    if x_NI.stride(-1) != 1:  # the numbers of a line lie end to end
        x_NI = x_NI.contiguous()
    out_NO = x_NI.new_empty(num_lines, num_outputs)
    if not num_lines:
        return out_NO
    plan = LaunchPlan.of(num_lines, num_outputs, num_inputs, x_NI.dtype, 1 if gate is None else 2)
    bias = weight_OI if bias_O is None else bias_O
    gate_OI, gate_bias_O = (weight_OI, None) if gate is None else gate
    added = out_NO if added_NO is None else added_NO.contiguous()
    has = {"HAS_BIAS": bias_O is not None, "HAS_ADDED": added_NO is not None}
    parts, is_whole = out_NO, plan.is_whole
    if not is_whole:
        parts = x_NI.new_empty((plan.num_parts, num_lines, num_outputs), dtype=torch.float32)
    kernels.multiply[plan.num_tiles, 1 if is_whole else plan.num_parts](
        x_NI, weight_OI, gate_OI, bias, bias if gate_bias_O is None else gate_bias_O, added, parts, num_lines,
        num_outputs, num_inputs, x_NI.stride(0), plan.part_size, HAS_PARTS=is_whole and plan.num_parts > 1,
        IS_GATED=gate is not None, **{name: is_whole and value for name, value in has.items()},
        **plan.tile.options(weight_OI.dtype),
    )  # fmt: skip
    return out_NO if is_whole else add_in_order(parts, bias_O, added_NO, out_NO)


def add_in_order(
    parts_CNO: torch.Tensor,
    bias_O: torch.Tensor | None,
    added_NO: torch.Tensor | None,
    out_NO: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute the sum of the parts, from the first to the last, `+ bias + added`, [N, O], rounded once."""
    num_parts, num_lines, num_outputs = parts_CNO.shape
    out_NO = parts_CNO.new_empty(num_lines, num_outputs) if out_NO is None else out_NO
    kernels.add_parts[num_lines, -(-num_outputs // _ADDED_AT_ONCE)](
        parts_CNO, parts_CNO if bias_O is None else bias_O, out_NO if added_NO is None else added_NO.contiguous(),
        out_NO, num_lines, num_outputs, num_parts, OUTPUTS=_ADDED_AT_ONCE, HAS_BIAS=bias_O is not None,
        HAS_ADDED=added_NO is not None, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    return out_NO


def _step(dtype: torch.dtype) -> int:
    """Return the inputs of one step of a sum."""
    return _STEP_OF_16_BITS if dtype.itemsize <= 2 else 32


def _part_size(num_outputs: int, num_inputs: int, dtype: torch.dtype) -> int:
    """Return the inputs of a part: enough parts for few lines to have many programs, and none too small."""
    num_tiles, num_parts = -(-num_outputs // _OUTPUTS), 1
    while num_tiles * num_parts < _ENOUGH_PROGRAMS and num_inputs // (2 * num_parts) >= _LEAST_PART:
        num_parts *= 2
    step = _step(dtype)
    return -(-num_inputs // (num_parts * step)) * step


def rms_norm(x_NE: torch.Tensor, weight_E: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Compute `x / rms(x) * weight` of each line, rounded once; a line's numbers do not depend on the others."""
    x_NE = x_NE.contiguous()
    out_NE = torch.empty_like(x_NE)
    num_lines, size = x_NE.shape
    if num_lines:
        padded_size = 1 << (size - 1).bit_length()
        num_warps = max(1, min(16, padded_size // _NUMBERS_OF_A_WARP))
        kernels.rms_norm[(num_lines,)](
            x_NE, weight_E, out_NE, size, epsilon, PADDED_SIZE=padded_size, num_warps=num_warps, enable_fp_fusion=False
        )
    return out_NE
