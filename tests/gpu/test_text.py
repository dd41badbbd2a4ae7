"""The text is the target's own, whatever drafts, in whichever slot, recorded or not."""

from dataclasses import replace

import pytest

from decoding.network.language_model import LanguageModel
from decoding.network.probe import check_model
from tests.decoding.tiny import check_counts, generated, outputs, run
from tests.gpu import rows
from tests.gpu.engines import Models, engine_over
from tests.gpu.rows import HAS_GPU

pytestmark = pytest.mark.gpu

# drafter, slots, most draft tokens, whether forwards and rounds are recorded
_ON_A_GPU = [
    *(("none", 5, 1, True), ("none", 16, 1, True), ("none", 5, 1, False)),
    *(("model", 1, 4, True), ("model", 5, 1, True), ("model", 16, 2, True), ("model", 5, 3, False)),
    *(("model", 16, 4, True), ("model", 5, 5, True), ("model", 16, 6, False), ("model", 1, 7, True)),
    *(("model", 16, 8, True), ("hybrid", 5, 4, True), ("hybrid", 16, 8, True), ("hybrid", 1, 2, False)),
    *(("suffix", 5, 4, True), ("suffix", 16, 8, True), ("suffix", 1, 1, False)),
]
_INTERPRETED = [
    *(("none", 3, 1, True), ("model", 1, 2, True), ("model", 4, 3, False)),
    *(("hybrid", 3, 2, True), ("suffix", 2, 3, True)),
]


@pytest.mark.parametrize(
    ("drafter", "num_slots", "num_speculative_tokens", "is_recorded"), _ON_A_GPU if HAS_GPU else _INTERPRETED
)
def test_text_depends_on_no_drafter_slot_draft_length_or_recording(
    make_engine, plain, drafter, num_slots, num_speculative_tokens, is_recorded
):
    engine = make_engine(
        drafter, is_recorded=is_recorded, num_slots=num_slots, num_speculative_tokens=num_speculative_tokens
    )
    sequences = run(engine, rows.sequences())
    assert outputs(sequences) == plain
    for sequence in sequences:
        check_counts(sequence)


@pytest.mark.parametrize("drafter", ["model", "hybrid", "suffix"])
def test_rejection_ends_every_row_with_counts_that_add_up(make_engine, drafter):
    engine = make_engine(drafter, num_slots=5, num_speculative_tokens=2, verification="rejection")
    for sequence in run(engine, rows.sequences()):
        assert (sequence.finish_reason, len(sequence.output_token_ids)) == ("length", rows.NUM_NEW_TOKENS)
        check_counts(sequence)


def test_greedy_text_in_float32_is_transformers_own(models, make_engine):
    _only_in_float32(models)
    expected = generated(models.target_path, rows.PROMPTS, rows.NUM_NEW_TOKENS)
    engine = make_engine("model", num_speculative_tokens=3, num_slots=len(rows.PROMPTS))
    assert outputs(run(engine, rows.greedy_sequences())) == expected


@pytest.mark.parametrize("make_rows", [rows.greedy_sequences, rows.sequences, rows.mixed_sequences])
def test_text_in_float32_is_that_of_an_engine_on_the_cpu(models, make_engine, make_rows, monkeypatch):
    _only_in_float32(models)
    found = outputs(run(make_engine(num_slots=4), make_rows()))
    monkeypatch.setenv("DRAY_TRITON", "off")
    target = LanguageModel.load(models.target_path, "cpu", "float32")
    check_model(target, "the target on the CPU")
    assert found == outputs(run(engine_over(replace(models, target=target), num_slots=4), make_rows()))


def test_text_with_penalties_biases_and_least_lengths_depends_on_no_draft(make_engine):
    alone = make_engine(num_slots=1, is_recorded=False)
    expected = [outputs(run(alone, [sequence]))[0] for sequence in rows.mixed_sequences()]
    engine = make_engine("model", num_slots=4, num_speculative_tokens=3)
    assert outputs(run(engine, rows.mixed_sequences())) == expected


def _only_in_float32(models: Models) -> None:
    if models.case.dtype != "float32":
        pytest.skip("in bfloat16 another code rounds otherwise, and writes another text")
