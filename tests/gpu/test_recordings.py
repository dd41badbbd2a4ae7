"""Recordings: more shapes than are kept, fewer slots, captures that fail, and two threads that record at once."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from decoding.device import is_out_of_memory
from decoding.fused.recordings import CudaRecorder
from tests.decoding import tiny
from tests.decoding.recorded_run import RecordedRun
from tests.decoding.tiny import outputs, run
from tests.gpu import rows
from tests.gpu.engines import Case, Models, engine_over, load_models

pytestmark = pytest.mark.gpu
needs_a_gpu = pytest.mark.usefixtures("_needs_a_gpu")


def test_text_is_the_same_when_fewer_shapes_are_kept_than_occur(make_engine, plain, monkeypatch):
    monkeypatch.setattr("decoding.fused.recordings._MOST_RECORDED", 2)
    tiny.schedule_at_random(monkeypatch, seed=1)  # so that rounds have many shapes
    engine = make_engine("hybrid", num_slots=5, num_speculative_tokens=4)
    assert outputs(run(engine, rows.sequences())) == plain
    assert 1 <= len(engine.target.graphs.recordings._shapes) <= 2


@pytest.mark.parametrize("drafter", ["model", "suffix"])
def test_text_is_the_same_when_slots_are_taken_away_and_given_back(make_engine, plain, drafter):
    engine, sequences = make_engine(drafter, num_slots=4, num_speculative_tokens=3), rows.sequences()
    engine.submit(sequences)
    for num_slots in (2, 5):
        for _ in range(4):
            engine.step()
        engine.resize(num_slots)
    while engine.has_work:
        engine.step()
    assert outputs(sequences) == plain


@pytest.mark.parametrize("drafter", ["model", "suffix"])
def test_text_is_the_same_where_nothing_can_be_recorded(make_engine, plain, drafter, monkeypatch):
    """A driver that refuses to record makes the engine slower, never wrong."""

    def refuse(run: object) -> RecordedRun:
        raise RuntimeError("operation not permitted when stream is capturing")

    engine = make_engine(drafter, num_slots=3, num_speculative_tokens=2)
    monkeypatch.setattr(engine.target.graphs.recordings, "record", refuse)
    if engine.lanes[0].ahead is not None:
        monkeypatch.setattr(engine.lanes[0].ahead, "record", refuse)
    assert outputs(run(engine, rows.sequences())) == plain


@needs_a_gpu
@pytest.mark.parametrize("how", ["it reads a value", "it takes all memory"])
def test_after_a_capture_that_fails_memory_can_be_had_and_other_captures_work(how):
    record, one = CudaRecorder(), torch.ones(8, device="cuda")
    stream, free_before = torch.cuda.current_stream(), torch.cuda.mem_get_info()[0]

    def fails() -> torch.Tensor:
        kept = one + 1
        if how == "it reads a value":
            return kept * kept.sum().item()
        return torch.empty(2 * free_before, dtype=torch.uint8, device="cuda")

    with pytest.raises(RuntimeError) as failure:
        record(fails)
    assert is_out_of_memory(failure.value) == (how == "it takes all memory")
    assert torch.cuda.current_stream() == stream
    assert not torch.cuda.is_current_stream_capturing()
    assert torch.full((1024,), 3.0, device="cuda").sum().item() == 3072
    recording = record(lambda: one * 5)
    recording.replay()
    assert recording.output.tolist() == [5.0] * 8
    one.fill_(2)
    recording.replay()
    assert recording.output.tolist() == [10.0] * 8


@needs_a_gpu
def test_two_threads_may_record_at_once(device, tmp_path_factory):
    """Two actors' engines in one process do so; in the interpreter all threads would share one program counter."""
    pairs = [load_models(Case("llama", "bfloat16", "on"), device, tmp_path_factory.mktemp("pair")) for _ in range(2)]
    expected = outputs(run(engine_over(pairs[0], num_slots=1), rows.sequences()))
    both_ready = threading.Barrier(2, timeout=60)

    def write(models: Models) -> list[list[int]]:
        engine = engine_over(models, "model", num_slots=5, num_speculative_tokens=3)
        both_ready.wait()
        return outputs(run(engine, rows.sequences()))

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(write, pairs)) == [expected, expected]
