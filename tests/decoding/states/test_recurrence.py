"""The recurrence of packed rows is that of each row alone, bit for bit however it is cut."""

import pytest
import torch

from decoding.cpu.recurrence import kernel
from decoding.gpu.available import is_interpreted
from decoding.states.rows import StateRows

if is_interpreted():
    from decoding.gpu.recurrence import recur
else:
    from decoding.cpu.recurrence import recur

pytestmark = pytest.mark.skipif(kernel() is None and not is_interpreted(), reason="there is no C++ compiler here")
HEADS, KEY_HEADS = 4, 2


def _inputs(num_tokens: int, key_size: int, value_size: int, *, of_keys: bool, is_delta: bool) -> tuple:
    generator = torch.Generator().manual_seed(num_tokens)
    query, key = (torch.randn(num_tokens, KEY_HEADS, key_size, generator=generator) / key_size**0.5 for _ in "qk")
    value = torch.randn(num_tokens, HEADS, value_size, generator=generator)
    decay = torch.rand(num_tokens, HEADS, *[key_size] * of_keys, generator=generator)
    beta = torch.rand(num_tokens, HEADS, generator=generator) if is_delta else None
    return query, key, value, decay, beta


def _by_torch(state, query, key, value, decay, beta):
    """One row, one token after the other; `state` [H, K, V] is changed in place."""
    found = []
    for n in range(len(value)):
        q, k = (each[n].repeat_interleave(HEADS // KEY_HEADS, dim=0) for each in (query, key))
        state *= decay[n][..., None] if decay.dim() == 3 else decay[n][:, None, None]
        change = value[n]
        if beta is not None:
            change = (change - (state * k[..., None]).sum(1)) * beta[n][:, None]
        state += k[..., None] * change[:, None]
        found.append((state * q[..., None]).sum(1))
    return torch.stack(found)


@pytest.mark.parametrize("of_keys", [False, True])
@pytest.mark.parametrize("is_delta", [False, True])
@pytest.mark.parametrize(("key_size", "value_size"), [(8, 8), (16, 24), (64, 80), (128, 128)])
def test_packed_rows_read_what_each_reads_alone_and_leave_its_states(key_size, value_size, is_delta, of_keys):
    lengths = [3, 1, 5]
    inputs = _inputs(sum(lengths), key_size, value_size, of_keys=of_keys, is_delta=is_delta)
    before = torch.randn(12, HEADS, key_size, value_size, generator=torch.Generator().manual_seed(1))
    states = before.clone()
    written = torch.tensor([2, -1, 3, 0, -1, -1, 4, -1, 7])
    rows = StateRows(torch.tensor([0, 3, 4, 9]), torch.tensor([5, -1, 7]), written)
    found = recur(rows, states, *inputs)
    kept = before.clone()
    for row, (first, read) in enumerate(zip([0, 3, 4], [5, None, 7], strict=True)):
        own = [None if each is None else each[first : first + lengths[row]] for each in inputs]
        state = torch.zeros(HEADS, key_size, value_size) if read is None else before[read].clone()
        for n in range(lengths[row]):
            alone = _by_torch(state, *(None if each is None else each[n : n + 1] for each in own))
            torch.testing.assert_close(found[first + n], alone[0], rtol=1e-4, atol=1e-5)
            if written[first + n] >= 0:
                kept[written[first + n]] = state
    torch.testing.assert_close(states, kept, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("of_keys", [False, True])
@pytest.mark.parametrize("is_delta", [False, True])
@pytest.mark.parametrize("cut", [1, 2, 5, 7])
def test_a_row_that_is_cut_reads_the_same_bits(cut, is_delta, of_keys):
    inputs = _inputs(8, 16, 24, of_keys=of_keys, is_delta=is_delta)
    states = torch.zeros(2, HEADS, 16, 24)
    nothing, last = torch.tensor([-1]), torch.tensor([-1] * 7 + [0])
    whole = recur(StateRows(torch.tensor([0, 8]), nothing, last), states, *inputs)
    pieces = []
    for first, end, read in ((0, cut, -1), (cut, 8, 1)):
        written = torch.tensor([-1] * (end - first - 1) + [1])
        rows = StateRows(torch.tensor([0, end - first]), torch.tensor([read]), written)
        pieces.append(recur(rows, states, *(None if each is None else each[first:end] for each in inputs)))
    assert torch.equal(torch.cat(pieces), whole)
    assert torch.equal(states[0], states[1])
