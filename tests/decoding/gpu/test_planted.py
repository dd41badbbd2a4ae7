"""The path of a GPU over a stand-in that lies like one, and faults that are planted in it: each is caught.

A plant changes a function's source as a mistake would. Without a plant each check passes.
"""

import gc
import importlib
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from decoding import Engine, EngineOptions, SamplingParams
from decoding.cache.features import FeatureTap
from decoding.device import is_device_fault, is_out_of_memory
from decoding.fused.recordings import CudaRecorder, Recordings
from decoding.network.language_model import LanguageModel
from decoding.network.probe import check_model
from decoding.sampling.verdicts import SentVerdicts
from tests.decoding.fused.test_graphs import EverOther
from tests.decoding.stand_in_gpu import FAULT, StandInGpu, record_forwards
from tests.decoding.tiny import build, llama_config, random_prompts, save

PROMPTS = random_prompts((5, 1, 17, 9, 3, 2))
PARAMS = SamplingParams(max_tokens=9, temperature=0.8, ignore_eos=True)
ONES = torch.ones(4, 4)
ONE, AT = torch.tensor([[1]]), torch.zeros(1, 1, dtype=torch.int64)


@pytest.fixture(scope="module", autouse=True)
def _torch_attention():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DRAY_KERNELS", "off")
        yield


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("pair")
    target = save(build(llama_config(hidden_size=64), seed=1), folder / "target")
    return target, save(build(llama_config(hidden_size=64, num_hidden_layers=1), seed=1), folder / "draft")


def write(pair: tuple[str, str]) -> tuple[Engine, list[list[int]]]:
    """Write texts with drafts of a model, of lengths that change; then others with fewer slots."""
    options = EngineOptions(num_slots=5, draft_length="fixed", num_speculative_tokens=3, max_model_len=64)
    engine = Engine.load(*pair, options, device="cpu")
    engine.lanes[0].schedule = EverOther(3)
    texts = [row.output_token_ids for row in engine.generate(PROMPTS, PARAMS, seed=1)]
    engine.resize(3)
    return engine, texts + [row.output_token_ids for row in engine.generate(PROMPTS[:3], PARAMS, seed=2)]


@pytest.fixture(scope="module")
def plain(pair) -> list[list[int]]:
    """The texts of a CPU, without recordings."""
    return write(pair)[1]


@dataclass(frozen=True)
class Path:
    """What a check runs over."""

    gpu: StandInGpu
    patch: pytest.MonkeyPatch
    pair: tuple[str, str]
    plain: list[list[int]]


def small() -> LanguageModel:
    return LanguageModel(build(llama_config(hidden_size=64), seed=1), frozenset())


def probe_keeps_fused_layers(path: Path) -> None:
    model = small()
    check_model(model, "m")
    assert model.fused is not None
    assert model.facts()["graphs"]


def texts_are_those_of_a_cpu(path: Path) -> None:
    path.patch.setattr("decoding.fused.recordings._MOST_RECORDED", 5)
    engine, texts = write(path.pair)
    assert texts == path.plain
    assert engine.target.facts()["graphs"]
    assert path.gpu.num_captured > 10
    assert not path.gpu.num_refused


def features_are_each_forwards_own(path: Path) -> None:
    def features(model: LanguageModel) -> list[torch.Tensor]:
        found: list[torch.Tensor] = []
        model.hand_out(FeatureTap((1, 2), lambda stream_NX: 2 * stream_NX, lambda *told: found.append(told[-1])))
        model.allocate(6, 40)
        model.prefill(range(6), random_prompts((9,) * 6))
        for start, num_rows in enumerate((1, 1, 1, 6, 6, 6, 1, 1)):
            step(model, 9 + start, num_rows, start)
        return found

    as_without_recordings(features)


def padding_writes_nowhere(path: Path) -> None:
    def logits(model: LanguageModel) -> list[torch.Tensor]:
        model.allocate(10, 40)
        model.prefill(range(10), random_prompts((9,) * 10))
        for num_rows in (10, 10, 9):
            step(model, 9, num_rows, 1)
        model.forward([9], torch.tensor([[2]]), AT, slots=[9])
        step(model, 9, 9, 1)
        return [step(model, 10, 10, 1)]

    as_without_recordings(logits)


def step(model: LanguageModel, start: int, num_rows: int, token: int) -> torch.Tensor:
    """Feed a token to some rows at one place; return their logits."""
    tokens_BT = torch.full((num_rows, 1), token)
    return model.forward([start] * num_rows, tokens_BT, torch.zeros_like(tokens_BT)).clone()


def as_without_recordings(run: Callable[[LanguageModel], list[torch.Tensor]]) -> None:
    """Check that a model whose forwards are recorded computes what one without recordings does."""
    found = []
    for _ in range(2):
        model = small()
        model.speed_up()
        if found:
            model.graphs = None
        found.append(run(model))
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)


def a_cache_may_be_replaced(path: Path) -> None:
    model, found = small(), []
    model.speed_up()
    for _ in range(2):
        model.allocate(2, 40)
        model.prefill([0], [[1, 2, 3]])
        found += [model.forward([3], ONE, AT).clone() for _ in range(3)]
    torch.testing.assert_close(found, [found[0]] * len(found))


def product(record: CudaRecorder) -> tuple[torch.Tensor, object]:
    """Record a product of ones; return its output and what replays it."""
    torch.mm(ONES, ONES)
    recording = record(lambda: torch.mm(ONES, ONES))
    return recording.output, recording


def recorders_do_not_share_what_ends(path: Path) -> None:
    first, second = CudaRecorder(), CudaRecorder()
    _, gone = product(first)
    output, lasting = product(second)
    del gone
    lasting.replay()
    assert output.sum() == 64
    output, again = product(first)
    again.replay()
    assert output.sum() == 64


def one_thread_records_at_a_time(path: Path) -> None:
    is_alone = [bool((ONES + ONES).any())]
    CudaRecorder()(lambda: is_alone.append(CudaRecorder._one_at_a_time.locked()) or ONES + ONES)
    assert all(is_alone)


def what_nobody_holds_ends_outside_of_captures(path: Path) -> None:
    ring: list[object] = [product(CudaRecorder())[1]]
    ring.append(ring)
    gc.disable()  # it is not collected by chance before
    try:
        del ring
    finally:
        gc.enable()
    output, recording = product(CudaRecorder())
    recording.replay()
    assert output.sum() == 64


def a_capture_that_fails_leaves_no_stream(path: Path) -> None:
    with pytest.raises(RuntimeError, match="not permitted"):
        CudaRecorder()(lambda: torch.full((1,), torch.zeros(1).item()))
    assert torch.cuda.current_stream() is path.gpu.default_stream
    assert product(CudaRecorder())


def verdicts_are_read_when_they_are_there(path: Path) -> None:
    columns_BC = path.gpu.on_device(torch.tensor([[1, 30, 2, 1, 1, 30]]))
    sent, later = SentVerdicts(columns_BC), SentVerdicts(columns_BC + 1)
    columns_BC.fill_(9)  # as the next round does
    assert [sent.result()[0].next_token, later.result()[0].next_token] == [30, 31]


def error_of_recorded_work(happen: Callable[[], None]) -> RuntimeError:
    """Run work, let something happen to the device, and run it again, which records it; return what that raises."""
    recordings = Recordings[None](CudaRecorder(), "work")
    recordings.inputs((1,), lambda: None)
    recordings.run((1,), lambda: torch.mm(ONES, ONES))
    happen()
    with pytest.raises(RuntimeError) as caught:
        recordings.run((1,), lambda: torch.mm(ONES, ONES))
    assert not recordings.refusal
    return caught.value


def memory_that_runs_out_in_a_capture_is_told(path: Path) -> None:
    assert is_out_of_memory(error_of_recorded_work(lambda: setattr(path.gpu, "largest", 60)))


def the_librarys_memory_is_memory(path: Path) -> None:
    assert is_out_of_memory(error_of_recorded_work(lambda: setattr(path.gpu, "has_workspace", False)))


def a_fault_in_a_capture_is_told(path: Path) -> None:
    assert is_device_fault(error_of_recorded_work(path.gpu.fault))
    with pytest.raises(torch.AcceleratorError, match=FAULT):  # as every later call does
        torch.ones(1)


def memory_that_runs_out_at_load_is_told(path: Path) -> None:
    def speed_up(self: LanguageModel) -> None:
        before(self)
        path.gpu.largest = 2000

    before = LanguageModel.speed_up
    path.patch.setattr(LanguageModel, "speed_up", speed_up)
    with pytest.raises(torch.OutOfMemoryError):
        check_model(small(), "m")


def what_is_not_recorded_is_told(path: Path) -> None:
    model = small()
    model.speed_up()
    project = FeatureTap((1,), lambda stream_NX: stream_NX * stream_NX.sum().item(), lambda *_: None)
    model.hand_out(project)  # which reads a value
    model.allocate(1, 40)
    model.prefill([0], [[1, 2, 3]])
    for _ in range(3):
        model.forward([3], ONE, AT)
    assert not model.facts()["graphs"]
    assert "not permitted" in model.graphs.recordings.refusal


RECORDINGS, GRAPHS = "decoding.fused.recordings:", "decoding.fused.graphs:"
PLANTS = {
    "the probe keeps what the next forward overwrites": (
        probe_keeps_fused_layers,
        [("decoding.network.probe:_measured", ".clone()", "")],
    ),
    "memory that runs out is a verdict on the model": (
        memory_that_runs_out_at_load_is_told,
        [("decoding.network.probe:_raise_if_of_the_machine", "raise error", "pass")],
    ),
    "a pool is used after its last graph": (
        recorders_do_not_share_what_ends,
        [(RECORDINGS + "CudaRecorder.__call__", "if not self._living:", "if self._pool is None:")],
    ),
    "all recorders share a stream": (
        recorders_do_not_share_what_ends,
        [(RECORDINGS + "CudaRecorder.__call__", "torch.cuda.Stream()", "torch.cuda.current_stream()")],
    ),
    "a recording ends alone": (
        texts_are_those_of_a_cpu,
        [
            (
                RECORDINGS + "Recordings.inputs",
                "if len(self._shapes) >= _MOST_RECORDED:",
                "if len(self._shapes) >= 5:\n            del self._shapes[next(iter(self._shapes))]\n        if False:",
            )
        ],
    ),
    "two threads record at once": (
        one_thread_records_at_a_time,
        [(RECORDINGS + "CudaRecorder.__call__", "with self._one_at_a_time:", "if True:")],
    ),
    "garbage is collected in a capture": (
        what_nobody_holds_ends_outside_of_captures,
        [(RECORDINGS + "_CudaRecording.__init__", "gc.disable()", "pass")],
    ),
    "a capture that fails leaves its stream": (
        a_capture_that_fails_leaves_no_stream,
        [(RECORDINGS + "_CudaRecording.__init__", "torch.cuda.set_stream(before)", "pass")],
    ),
    "work is recorded before it has run": (
        texts_are_those_of_a_cpu,
        [(RECORDINGS + "Recordings.run", "shape.was_run and", "")],
    ),
    "what is recorded is not replayed at once": (
        texts_are_those_of_a_cpu,
        [(RECORDINGS + "Recordings.run", "shape.recording.replay()", "shape.was_run and None")],
    ),
    "memory that runs out is a refusal to record": (
        memory_that_runs_out_in_a_capture_is_told,
        [(RECORDINGS + "Recordings.run", "is_out_of_memory(error) or", "")],
    ),
    "a fault is a refusal to record": (
        a_fault_in_a_capture_is_told,
        [(RECORDINGS + "is_device_fault", "isinstance(error, torch.AcceleratorError) or is_said", "False")],
    ),
    "the library's memory is no memory": (
        the_librarys_memory_is_memory,
        [(RECORDINGS + "is_out_of_memory", "in _OUT_OF_MEMORY", "in _OUT_OF_MEMORY[:-1]")],
    ),
    "a refusal is not told": (
        what_is_not_recorded_is_told,
        [("decoding.network.language_model:LanguageModel.facts", ".recordings.record is not None", " is not None")],
    ),
    "recordings of an earlier cache are replayed": (
        a_cache_may_be_replaced,
        [
            (GRAPHS + "ForwardGraphs.run", "self.forget()", "pass"),
            ("decoding.network.language_model:LanguageModel.allocate", "self.graphs.forget()", "pass"),
        ],
    ),
    "a replay reads the inputs of the first run": (
        texts_are_those_of_a_cpu,
        [(GRAPHS + "_Shape.take", "mine[: len(given)].copy_", "self._sizes and mine[: len(given)].clone().copy_")],
    ),
    "padding is not reset": (padding_writes_nowhere, [(GRAPHS + "_Shape.take", "if is_smaller:", "if False:")]),
    "features are lent": (features_are_each_forwards_own, [(GRAPHS + "ForwardGraphs.run", ".clone()", "")]),
    "features are left where they were before they grew": (
        features_are_each_forwards_own,
        [(GRAPHS + "ForwardGraphs._with_room", "self.recordings.record_anew()", "pass")],
    ),
    "verdicts are not waited for": (
        verdicts_are_read_when_they_are_there,
        [("decoding.sampling.verdicts:OnItsWay.result", "self._copied.synchronize()", "pass")],
    ),
    "verdicts are waited for before they are sent": (
        verdicts_are_read_when_they_are_there,
        [("decoding.sampling.verdicts:OnItsWay.__init__", "torch.cuda.Event()", "torch.cuda.Event(); return")],
    ),
}
CAUGHT = (AssertionError, RuntimeError, IndexError, ValueError, pytest.fail.Exception)
CHECKS = list(dict.fromkeys(check for check, _ in PLANTS.values()))


@pytest.fixture
def path(pair, plain, monkeypatch):
    record_forwards(monkeypatch)
    gpu = StandInGpu().install(monkeypatch)
    with gpu:
        yield Path(gpu, monkeypatch, pair, plain)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_path_of_a_gpu_is_right_where_nothing_is_planted(path, check):
    check(path)


@pytest.mark.parametrize(("check", "changes"), PLANTS.values(), ids=PLANTS)
def test_a_planted_fault_is_caught(path, check, changes):
    for where, right, wrong in changes:
        plant(path.patch, where, right, wrong)
    with pytest.raises(CAUGHT):
        check(path)


def plant(patch: pytest.MonkeyPatch, where: str, right: str, wrong: str) -> None:
    """Replace a piece of a function's source; `where` is its module, a colon, and its name there."""
    module, name = where.split(":")
    owner, function = importlib.import_module(module), None
    *inside, last = name.split(".")
    for each in inside:
        owner = getattr(owner, each)
    function = inspect.unwrap(getattr(owner, last))
    source = textwrap.dedent(inspect.getsource(function))
    assert right in source, f"{where} has changed: plant the fault anew"
    made: dict[str, object] = {}
    exec(source.replace(right, wrong), function.__globals__, made)
    patch.setattr(owner, last, made[last])
