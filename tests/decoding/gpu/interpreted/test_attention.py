"""Attention over slots by the GPU kernels, in the interpreter: against a float64 reference, and bit for bit."""

import random

import pytest
import torch

from decoding.gpu import attention
from decoding.gpu.attention import Rule, TokenRows, attend, split_and_store
from tests.pairs_of_values import every_pair

NUM_SLOTS, NUM_POSITIONS = 4, 600


def filled(num_heads: int, head_size: int, dtype: torch.dtype, by_position: bool = True) -> torch.Tensor:
    """Keys or values [S, H, P, D] as they lie on CUDA, or as on CPU."""
    if by_position:
        return torch.randn(NUM_SLOTS, NUM_POSITIONS, num_heads, head_size).to(dtype).transpose(1, 2)
    return torch.randn(NUM_SLOTS, num_heads, NUM_POSITIONS, head_size).to(dtype)


def rows_of(slots: list[int], starts: list[int], lengths: list[int]) -> TokenRows:
    tokens = [(slot, start + i) for slot, start, n in zip(slots, starts, lengths, strict=True) for i in range(n)]
    row_first = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()])
    slots_N, positions_N = (torch.tensor(column) for column in zip(*tokens, strict=True))
    return TokenRows(row_first, slots_N, positions_N, max(lengths), int(positions_N.max()) + 1)


def sees(rule: Rule, position: int, key: int) -> bool:
    if rule.segment and key < position // rule.segment * rule.segment:
        return False
    is_near = not rule.window or key > position - rule.window or key < rule.num_always_visible
    return key <= position and is_near


def reference(query_NQD, keys_SHPD, values_SHPD, rows: TokenRows, rule: Rule, sinks_Q=None) -> torch.Tensor:
    """The definition, one token at a time, in float64."""
    group = query_NQD.shape[1] // keys_SHPD.shape[1]
    out_NQD = torch.zeros(query_NQD.shape, dtype=torch.float64)
    for token, (slot, position) in enumerate(zip(rows.slots_N.tolist(), rows.positions_N.tolist(), strict=True)):
        seen = [key for key in range(position + 1) if sees(rule, position, key)]
        keys, values = (t[slot][:, seen].repeat_interleave(group, 0).double() for t in (keys_SHPD, values_SHPD))
        scores_QL = torch.einsum("qd,qld->ql", query_NQD[token].double(), keys) * rule.scale
        if rule.softcap:
            scores_QL = rule.softcap * torch.tanh(scores_QL / rule.softcap)
        if sinks_Q is not None:
            scores_QL = torch.cat([scores_QL, sinks_Q.double()[:, None]], dim=1)
        weights_QL = scores_QL.softmax(-1)[:, : len(seen)]
        out_NQD[token] = torch.einsum("ql,qld->qd", weights_QL, values)
    return out_NQD


CASES = [  # head size, query heads of a KV head, KV heads, rule
    (64, 4, 2, Rule(0.125)),
    (80, 1, 3, Rule(0.1, window=100)),
    (96, 4, 1, Rule(0.1, segment=128)),
    (128, 8, 1, Rule(0.09, window=90, num_always_visible=4)),
    (256, 2, 2, Rule(0.06, softcap=20.0)),
]


@pytest.mark.parametrize(("case", "dtype", "seed"), every_pair(CASES, [torch.float32, torch.bfloat16], [0, 1]), ids=str)
def test_attention_equals_its_definition_over_ragged_rows(case, dtype, seed):
    """Rows of 1 to 16 queries stand in any slots; an empty row is between them."""
    head_size, group, num_heads, rule = case
    torch.manual_seed(seed)
    chance = random.Random(seed)
    slots = chance.sample(range(NUM_SLOTS), 3)
    lengths = [chance.randint(1, 16), 0, chance.choice([1, 5])]
    starts = [chance.randint(0, NUM_POSITIONS - 17), 0, chance.choice([0, 250, NUM_POSITIONS - 6])]
    rows = rows_of(slots, starts, lengths)
    keys, values = (filled(num_heads, head_size, dtype, by_position=bool(seed)) for _ in range(2))
    query = torch.randn(sum(lengths), group * num_heads, head_size).to(dtype)
    found = attend(query, keys, values, rows, rule)
    torch.testing.assert_close(
        found.double(),
        reference(query, keys, values, rows, rule),
        atol=1e-5 if dtype is torch.float32 else 2e-2,
        rtol=0,
    )


def test_a_sink_takes_its_share_of_the_weights():
    keys, values = filled(1, 64, torch.float32), filled(1, 64, torch.float32)
    rows, rule = rows_of([2, 1], [300, 3], [2, 1]), Rule(0.125)
    query, sinks_Q = torch.randn(3, 4, 64), torch.tensor([0.0, 3.0, -2.0, 8.0])
    found = attend(query, keys, values, rows, rule, sinks_Q=sinks_Q)
    torch.testing.assert_close(found.double(), reference(query, keys, values, rows, rule, sinks_Q), atol=1e-5, rtol=0)


def test_a_mask_takes_the_place_of_the_rule():
    keys, values = filled(2, 64, torch.float32), filled(2, 64, torch.float32)
    rule = Rule(0.125, window=70)
    rows = rows_of([0, 1], [200, 90], [3, 3])
    query = torch.randn(6, 4, 64)
    key_L = torch.arange(rows.num_visible)
    positions_BT = rows.positions_N.view(2, 3, 1)
    mask_BTL = (key_L <= positions_BT) & (key_L > positions_BT - 70)
    last = TokenRows(rows.row_first, rows.slots_N, torch.full_like(rows.slots_N, rows.num_visible - 1), 3, 203)
    found = attend(query, keys, values, last, Rule(0.125), mask_BTL)
    torch.testing.assert_close(found.double(), reference(query, keys, values, rows, rule), atol=1e-5, rtol=0)


@pytest.mark.parametrize("rule", [Rule(0.125), Rule(0.125, window=90, num_always_visible=4)], ids=str)
@pytest.mark.parametrize("group", [1, 8])
def test_a_token_has_the_same_bits_alone_in_a_batch_and_beside_the_tokens_before_it(rule, group):
    torch.manual_seed(2)
    keys, values = filled(2, 64, torch.float32), filled(2, 64, torch.float32)
    rows = rows_of([3, 0, 2], [509, 40, 254], [5, 1, 9])
    query = torch.randn(15, 2 * group, 64)
    together = attend(query, keys, values, rows, rule)
    for token in (0, 4, 5, 6, 8, 14):
        slot, position = int(rows.slots_N[token]), int(rows.positions_N[token])
        alone = attend(query[token : token + 1], keys, values, rows_of([slot], [position], [1]), rule)
        assert torch.equal(alone[0], together[token])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rule", [Rule(0.125), Rule(0.125, window=90, num_always_visible=4)], ids=str)
def test_one_program_for_all_chunks_computes_what_one_for_each_computes(dtype, rule, monkeypatch):
    torch.manual_seed(3)
    keys, values = filled(2, 64, dtype), filled(2, 64, dtype)
    rows, query = rows_of([1, 3], [505, 250], [4, 8]), torch.randn(12, 8, 64).to(dtype)
    in_parts = attend(query, keys, values, rows, rule)
    monkeypatch.setattr(attention, "_ENOUGH_PROGRAMS", 0)
    assert torch.equal(attend(query, keys, values, rows, rule), in_parts)


def test_what_a_row_has_not_written_is_not_read():
    keys, values = filled(1, 64, torch.float32), filled(1, 64, torch.float32)
    rows, query = rows_of([1, 2], [30, 255], [2, 1]), torch.randn(3, 4, 64)
    expected = attend(query, keys, values, rows, Rule(0.125))
    for stored in (keys, values):
        stored[1, :, 32:], stored[2, :, 256:], stored[0], stored[3] = (float("nan"),) * 4
    assert torch.equal(attend(query, keys, values, rows, Rule(0.125)), expected)


@pytest.mark.parametrize("has_norms", [False, True])
def test_heads_are_turned_and_stored_where_they_are_written_and_nowhere_else(has_norms):
    torch.manual_seed(4)
    num_heads, group, size, epsilon = 2, 3, 80, 1e-6
    keys, values = (torch.full((NUM_SLOTS, num_heads, 40, size), 7.0) for _ in range(2))
    rows = rows_of([2, 0], [5, 30], [2, 1])
    written_N = torch.tensor([5, 6, 39])
    qkv_NX = torch.randn(3, (num_heads * group + 2 * num_heads) * size)
    angles_PD = torch.outer(torch.arange(40.0), 1.0 / 100 ** (torch.arange(size // 2) / size)).repeat(1, 2)
    sin_PD = angles_PD.sin()
    signed_PD = torch.cat((-sin_PD[:, : size // 2], sin_PD[:, size // 2 :]), dim=1)
    norms = (torch.rand(size) + 0.5, torch.rand(size) + 0.5) if has_norms else (None, None)
    found = split_and_store(
        qkv_NX, keys, values, rows, written_N, (angles_PD.cos(), signed_PD), (*norms, epsilon) if has_norms else None
    )

    heads_NXD = qkv_NX.view(3, -1, size)
    query, key, value = heads_NXD.split([num_heads * group, num_heads, num_heads], dim=1)
    if has_norms:
        query, key = (
            torch.nn.functional.rms_norm(x, (size,), w, epsilon) for x, w in zip((query, key), norms, strict=True)
        )
    cos, sin = angles_PD.cos()[rows.positions_N][:, None], sin_PD[rows.positions_N][:, None]

    def turned(x: torch.Tensor) -> torch.Tensor:
        return x * cos + torch.cat((-x[..., size // 2 :], x[..., : size // 2]), dim=-1) * sin

    torch.testing.assert_close(found, turned(query), atol=1e-5, rtol=0)
    expected_keys, expected_values = torch.full_like(keys, 7.0), torch.full_like(values, 7.0)
    for token, (slot, position) in enumerate(zip([2, 2, 0], written_N.tolist(), strict=True)):
        expected_keys[slot, :, position], expected_values[slot, :, position] = turned(key)[token], value[token]
    torch.testing.assert_close(keys, expected_keys, atol=1e-5, rtol=0)
    assert torch.equal(values, expected_values)
