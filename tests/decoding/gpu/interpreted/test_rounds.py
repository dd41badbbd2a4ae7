"""Rounds that begin before the last one is read write what plain rounds write, with the kernels of a GPU.

The kernels run in Triton's interpreter, on models of two layers and a few tokens: it is thousands of times slower.
"""

import pytest
import torch

from decoding import Engine, EngineOptions, SamplingParams, Sequence
from decoding.engine import load
from decoding.fused.recordings import CudaRecorder
from decoding.network import probe
from tests.decoding.tiny import build, llama_config, noised, save

PROMPTS = [[1, 2, 3, 4] * 6, [7], [5, 6, 5, 6], [9, 1, 2]]
PARAMS = SamplingParams(max_tokens=6, temperature=0.8, top_p=0.9)


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("pair")
    target = build(llama_config(), seed=1)
    return save(target, folder / "target"), save(noised(target, 0.1), folder / "draft")


@pytest.fixture(autouse=True)
def _unmeasured(monkeypatch):
    """Batch invariance is measured by a test of its own: it takes half a minute here."""
    monkeypatch.setattr(probe, "is_invariant", lambda model: True)


def numbered(prompts: list[list[int]]) -> list[Sequence]:
    """The rows that `Engine.generate` makes of these prompts."""
    return [Sequence.create(prompt, PARAMS, run_seed=1, row=row) for row, prompt in enumerate(prompts)]


def texts(pair, params: SamplingParams = PARAMS, **options: object) -> list[list[int]]:
    """Generate in bfloat16 with exact products, in rounds that overlap."""
    draft = pair[1] if options.get("drafter") != "none" else None
    settings = EngineOptions(max_model_len=48, exact="on", draft_length="fixed", **options)
    engine = Engine.load(pair[0], draft, settings, device="cpu", dtype="bfloat16")
    assert engine.lanes[0].ahead is not None
    return [sequence.output_token_ids for sequence in engine.generate(PROMPTS, params, seed=1)]


@pytest.fixture(scope="module")
def plain(pair) -> list[list[int]]:
    """Each text by itself, one token a round."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(probe, "is_invariant", lambda model: True)
        return texts(pair, drafter="none", num_slots=1)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"drafter": "none", "num_slots": 3}, marks=pytest.mark.slow),
        pytest.param({"num_speculative_tokens": 1, "num_slots": 4}, marks=pytest.mark.slow),
        pytest.param({"num_speculative_tokens": 4, "num_slots": 2}, marks=pytest.mark.slow),
        pytest.param({"num_speculative_tokens": 2, "num_slots": 3, "draft_window": 16}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_text_does_not_depend_on_draft_slots_or_window(pair, plain, options):
    assert texts(pair, **options) == plain


def test_recorded_rounds_write_the_same_text_and_those_of_full_slots_are_recorded_first(pair, plain, monkeypatch, gpu):
    settings = EngineOptions(max_model_len=48, exact="on", num_slots=4, draft_length="fixed", num_speculative_tokens=2)
    engine = Engine.load(*pair, settings, device="cpu", dtype="bfloat16")
    monkeypatch.setattr(engine.lanes[0].ahead, "record", CudaRecorder())
    rows = numbered(PROMPTS)
    engine.submit(rows)
    engine.step()
    num_prepared = gpu.num_captured
    assert num_prepared == 2 * 2 + 1  # drafts of 1 and 2 tokens, and verdicts on 0 to 2
    while engine.has_work:
        engine.step()
    assert [row.output_token_ids for row in rows] == plain
    assert gpu.num_captured <= num_prepared + 12
    assert not gpu.num_refused


@pytest.mark.slow
def test_a_draft_that_knows_fewer_ids_than_its_target_reads_others_as_0(pair, plain, tmp_path_factory, monkeypatch):
    """Qwen2.5's small models have shorter embeddings than its large ones."""
    small = save(build(llama_config(vocab_size=6), seed=3), tmp_path_factory.mktemp("small") / "draft")
    monkeypatch.setattr(load, "check_same_vocabulary", lambda *_: None)
    settings = EngineOptions(max_model_len=48, exact="on", num_slots=4, draft_length="fixed", num_speculative_tokens=2)
    engine = Engine.load(pair[0], small, settings, device="cpu", dtype="bfloat16")
    assert [row.output_token_ids for row in engine.generate(PROMPTS, PARAMS, seed=1)] == plain


@pytest.mark.slow
def test_a_row_of_another_kind_makes_rounds_that_do_not_overlap_and_changes_no_text(pair, plain):
    """No recording has a bias, so these rounds are run as on any device."""
    target, draft = pair
    settings = EngineOptions(max_model_len=48, exact="on", num_slots=4, draft_length="fixed", num_speculative_tokens=2)
    engine = Engine.load(target, draft, settings, device="cpu", dtype="bfloat16")
    rows = numbered(PROMPTS)
    biased = SamplingParams(max_tokens=3, temperature=0.8, logit_bias={5: 2.0})
    other = Sequence.create([3, 1, 4], biased, run_seed=1, row=len(rows))
    list(engine.stream([*rows[:2], other, *rows[2:]]))
    assert [row.output_token_ids for row in rows] == plain
    assert len(other.output_token_ids) == 3


@pytest.mark.slow
def test_rows_that_are_taken_out_of_their_slots_go_on_with_the_same_text(pair, plain):
    target, draft = pair
    settings = EngineOptions(max_model_len=48, exact="on", num_slots=3, draft_length="fixed", num_speculative_tokens=2)
    engine = Engine.load(target, draft, settings, device="cpu", dtype="bfloat16")
    rows = numbered(PROMPTS)
    engine.submit(rows)
    for number in range(30):
        if number in (2, 4):
            engine.evict(engine.in_flight[number % 2 :])
        if number == 3:
            engine.resize(2)
        engine.step()
        if not engine.has_work:
            break
    assert [row.output_token_ids for row in rows] == plain


@pytest.mark.slow  # that picks report such rows is tested in test_picks.py
def test_a_row_whose_numbers_are_not_finite_fails_alone(pair):
    settings = EngineOptions(max_model_len=48, exact="on", num_slots=3)
    engine = Engine.load(pair[0], None, settings, device="cpu", dtype="bfloat16")
    with torch.no_grad():  # behind the probe, which would refuse such a model
        engine.target.network.get_input_embeddings().weight[40] = float("nan")
    params = SamplingParams(max_tokens=4, temperature=0)
    sound, poisoned, other = engine.generate([[1, 2, 3], [4, 40, 5], [6, 7]], params)
    assert poisoned.finish_reason == "error"
    assert "not finite" in poisoned.error
    assert [len(sound.output_token_ids), len(other.output_token_ids)] == [4, 4]
