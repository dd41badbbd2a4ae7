"""Rounds with a head that begin before the last one is read draft what rounds of the host draft.

The kernels run in Triton's interpreter, on models of two layers and a few tokens: it is thousands of times slower.
"""

from dataclasses import replace

import pytest
import torch

from decoding import Engine, EngineOptions, SamplingParams, Sequence
from decoding.drafters.base import Drafter, NoDrafter
from decoding.drafters.head_drafters import Eagle3Drafter
from decoding.fused.recordings import CudaRecorder
from decoding.heads.eagle3_head import Eagle3Head
from decoding.heads.format.networks import Eagle3Network
from decoding.network.language_model import LanguageModel
from tests.decoding.gpu.operations import Operations
from tests.decoding.heads.tiny_heads import perfect_pair

PROMPTS = [[1, 2, 3, 4] * 2, [5, 6, 5], [9], [1, 2, 3, 4] * 2 + [8], [3, 1]]
PARAMS = SamplingParams(max_tokens=8, temperature=0.8, ignore_eos=True)
LENGTH = 32


@pytest.fixture(autouse=True)
def _products_of_torch(monkeypatch):
    """The stand-in records the library's products, with which a head multiplies, and not those of our CPU kernels."""
    monkeypatch.setenv("DRAY_KERNELS", "off")


def numbered(num_rows: int = len(PROMPTS)) -> list[Sequence]:
    rows = [Sequence.create(prompt, PARAMS, run_seed=1, row=row) for row, prompt in enumerate(PROMPTS[:num_rows])]
    for row in rows:
        row.rounds = []
    return rows


def engine_of(num_slots: int, num_drafted: int, *, has_head: bool = True) -> Engine:
    """An engine over a target, and a head that knows it but for some noise; it reads the features of each token."""
    network, saved = perfect_pair(reads_features=True)
    target = LanguageModel(network.bfloat16(), frozenset())
    target.exact, target.close_call = "on", 0.0
    target.speed_up()
    generator, own = torch.Generator().manual_seed(4), Eagle3Network(saved.config)
    for name, weight in own.named_parameters():
        weight.data.copy_(saved.tensors[name] + 0.1 * torch.randn(weight.shape, generator=generator) * weight.std())
    drafter: Drafter = NoDrafter()
    if has_head:
        drafter = Eagle3Drafter(Eagle3Head(own.bfloat16(), None, saved.config.layer_ids), num_slots, LENGTH)
    options = EngineOptions(num_slots=num_slots, num_speculative_tokens=num_drafted, max_model_len=LENGTH)
    return Engine([(target, drafter)], options, LENGTH)


def drafted(rows: list[Sequence]) -> list[object]:
    """What these rows drafted in each round; a row of one token has no pair, and its first guesses are any."""
    return [row.rounds for row in rows if len(row.prompt_token_ids) > 1]


def of_host(engine: Engine) -> Engine:
    """The same engine, in which the host starts each round."""
    (lane,) = engine.lanes
    lane.rounds._starters = [lane.host]
    return engine


@pytest.mark.parametrize(
    ("num_rows", "num_drafted"), [pytest.param(2, 1, id="few"), pytest.param(3, 2, id="more", marks=pytest.mark.slow)]
)
def test_recorded_rounds_draft_what_the_host_drafts_with_few_operations_and_one_wait(gpu, num_rows, num_drafted):
    engine, expected, found = engine_of(num_rows, num_drafted), numbered(num_rows), numbered(num_rows)
    list(of_host(engine_of(num_rows, num_drafted)).stream(expected))
    engine.lanes[0].ahead.record = CudaRecorder()
    engine.submit(found)
    counted = []
    while engine.has_work:
        num_waits, num_replays = gpu.num_waits, gpu.num_replays
        with Operations() as operations:
            engine.step()
        if gpu.num_replays == num_replays + 2:
            counted.append((operations.launches.total(), gpu.num_waits - num_waits))
            assert not operations.waits.keys() - {"tolist"}, "only verdicts are read, on the host"
    assert len(counted) >= 2
    assert all(num_operations <= 6 and num_waits == 1 for num_operations, num_waits in counted)
    assert [row.output_token_ids for row in found] == [row.output_token_ids for row in expected]
    assert drafted(found) == drafted(expected)
    assert sum(row.num_accepted_tokens for row in found) >= 4
    assert not gpu.num_refused


@pytest.mark.slow
def test_rows_that_come_go_and_change_slots_draft_with_their_own_features():
    """Rows share a prefix, lose their slots with a round under way, and run beside a row that the host must start."""
    engine, rows, plain = engine_of(3, 2), numbered(), numbered()
    list(engine_of(3, 2, has_head=False).stream(plain))
    other = Sequence.create([4, 4], replace(PARAMS, max_tokens=2, logit_bias={3: 1.0}), run_seed=1, row=len(rows))
    engine.submit([*rows[:3], other, *rows[3:]])
    for number in range(60):
        if number in (2, 5):
            engine.evict(engine.in_flight[:1])
        engine.step()
        if not engine.has_work:
            break
    assert [row.output_token_ids for row in rows] == [row.output_token_ids for row in plain]
    expected = numbered()
    list(of_host(engine_of(3, 2)).stream(expected))
    assert drafted(rows) == drafted(expected)
    assert not other.error
