"""Forwards that are recorded once for each shape and replayed: the same logits, the same text, nothing else touched.

They run over a stand-in for a GPU (`tests/decoding/stand_in_gpu.py`): what is tested is everything but CUDA itself.
"""

from collections.abc import Callable

import pytest
import torch
from torch.utils._python_dispatch import _disable_current_modes

from decoding import Engine, EngineOptions, SamplingParams
from decoding.fused.graphs import ForwardGraphs
from decoding.fused.recordings import CudaRecorder, Recorder, Recordings, rounded
from decoding.network.language_model import LanguageModel
from decoding.network.probe import check_model
from decoding.pace.schedule import FixedSchedule
from tests.decoding.tiny import build, llama_config, random_prompts, save


@pytest.fixture(autouse=True)
def _torch_attention(monkeypatch, gpu):
    monkeypatch.setenv("DRAY_KERNELS", "off")


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    target = save(build(llama_config(hidden_size=64), seed=1), folder / "target")
    draft = save(build(llama_config(hidden_size=64, num_hidden_layers=1), seed=1), folder / "draft")
    return target, draft


class EverOther(FixedSchedule):
    """Draft lengths that differ from row to row and from round to round, so that rows are ragged."""

    _round = 0

    def lengths(self, sequences):
        self._round += 1
        most = super().lengths(sequences)
        return tuple(min(limit, (self._round + row) % (self.ceiling + 1)) for row, limit in enumerate(most))


def with_graphs(model: LanguageModel, record: Recorder | None = None) -> ForwardGraphs:
    model.graphs = ForwardGraphs(model._run_fused, record or CudaRecorder())
    return model.graphs


def num_recorded(graphs: ForwardGraphs) -> int:
    return sum(shape.recording is not None for shape in graphs.recordings._shapes.values())


def small_model() -> LanguageModel:
    model = LanguageModel(build(llama_config(hidden_size=64), seed=1), frozenset())
    model.speed_up()
    return model


OPTIONS = [
    {"num_slots": 5, "num_speculative_tokens": 3},
    {"num_slots": 3},
    {"num_slots": 7, "drafter": "ngram"},
    {"num_slots": 4, "drafter": "hybrid", "verification": "rejection"},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_replayed_forwards_write_the_same_text(options, pair, gpu):
    params = SamplingParams(max_tokens=30, temperature=0.8, ignore_eos=True)  # forwards know no temperature
    prompts = random_prompts((5, 1, 17, 9, 3, 40, 2, 2, 11))

    def generate(*, is_recorded: bool) -> tuple[list[list[int]], int]:
        engine = Engine.load(*pair, EngineOptions(draft_length="fixed", **options), device="cpu")
        engine.lanes[0].schedule = EverOther(engine.options.num_speculative_tokens)
        models = [engine.target, getattr(engine.lanes[0].drafter, "model", None)]
        graphs = [with_graphs(m) for m in models if is_recorded and isinstance(m, LanguageModel)]
        texts = [s.output_token_ids for s in engine.generate(prompts, params)]
        return texts, min((num_recorded(g) for g in graphs), default=0)

    with _disable_current_modes():  # the stand-in need not see what is not recorded
        expected, _ = generate(is_recorded=False)
    replayed, num_replayed = generate(is_recorded=True)
    assert replayed == expected
    assert 0 < num_replayed < 60
    gpu.refuses = True
    with _disable_current_modes():
        refused, none_recorded = generate(is_recorded=True)
    assert refused == expected
    assert none_recorded == 0


def test_forwards_of_few_shapes_are_replayed_and_prefills_are_not(gpu):
    model = small_model()
    graphs = with_graphs(model)
    model.allocate(4, 60)
    model.prefill([0, 1, 2], random_prompts((20, 1, 9)))
    model.prefill([3], random_prompts((40,)))
    assert num_recorded(graphs) == 0
    for length in range(40, 50):
        model.forward([length], torch.tensor([[1]]), torch.zeros(1, 1, dtype=torch.int64), slots=[3])
    assert num_recorded(graphs) == 1
    assert gpu.num_replays == 9  # the first one is run as it is


@pytest.mark.parametrize("num_rows", [9, 13])
@pytest.mark.parametrize("is_packed", [True, False])
def test_rows_of_padding_change_nothing_even_if_their_slots_hold_nan(num_rows, is_packed):
    generator = torch.Generator().manual_seed(3)
    tokens_BT = torch.randint(48, (num_rows, 3), generator=generator)
    every_BT = torch.arange(3).expand(num_rows, -1)
    lengths = [1 + row % 3 for row in range(num_rows)] if is_packed else None

    def logits_of(*, is_recorded: bool) -> list[torch.Tensor]:
        model = small_model()
        graphs = with_graphs(model) if is_recorded else None
        model.allocate(14, 60)
        model.prefill(range(num_rows), random_prompts((20,) * num_rows))
        with torch.inference_mode():
            for layer in model.cache.layers:
                for stored_SPHD in layer.stored():
                    stored_SPHD[num_rows:] = float("nan")
        found = [model.forward([20] * num_rows, tokens_BT, every_BT, lengths=lengths).clone() for _ in range(3)]
        assert graphs is None or num_recorded(graphs) == 1
        return found

    for found, expected in zip(logits_of(is_recorded=True), logits_of(is_recorded=False), strict=True):
        assert expected.isfinite().all()
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_where_too_many_shapes_are_recorded_none_is_forgotten_alone(monkeypatch):
    monkeypatch.setattr("decoding.fused.recordings._MOST_RECORDED", 3)
    model = small_model()
    graphs = with_graphs(model)
    model.allocate(6, 60)
    model.prefill(range(6), random_prompts((20,) * 6))
    for num_rows in (1, 1, 2, 2, 3, 3, 2, 4, 2, 2, 3, 3, 1, 1):
        model.forward([20] * num_rows, torch.ones(num_rows, 1, dtype=torch.int64), torch.zeros(num_rows, 1).long())
        assert len(graphs.recordings._shapes) <= 3
    assert num_recorded(graphs) == 1


def test_work_and_what_reads_its_output_are_recorded_anew_in_the_same_round(monkeypatch):
    monkeypatch.setattr("decoding.fused.recordings._MOST_RECORDED", 3)
    recordings = Recordings[None](CudaRecorder(), "work")

    def run(key: tuple[int, ...], work: Callable[[], torch.Tensor]) -> torch.Tensor:
        recordings.inputs(key, lambda: None)
        return recordings.run(key, work)

    given = torch.tensor([0])
    for turn in range(40):
        given.fill_(turn)
        first = run((1,), lambda: given * 1)
        second = run((1, turn // 4), lambda first=first: first + 1)
        assert second.item() == turn + 1


def test_a_new_cache_forgets_what_was_recorded():
    model = small_model()
    graphs = with_graphs(model)
    one, at = torch.tensor([[1]]), torch.zeros(1, 1, dtype=torch.int64)
    for num_slots in (2, 3):
        model.allocate(num_slots, 60)
        model.prefill([0], random_prompts((20,)))
        found = [model.forward([20], one, at).clone() for _ in range(3)]
        assert num_recorded(graphs) == 1
        assert torch.equal(found[0], found[2])


@pytest.mark.parametrize("is_right", [True, False])
def test_the_probe_measures_what_is_replayed(is_right, monkeypatch):
    record, shift = CudaRecorder(), 0.0 if is_right else 0.1
    torch.zeros(1).add_(shift)  # what is recorded has run before
    speed_up = LanguageModel.speed_up

    def speed_up_with_graphs(self: LanguageModel) -> None:
        speed_up(self)
        with_graphs(self, lambda run: record(lambda: run().add_(shift)))

    monkeypatch.setattr(LanguageModel, "speed_up", speed_up_with_graphs)
    model = LanguageModel(build(llama_config(hidden_size=64), seed=1), frozenset())
    check_model(model, "llama")
    assert (model.graphs is not None) == is_right
    assert (model.fused is not None) == is_right


def test_sizes_are_rounded_up_to_four_steps_between_powers_of_two():
    assert [rounded(n) for n in (1, 2, 3, 4, 5, 7, 8, 9, 11, 16, 17, 21, 32, 33, 100)] == [
        1, 2, 3, 4, 5, 7, 8, 10, 12, 16, 20, 24, 32, 40, 112,
    ]  # fmt: skip
