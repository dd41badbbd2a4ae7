"""Rounds that the host plans, since it looks tokens up or knows grammars, are recorded and draft what the host drafts.

The kernels run in Triton's interpreter, on models of two layers and a few tokens: it is thousands of times slower.
"""

from collections import Counter
from operator import sub

import pytest
import torch

from decoding import Engine, SamplingParams, Sequence
from decoding.drafters.model import ModelDrafter
from decoding.engine.rounds.overlapped.rounds import DeviceRounds
from decoding.engine.rounds.overlapped.rounds_ahead import start_of
from decoding.engine.rounds.overlapped.steps import ModelSteps, RowsNow
from decoding.fused.recordings import CudaRecorder
from decoding.grammar.matcher import Matcher
from decoding.grammar.structured import Structured
from decoding.pace.adaptive_schedule import AdaptiveSchedule
from decoding.pace.cost_table import CostTable
from tests.decoding.gpu.interpreted.test_whole_rounds import (
    LENGTH,
    PLAIN,
    PROMPTS,
    drafted,
    engine_of,
    numbered,
    of_host,
    on_kernels,
)
from tests.decoding.gpu.operations import Operations
from tests.decoding.grammar.tiny_grammars import SHORT, grammars
from tests.decoding.tiny import build, llama_config

GRAMMARS = [
    {"structured": Structured(json_schema=SHORT), "top_p": 0.9},
    {},
    {"structured": Structured(regex="[a-d]{6,9}"), "top_k": 5, "presence_penalty": 0.4},
    {"structured": Structured(regex="[a-d]{3,6}-[0-9]{2}"), "presence_penalty": 0.9},
]


@pytest.fixture(autouse=True)
def _products_of_torch(monkeypatch):
    """The stand-in records the library's products, with which a head multiplies, and not those of our CPU kernels."""
    monkeypatch.setenv("DRAY_KERNELS", "off")
    monkeypatch.setattr(DeviceRounds, "prepare", lambda *_: None)  # of rounds without what is asked for here


@pytest.fixture(scope="module")
def plain() -> list[list[int]]:
    """Each text, one token a round."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DRAY_KERNELS", "off")
        rows = numbered(2)
        list(of_host(engine_of("none", 2, 0, seed=1)).stream(rows))
    return [row.output_token_ids for row in rows]


def predicted(texts: list[list[int]], num_rows: int) -> list[Sequence]:
    """Rows of which a guess of the text is right but for some tokens: a lookup drafts a part of it, and a model all."""
    rows = numbered(num_rows)
    for row, text in zip(rows, texts, strict=False):
        row.prediction = (*text[:5], *[0] * 2, *text[7:])
    return rows


def counted(engine: Engine, rows: list[Sequence], gpu, monkeypatch) -> list[tuple[int, int, int]]:
    """Generate; return the operations, waits, and waits of an idle device of each replayed round of the same rows."""
    asked, recorded, found = Counter[str](), DeviceRounds._recorded, []

    def count(self, *args):
        asked["recordings"] += 1
        return recorded(self, *args)

    def now() -> tuple[int, ...]:
        return asked["recordings"], gpu.num_replays, gpu.num_captured, gpu.num_waits, gpu.num_idle_waits

    monkeypatch.setattr(DeviceRounds, "_recorded", count)
    engine.lanes[0].ahead.record = CudaRecorder()
    engine.submit(rows)
    while engine.has_work:
        running, before = engine.lanes[0].running, now()
        with Operations() as operations:
            engine.step()
        num_asked, num_replays, num_captured, num_waits, num_idle = map(sub, now(), before)
        if running is engine.lanes[0].running and num_asked == num_replays and not num_captured:
            # Of each copy that is waited for the stand-in makes three operations.
            found.append((operations.launches.total() - 2 * num_waits, num_waits, num_idle))
            assert not operations.waits.keys() - {"tolist", "numpy"}, "only verdicts are read, on the host"
    assert not gpu.num_refused
    return found


@pytest.mark.parametrize(
    ("draft", "num_rows", "num_drafted"),
    [("suffix", 2, 1), pytest.param("hybrid", 2, 2, marks=pytest.mark.slow)],
)
def test_a_round_with_what_was_looked_up_starts_few_operations_and_waits_once(
    gpu, monkeypatch, plain, draft, num_rows, num_drafted
):
    """A row with log-probabilities is among them, and one with penalties. They come twice, over the same recordings."""
    expected, found = (predicted(plain, num_rows) + predicted(plain, num_rows) for _ in range(2))
    list(of_host(engine_of(draft, num_rows, num_drafted, seed=1)).stream(expected))
    rounds = counted(engine_of(draft, num_rows, num_drafted, seed=1), found, gpu, monkeypatch)
    assert rounds
    assert all(num_operations <= 4 and num_waits == 1 for num_operations, num_waits, _ in rounds)
    assert [row.output_token_ids for row in found] == 2 * plain[:num_rows]
    assert drafted(found) == drafted(expected)
    assert [row.logprobs for row in found] == [row.logprobs for row in expected]
    assert sum(row.num_accepted_tokens for row in found) > 3


def structured(num_rows: int, **fields: object) -> list[Sequence]:
    """Rows with grammars and cuts, one without a grammar, and one without a cut, whose picks are checked when made."""
    rows = []
    for row, own in enumerate(GRAMMARS[:num_rows]):
        params = SamplingParams(**{**PLAIN, "ignore_eos": False, **own, **fields})
        rows.append(Sequence.create(PROMPTS[row], params, run_seed=1, row=row))
    return rows


@pytest.mark.parametrize(
    ("draft", "num_rows", "num_drafted", "fields"),
    [
        ("blocks", 2, 3, {"max_tokens": 8}),  # a head of two
        pytest.param("masks", 2, 2, {}, marks=pytest.mark.slow),
        pytest.param("model", 3, 1, {"logprobs": 1}, marks=pytest.mark.slow),
        pytest.param("none", 2, 0, {}, marks=pytest.mark.slow),
    ],
)
def test_a_round_with_masks_of_grammars_starts_few_operations_and_leaves_the_device_idle_in_one_wait(
    gpu, monkeypatch, draft, num_rows, num_drafted, fields
):
    """The tokens of a draft are awaited while the target reads. Rows without a grammar and with penalties are there."""
    expected, found = structured(num_rows, **fields), structured(num_rows, **fields)
    list(of_host(engine_of(draft, num_rows, num_drafted, grammars())).stream(expected))
    rounds = counted(engine_of(draft, num_rows, num_drafted, grammars()), found, gpu, monkeypatch)
    assert len(rounds) >= 2
    assert all(num_operations <= 6 and num_idle == 1 for num_operations, _, num_idle in rounds)
    assert any(num_waits == 1 + (num_drafted > 0) for _, num_waits, _ in rounds)
    assert [row.output_token_ids for row in found] == [row.output_token_ids for row in expected]
    assert [row.logprobs for row in found] == [row.logprobs for row in expected]


@pytest.mark.slow
@pytest.mark.parametrize("draft", ["head", "masks", "blocks", "hybrid"])
def test_picks_that_a_grammar_forbids_are_made_again_and_the_draft_goes_on_behind_them(gpu, monkeypatch, draft):
    """A head reads the features of the tokens before, and another token than the device has."""
    strays, note_stray = [], Matcher.note_stray
    monkeypatch.setattr(Matcher, "note_stray", lambda self, place: strays.append(place) or note_stray(self, place))
    expected, found = structured(4, logprobs=1), structured(4, logprobs=1)
    list(of_host(engine_of("none", 4, 0, grammars())).stream(expected))
    strays.clear()
    counted(engine_of(draft, 4, 2, grammars()), found, gpu, monkeypatch)
    assert strays
    assert [row.output_token_ids for row in found] == [row.output_token_ids for row in expected]
    assert [row.logprobs for row in found] == [row.logprobs for row in expected]
    assert sum(row.num_accepted_tokens for row in found)


@torch.inference_mode()
def test_a_draft_model_reads_what_it_lacks_of_a_row_in_its_first_step():
    """Tokens that the draft knows are read again."""
    draft, found = on_kernels(build(llama_config(), seed=3)), []
    row = Sequence.create([3, 1, 4, 1, 5, 9, 2, 6], SamplingParams())
    for num_known in (7, 5, 3):
        drafter = ModelDrafter(draft, draft.vocab_size, 1, LENGTH)
        steps = ModelSteps(drafter)
        drafter.prefill([0], [row.token_ids[:num_known]])
        (is_level,), num_newest = steps.level([row], [1])
        start = start_of(row, num_newest)
        newest_BW = torch.tensor([[*start.before, start.previous, start.newest]])
        rows = RowsNow(torch.tensor([start.length]), newest_BW, torch.tensor([True]))
        found.append(steps.first(rows, LENGTH, 1)[0])
        assert (is_level, newest_BW.shape[1] >= len(row) - num_known) == (True, True)
    assert all(torch.equal(logits_B1V, found[0]) for logits_B1V in found)


@pytest.mark.parametrize("fields", [pytest.param({}, marks=pytest.mark.slow), {**GRAMMARS[2], "ignore_eos": False}])
def test_a_prediction_that_is_longer_than_other_drafts_is_judged_at_once_with_a_grammar_or_without(fields):
    """With a grammar there is no room for its logits where others wait for masks."""
    params = SamplingParams(**{**PLAIN, "max_tokens": 6, **fields})
    expected, found = (Sequence.create(PROMPTS[2], params, row=0) for _ in range(2))
    list(of_host(engine_of("none", 1, 0, grammars(), seed=1)).stream([expected]))
    found.prediction = tuple(expected.output_token_ids)
    engine = engine_of("suffix", 1, 1, grammars(), seed=1)
    engine.lanes[0].schedule = AdaptiveSchedule(CostTable(target=((1, 1.0), (1000, 1.0)), draft=((1, 0.05),)), 1)
    list(engine.stream([found]))
    assert found.output_token_ids == expected.output_token_ids
    assert len(found.output_token_ids) >= 3 * found.num_rounds
