"""Delays: what rounds wait for on other hosts is hidden behind those of more lanes, and the text never shows it."""

import logging

import pytest

from decoding.sequence import Sequence
from tests.decoding.tiny import numbered, random_prompts
from tests.worlds.wires import Hosts, engine_over_wires

SPLIT = {"draft_length": "fixed", "num_speculative_tokens": 4, "token_s": 2.8e-4}
WAYS = {"a draft of 4": SPLIT, "2 stages": {"num_stages": 2, "token_s": 4.5e-3}}


def _sequences() -> list[Sequence]:
    return numbered(random_prompts([3] * 144, seed=5), temperature=0.8, max_tokens=16)


def _run(models, monkeypatch, trip_s, token_s, **how):
    """Return tokens a second by the hosts' clock as long as rows wait, all texts, and the number of lanes."""
    hosts, sequences = Hosts(trip_s, token_s), _sequences()
    with monkeypatch.context() as clock:
        clock.setattr("time.perf_counter", lambda: hosts.now)
        engine = engine_over_wires(models, hosts, num_slots=48, **how)
        began = hosts.now
        engine.submit(sequences)
        while engine._waiting:
            engine.step()
        speed = sum(len(sequence.output_token_ids) for sequence in sequences) / (hosts.now - began)
        while engine.has_work:
            engine.step()
    return speed, [sequence.output_token_ids for sequence in sequences], len(engine.lanes)


@pytest.mark.parametrize("way", WAYS)
def test_a_delay_is_hidden_behind_more_lanes_than_without_one(models, monkeypatch, way):
    near, texts, num_near = _run(models, monkeypatch, 0.0, **WAYS[way])
    for trip_s, goal in ((0.01, 0.95), (0.05, 0.85)):
        far, found, num_far = _run(models, monkeypatch, trip_s, **WAYS[way])
        assert found == texts
        assert far > goal * near
    assert num_far > num_near
    assert _run(models, monkeypatch, 0.05, most_lanes=2, **WAYS[way])[0] < 0.8 * near


def test_lanes_are_as_many_as_are_asked_for_whatever_the_delay(models, monkeypatch):
    hosts = Hosts(0.05, token_s=2.8e-4)
    monkeypatch.setattr("time.perf_counter", lambda: hosts.now)
    engine = engine_over_wires(models, hosts, most_lanes=3, num_lanes=3, num_slots=48)
    assert [lane._num_slots for lane in engine.lanes] == [16, 16, 16]


@pytest.mark.parametrize(("num_slots", "trip_s"), [(4, 0.05), (4, 0.001), (96, 0.05)])
def test_an_engine_says_that_its_rows_are_too_few_to_hide_a_delay(models, monkeypatch, caplog, num_slots, trip_s):
    hosts = Hosts(trip_s, token_s=2.8e-4)
    monkeypatch.setattr("time.perf_counter", lambda: hosts.now)
    with caplog.at_level(logging.WARNING):
        engine_over_wires(models, hosts, num_slots=num_slots, draft_length="fixed", num_speculative_tokens=4)
    told = [record.getMessage() for record in caplog.records if "engine.num_slots" in record.getMessage()]
    assert len(told) == (num_slots == 4 and trip_s == 0.05)
