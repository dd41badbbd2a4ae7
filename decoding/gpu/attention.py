"""SlotAttention: attention over slots by our Triton kernels (`decoding/gpu/kernels/attention.py`).

Rows may have different numbers of tokens and stand in any slots. Nothing is gathered, padded to a rectangle or masked
by a tensor (unless a model has a mask of its own), and each row's keys and values are read once for all of its tokens.

A token's numbers are the same, bit for bit, in any batch, slot and split of its row: the sizes of a tile are those of
the model, never of the batch. `decoding/network/invariance.py` measures it when a model is loaded.

Shapes: N tokens, B rows, T tokens of the longest, Q query heads, H KV heads, G = Q / H, D head size, S slots, P
positions of a slot or page, L visible positions, C chunks or pages of a row, X any number of features.
"""

from dataclasses import dataclass

import torch

from decoding.gpu.available import HALF_AS_ROOMY, ROOMY, is_interpreted, shared_memory
from decoding.gpu.kernels import attention as kernels
from decoding.gpu.kernels.heads import split_heads
from decoding.gpu.linear import Sums

CHUNK = 256  # positions; a chunk's part is computed by itself, and parts are added in order
_ENOUGH_PROGRAMS = 256  # about two for each multiprocessor: fewer are divided into one for each chunk
_MOST_PART_BYTES = 1 << 28
_LINES_OF_A_MERGE = 8
_HEADS_AT_ONCE = 8


@dataclass(frozen=True)
class TokenRows:
    """The tokens of one forward: which row each is of, and where it stands."""

    row_first: torch.Tensor  # int64 [B + 1]: row b has the tokens from row_first[b] up to row_first[b + 1]
    slots_N: torch.Tensor  # int64
    positions_N: torch.Tensor  # int64
    width: int  # T, or more
    num_visible: int  # L, or more: no query sees a position behind it
    pages_SC: torch.Tensor | None = None  # int32: the pages of each slot, in order; None: keys lie in the slots

    def __post_init__(self) -> None:
        """Refuse tensors whose numbers do not lie end to end: the kernels have only addresses."""
        assert all(tensor.is_contiguous() for tensor in (self.row_first, self.slots_N, self.positions_N))

    @property
    def num_rows(self) -> int:
        return len(self.row_first) - 1

    def paging(self, keys_SHPD: torch.Tensor) -> tuple[torch.Tensor, int, int]:
        """Return the table of pages, the step from one slot's line to the next, and the positions of a page, or 0."""
        if self.pages_SC is None:
            return self.row_first, 0, 0
        return self.pages_SC, self.pages_SC.stride(0), keys_SHPD.shape[2]


@dataclass(frozen=True)
class Rule:
    """Which earlier positions a query sees, and what is done to its scores."""

    scale: float
    window: int = 0  # positions of a sliding window; 0: no window
    num_always_visible: int = 0  # first positions of a row that are seen from beyond the window, too
    segment: int = 0  # positions of a segment, beyond whose beginning nothing is seen ("chunked" attention); 0: none
    softcap: float = 0.0  # scores become softcap * tanh(score / softcap); 0: they stay


@dataclass(frozen=True)
class _Tile:
    """The sizes of a program, which depend on the model and the kind of GPU alone."""

    padded_size: int
    lines: int
    keys: int
    num_warps: int
    num_stages: int

    @classmethod
    def of(cls, group: int, head_size: int, dtype: torch.dtype) -> "_Tile":
        padded_size = max(16, 1 << (head_size - 1).bit_length())
        # Few enough lines for a round's tokens not to leave most of them empty; more where many heads share a KV head,
        # and one instruction of the tensor cores multiplies 64 lines.
        memory, is_16_bit = shared_memory(), dtype.itemsize <= 2
        lines = 64 if group > 4 and (memory >= ROOMY or not is_16_bit) else 32
        numbers_at_once = 8192 if is_16_bit else 2048
        keys = max(16, min(64, numbers_at_once // padded_size, 2048 // lines))
        # Fewer warps are faster (benchmarks/results) where their registers hold all numbers of a tile. Two programs
        # share a multiprocessor then, and one multiplies while the other one waits for keys.
        num_warps = 4 if padded_size <= 128 and is_16_bit else 8
        num_stages = 3 if padded_size <= 128 and memory >= HALF_AS_ROOMY else 2
        return cls(padded_size, lines, keys, num_warps, num_stages)


def attend(
    query_NQD: torch.Tensor,
    keys_SHPD: torch.Tensor,
    values_SHPD: torch.Tensor,
    rows: TokenRows,
    rule: Rule,
    mask_BTL: torch.Tensor | None = None,
    sinks_Q: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the attention's output [N, Q, D] for queries whose keys and values are stored already.

    `keys_SHPD` and `values_SHPD` may lie in memory in any order whose last dimension is contiguous; with a table of
    pages, S are pages. `mask_BTL` (bool) replaces the rule of causal, sliding and segmented attention; `sinks_Q` are
    logits of a sink for each query head. Lines of padding (tokens of no row) are undefined.
    """
    num_tokens, num_query_heads, head_size = query_NQD.shape
    num_kv_heads = keys_SHPD.shape[1]
    group = num_query_heads // num_kv_heads
    tile = _Tile.of(group, head_size, query_NQD.dtype)
    out_NQD = torch.empty_like(query_NQD)
    num_tiles = -(-rows.width * group // tile.lines)
    num_chunks = -(-rows.num_visible // CHUNK)
    grid: tuple[int, ...] = (rows.num_rows * num_tiles, num_kv_heads)
    strides = keys_SHPD.stride(0), keys_SHPD.stride(2), keys_SHPD.stride(1)
    assert values_SHPD.stride() == keys_SHPD.stride(), "keys and values lie alike"
    assert keys_SHPD.stride(3) == 1, "the numbers of a key lie end to end"
    mask = rows.row_first if mask_BTL is None else mask_BTL.view(torch.uint8)
    mask_strides = (0, 0) if mask_BTL is None else mask_BTL.stride()[:2]
    places = (rows.row_first, rows.slots_N, rows.positions_N, mask)
    table, table_stride, page = rows.paging(keys_SHPD)
    assert page % CHUNK == 0, "a page is whole chunks"
    reach = (rule.window, rule.num_always_visible, rule.segment)
    numbers = (*strides, table_stride, *mask_strides, num_tiles, *reach, rule.scale, rule.softcap)
    sinks = rows.row_first if sinks_Q is None else sinks_Q
    sizes = {"HEAD_SIZE": head_size, "PADDED_SIZE": tile.padded_size, "CHUNK": CHUNK, "HAS_MASK": mask_BTL is not None}
    tiling = {"GROUP": group, "LINES": tile.lines, "KEYS": tile.keys, "WIDENED": is_interpreted()}
    tiling |= {"HAS_SOFTCAP": rule.softcap > 0, "num_warps": tile.num_warps, "num_stages": tile.num_stages}
    num_part_bytes = 4 * num_tokens * num_query_heads * num_chunks * head_size
    is_whole = num_chunks == 1 or grid[0] * grid[1] >= _ENOUGH_PROGRAMS or num_part_bytes > _MOST_PART_BYTES
    found, marks_NQC2 = out_NQD, out_NQD
    if not is_whole:
        grid = (*grid, num_chunks)
        found, marks_NQC2 = (
            query_NQD.new_empty((num_tokens, num_query_heads, num_chunks, size), dtype=torch.float32)
            for size in (head_size, 2)
        )
    kernels.attend[grid](
        query_NQD, found, marks_NQC2, keys_SHPD, values_SHPD, *places, sinks, table, rows.num_visible,
        num_kv_heads, num_chunks, *numbers, **sizes, **tiling, PAGE=page, IS_PART=not is_whole,
        HAS_SINKS=is_whole and sinks_Q is not None, enable_fp_fusion=False,
    )  # fmt: skip
    if not is_whole:
        kernels.merge[num_tokens, -(-num_query_heads // _LINES_OF_A_MERGE)](
            found, marks_NQC2, out_NQD, rows.positions_N, sinks, rows.num_visible, num_query_heads, num_chunks,
            *reach, **sizes, LINES=_LINES_OF_A_MERGE, HAS_SINKS=sinks_Q is not None, num_warps=4,
            enable_fp_fusion=False,
        )  # fmt: skip
    return out_NQD


def split_and_store(
    qkv_NX: torch.Tensor | Sums,
    keys_SHPD: torch.Tensor,
    values_SHPD: torch.Tensor,
    rows: TokenRows,
    written_N: torch.Tensor,
    tables_PD: tuple[torch.Tensor, torch.Tensor],
    norms: tuple[torch.Tensor, torch.Tensor, float] | None = None,
) -> torch.Tensor:
    """Return the rotated queries [N, Q, D]; rotated keys, and values, are stored at the written positions.

    Of a product whose parts are not added yet they are added first.
    The rotary tables are cos, and sin with the sign of the rotation: out = x * cos + swapped(x) * sin. `norms` are the
    weights [D] of the normalization that some models apply to each query and key, and their epsilon.
    """
    num_kv_heads, head_size = keys_SHPD.shape[1], keys_SHPD.shape[3]
    if isinstance(qkv_NX, Sums):
        product, bias_X, num_parts = qkv_NX.parts_CNO, qkv_NX.bias_O, len(qkv_NX.parts_CNO)
    else:
        product, bias_X, num_parts = qkv_NX, None, 0
    num_tokens = product.shape[-2]
    num_query_heads = product.shape[-1] // head_size - 2 * num_kv_heads
    query_NQD = qkv_NX.new_empty(num_tokens, num_query_heads, head_size)
    query_norm_D, key_norm_D, epsilon = norms or (*tables_PD, 0.0)
    table, table_stride, page = rows.paging(keys_SHPD)
    split_heads[num_tokens, -(-(num_query_heads + 2 * num_kv_heads) // _HEADS_AT_ONCE)](
        product, product if bias_X is None else bias_X, query_NQD, keys_SHPD, values_SHPD, *tables_PD, query_norm_D,
        key_norm_D, rows.slots_N, rows.positions_N, written_N, table, num_tokens, num_parts, num_query_heads,
        num_kv_heads, len(tables_PD[0]), keys_SHPD.stride(0), keys_SHPD.stride(2), keys_SHPD.stride(1), table_stride,
        epsilon,
        HEAD_SIZE=head_size, PADDED_SIZE=max(16, 1 << (head_size - 1).bit_length()), HEADS=_HEADS_AT_ONCE,
        PAGE=page, HAS_NORMS=norms is not None, HAS_PARTS=num_parts > 0, HAS_BIAS=bias_X is not None, num_warps=4,
        enable_fp_fusion=False,
    )  # fmt: skip
    return query_NQD
