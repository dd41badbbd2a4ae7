"""The kernels pick what the definition picks, and nothing else in the batch changes a bit of a position's numbers."""

import random
from dataclasses import replace

import pytest
import torch

from decoding import SamplingParams
from decoding.gpu import picks
from decoding.gpu.pick_table import PickTable
from decoding.gpu.picks import PickInputs, pick
from decoding.noise import noise_key
from decoding.picked import Picks
from decoding.sampling.picks import pick_plain
from decoding.sampling.rows import Rows
from decoding.sequence import Sequence
from tests.decoding.sampling.cases import LOGITS, PARAMS, Case
from tests.decoding.tiny import rows_over

NUMBERS = ("best_BJ", "second_BJ", "score_BJ")
TOLERANCE = {"rtol": 2e-6, "atol": 2e-6}  # noise is a logarithm, whose last bits are the library's
SIZES = [1, 7, 64, 65, 200, 1000, 2049, 5003]  # no multiples of a block, of a tile or of a chunk; more than one of each
EXTRAS: list[dict[str, object]] = [
    {"repetition_penalty": 1.3},
    {"presence_penalty": 0.7, "frequency_penalty": -0.4},
    {"logit_bias": {3: 5.0, 0: -100.0, 17: 2.5}},
    {"logit_bias": {5: 1.0}, "repetition_penalty": 0.5, "frequency_penalty": 1.9},
    {"min_tokens": 6, "stop_token_ids": (1, 2, 8)},
    {"min_tokens": 50, "stop_token_ids": (4,), "ignore_eos": True},
    {"allowed_token_ids": tuple(range(1, 70, 2))},
    {"bad_words": [(7,), *((a, b) for a in range(12) for b in range(a % 2, 70, 3))]},
]


def _kernels(case: Case) -> Picks:
    """The picks at the positions of a `Case`."""
    keys = [noise_key(3, case.first_row + row, 0) for row in range(len(case.params))]
    nothing = [frozenset()] * len(keys)
    table = PickTable.build(case.params, keys, nothing, [1] * len(keys), torch.device("cpu"))
    vocab_size, lengths_B = case.logits_BJV.shape[-1], torch.full((len(keys),), 5)
    nothing_BK = torch.zeros(len(keys), 0, dtype=torch.int64)
    return pick(case.logits_BJV, PickInputs(table, table.biases_of(vocab_size), lengths_B, nothing_BK, None), 0)


def _assert_same(found: object, expected: object) -> None:
    assert torch.equal(found.token_ids_BJ, expected.token_ids_BJ)
    assert torch.equal(found.is_finite_BJ, expected.is_finite_BJ)
    for name in NUMBERS:
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), **TOLERANCE)


def _assert_equal_bits(found: object, expected: object, rows: object = slice(None)) -> None:
    for name in ("token_ids_BJ", "is_finite_BJ", *NUMBERS):
        assert torch.equal(getattr(found, name), getattr(expected, name)[rows]), name


@pytest.mark.parametrize("params", PARAMS)
def test_picks_are_those_of_the_definition(params):
    rows = [SamplingParams(**fields) for fields in PARAMS[params]]
    for number, logits in enumerate(LOGITS):
        vocab_size = SIZES[(number + len(params)) % len(SIZES)]
        generator = torch.Generator().manual_seed(number)
        case = Case(LOGITS[logits](len(rows), vocab_size, generator)[:, :1], rows, first_row=10 * number)
        _assert_same(_kernels(case), pick_plain(case.logits_BJV, case.sampling, case.noise))


def _mixture(seed: int) -> tuple[Rows, torch.Tensor, torch.Tensor]:
    """Rows of any kinds with any text so far, their logits, and their drafted tokens."""
    chance = random.Random(seed)
    sequences = []
    for row in range(6):
        fields = dict(chance.choice(chance.choice(list(PARAMS.values()))))
        for extra in chance.sample(EXTRAS, chance.randint(0, 2)):
            fields |= extra
        prompt = [chance.randrange(9) for _ in range(chance.randint(1, 4))]
        sequences.append(Sequence.create(prompt, SamplingParams(**fields), run_seed=seed, row=row))
        sequences[-1].output_token_ids += [chance.randrange(12) for _ in range(chance.randint(0, 7))]
    num_drafted, vocab_size = chance.randint(0, 3), chance.choice([70, 1000, 2049])
    generator = torch.Generator().manual_seed(seed)
    dtype = chance.choice([torch.float32, torch.bfloat16, torch.float16])
    spread = chance.choice([0.0, 0.5, 3.0, 12.0])
    logits_BJV = (spread * torch.randn(6, num_drafted + 1, vocab_size + 3, generator=generator)).to(dtype)
    drafted_BK = torch.randint(12, (6, num_drafted), generator=generator)
    return rows_over(sequences, (num_drafted,) * 6), logits_BJV[..., :vocab_size], drafted_BK


def by_torch(rows: Rows) -> Rows:
    return replace(rows, sampling=replace(rows.sampling, table=None))


@pytest.mark.parametrize("seed", range(4))
def test_picks_of_random_mixtures_are_torchs(seed):
    """With penalties, biases and stops, too, and at several positions behind drafted tokens."""
    rows, logits_BJV, drafted_BK = _mixture(seed)
    _assert_same(rows.pick(logits_BJV, drafted_BK, 0), by_torch(rows).pick(logits_BJV, drafted_BK, 0))


@pytest.mark.parametrize("logits", ["spread", "ties"])
@pytest.mark.parametrize("params", ["greedy", "top_k", "top_p", "all cuts", "mixed"])
def test_picks_that_go_through_a_vocabulary_part_by_part_are_those_of_the_definition(params, logits, monkeypatch):
    """Usual sizes need several parts from 65,536 tokens on, which takes too long here."""
    for name, size in (("_PART", 4), ("_GROUP", 2), ("_CHUNK", 4)):
        monkeypatch.setattr(picks, name, size)
    rows = [SamplingParams(**fields) for fields in PARAMS[params]]
    logits_BJV = LOGITS[logits](len(rows), 1000, torch.Generator().manual_seed(5))[:, :1]
    case = Case(logits_BJV, rows)
    _assert_same(_kernels(case), pick_plain(case.logits_BJV, case.sampling, case.noise))


@pytest.mark.parametrize("seed", range(10, 12))
def test_a_position_alone_gets_the_bits_it_gets_in_any_batch(seed):
    rows, logits_BJV, drafted_BK = _mixture(seed)
    together = rows.pick(logits_BJV, drafted_BK, 0)
    for order in ([3, 0, 5, 1, 4, 2], [4], [2, 1]):
        found = rows.take(order).pick(logits_BJV[order], drafted_BK[order], 0)
        _assert_equal_bits(found, together, order)
    last = logits_BJV.shape[1] - 1
    copied_B1V = logits_BJV[:, last:].contiguous()  # elsewhere in memory, aligned in another way
    _assert_equal_bits(rows.pick(copied_B1V, drafted_BK, last), together, (slice(None), slice(last, None)))


def test_rows_that_are_not_finite_are_reported_and_leave_their_neighbours_alone():
    rows = [SamplingParams(**fields) for fields in PARAMS["mixed"]]
    logits = LOGITS["spread"](len(rows), 300, torch.Generator().manual_seed(2))[:, :1]
    clean = _kernels(Case(logits, rows))
    assert clean.is_finite_BJ.all()
    for poison in (float("nan"), float("inf"), -float("inf")):
        for row in range(0, len(rows), 2):
            dirty = logits.clone()
            dirty[row, :, 7 if poison > 0 or poison != poison else slice(None)] = poison
            found = _kernels(Case(dirty, rows))
            assert not found.is_finite_BJ[row].any()
            assert 0 <= int(found.token_ids_BJ[row]) < 300
            others = [other for other in range(len(rows)) if other != row]
            _assert_equal_bits(Picks(*(field[others] for field in found[:5])), clean, others)


def test_cuts_among_equal_scores_count_from_the_highest_id_and_picks_from_the_lowest():
    """300 equal tokens: top-p 0.1 keeps the 30 highest ids, top-k keeps all; without noise the lowest id wins."""
    equal = torch.zeros(1, 1, 300, dtype=torch.bfloat16)
    for row in range(20):
        assert _kernels(Case(equal, [SamplingParams(top_p=0.1)], first_row=row)).token_ids_BJ.item() >= 270
    everyone = [
        _kernels(Case(equal, [SamplingParams(top_k=2)], first_row=row)).token_ids_BJ.item() for row in range(20)
    ]
    assert min(everyone) < 150 < max(everyone)
    assert _kernels(Case(equal, [SamplingParams(temperature=0)])).token_ids_BJ.item() == 0


def test_a_close_call_at_a_cut_is_left_to_torch_which_knows_borders(monkeypatch):
    launched = []
    monkeypatch.setattr("decoding.sampling.rows.pick_on_gpu", lambda *args: launched.append(args) or pick(*args))
    for fields, margin, by_kernels in (({}, 1e-4, 1), ({"top_p": 0.9}, 1e-4, 0), ({"top_p": 0.9}, 0.0, 1)):
        rows = rows_over([Sequence.create([1, 2], SamplingParams(**fields))], (0,))
        logits = torch.randn(1, 1, 200, generator=torch.Generator().manual_seed(0))
        found = rows.pick(logits, torch.zeros(1, 0, dtype=torch.int64), 0, margin)
        _assert_same(found, by_torch(rows).pick(logits, torch.zeros(1, 0, dtype=torch.int64), 0, margin))
        assert len(launched) == by_kernels
        launched.clear()


def test_tensors_that_the_kernels_would_read_in_other_places_are_refused():
    rows, logits_BJV, drafted_BK = _mixture(3)
    assert logits_BJV.shape[1] > 1, "with one position the tensors below would lie as they must"
    inputs = rows._gpu_inputs(rows.sampling.table, logits_BJV.shape[2], drafted_BK)
    assert any(inputs.table.uses_counts)
    columns_BC = inputs.table.columns_BC.T.contiguous().T
    for change in (
        {"drafted_BK": torch.zeros(2, 6, dtype=torch.int64).T},
        {"drafted_BK": drafted_BK[:5]},
        {"lengths_B": torch.zeros(6, 2, dtype=torch.int64)[:, 0]},
        {"table": replace(inputs.table, columns_BC=columns_BC)},
        {"counted": None},
    ):
        with pytest.raises(AssertionError):
            replace(inputs, **change)
    for logits in (logits_BJV[:5], logits_BJV.transpose(1, 2).contiguous().transpose(1, 2)):
        with pytest.raises(AssertionError):
            pick(logits, inputs, 0)
