"""Rounds that the host plans, since it looks tokens up or knows grammars, are recorded and draft what the host drafts.

The kernels run in Triton's interpreter, on models of two layers and a few tokens: it is thousands of times slower.
"""

from collections import Counter
from operator import sub

import pytest

from decoding import Engine, Sequence
from decoding.engine.rounds.overlapped.rounds import DeviceRounds
from decoding.fused.recordings import CudaRecorder
from tests.decoding.gpu.interpreted.test_whole_rounds import drafted, engine_of, numbered, of_host
from tests.decoding.gpu.operations import Operations


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
        list(of_host(engine_of("none", 2, 0)).stream(rows))
    return [row.output_token_ids for row in rows]


def predicted(texts: list[list[int]], num_rows: int) -> list[Sequence]:
    """Rows of which a guess of the text is right but for some tokens: a lookup drafts a part of it, and a model all."""
    rows = numbered(num_rows)
    for row, text in zip(rows, texts, strict=False):
        row.prediction = (*text[:5], *[0] * 2, *text[7:])
    return rows


def counted(engine: Engine, rows: list[Sequence], gpu, monkeypatch) -> list[tuple[int, int, int]]:
    """Generate; return the operations, replays and waits of each round of the same rows of which all was replayed."""
    asked, recorded, found = Counter[str](), DeviceRounds._recorded, []

    def count(self, *args):
        asked["recordings"] += 1
        return recorded(self, *args)

    monkeypatch.setattr(DeviceRounds, "_recorded", count)
    engine.lanes[0].ahead.record = CudaRecorder()
    engine.submit(rows)
    while engine.has_work:
        running, before = (
            engine.lanes[0].running,
            (asked["recordings"], gpu.num_replays, gpu.num_waits, gpu.num_captured),
        )
        with Operations() as operations:
            engine.step()
        now = asked["recordings"], gpu.num_replays, gpu.num_waits, gpu.num_captured
        num_asked, num_replays, num_waits, num_captured = map(sub, now, before)
        if running is engine.lanes[0].running and num_asked == num_replays and not num_captured:
            found.append((operations.launches.total(), num_replays, num_waits))
            assert not operations.waits.keys() - {"tolist", "numpy"}, "only verdicts are read, on the host"
    assert not gpu.num_refused
    return found


@pytest.mark.parametrize(
    ("draft", "num_rows", "num_drafted"),
    [("suffix", 2, 1), pytest.param("hybrid", 2, 1, marks=pytest.mark.slow)],
)
def test_a_round_with_what_was_looked_up_starts_few_operations_and_waits_once(
    gpu, monkeypatch, plain, draft, num_rows, num_drafted
):
    """A row with log-probabilities is among them, and one with penalties. They come twice, over the same recordings."""
    expected, found = (predicted(plain, num_rows) + predicted(plain, num_rows) for _ in range(2))
    list(of_host(engine_of(draft, num_rows, num_drafted)).stream(expected))
    rounds = counted(engine_of(draft, num_rows, num_drafted), found, gpu, monkeypatch)
    assert rounds
    assert all(num_operations <= 6 and num_waits == 1 for num_operations, _, num_waits in rounds)
    assert [row.output_token_ids for row in found] == 2 * plain[:num_rows]
    assert drafted(found) == drafted(expected)
    assert [row.logprobs for row in found] == [row.logprobs for row in expected]
    assert sum(row.num_accepted_tokens for row in found) > 3
