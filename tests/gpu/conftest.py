"""Fixtures of the check-up of a GPU: models of both head sizes, in float32 and bfloat16, and engines over them.

`make gpu-check` runs these tests, and so does a plain command where there is no Ray:
`python -m pytest -m gpu --confcutdir=tests/gpu tests/gpu`. Without a GPU they are skipped, unless TRITON_INTERPRET=1 is
set before Python starts: then the same tests run the kernels in Triton's interpreter on the CPU, with smaller models
and fewer tokens, since it is thousands of times slower. What only a GPU can show is skipped there, and says so.
"""

from collections.abc import Iterator

import pytest
import torch
import transformers

from decoding.fused.graphs import ForwardGraphs
from decoding.gpu.available import is_interpreted
from decoding.network import invariance, language_model
from tests import interpreter
from tests.decoding.recorded_run import RecordedRun
from tests.gpu.engines import Case, MakeEngine, Models, engine_over, load_models, plain_texts
from tests.gpu.rows import HAS_GPU

# One of each: float32 with close calls (what `exact: auto` means there), float32 and bfloat16 on our kernels alone.
_FEW = [Case("llama", "float32", "auto"), Case("qwen3", "float32", "on"), Case("llama", "bfloat16", "on")]
_MORE = [Case("qwen3", "float32", "auto"), Case("llama", "float32", "on"), Case("qwen3", "bfloat16", "on")]
CASES = [*_FEW, *_MORE] if HAS_GPU else _FEW
transformers.logging.set_verbosity_error()
interpreter.install()


@pytest.fixture(scope="session")
def device() -> str:
    """The device on which the tests run: "cuda", or "cpu" in the interpreter."""
    if HAS_GPU:
        return "cuda"
    if not is_interpreted():
        pytest.skip("it needs a CUDA device, or TRITON_INTERPRET=1 set before Python starts")
    return "cpu"


@pytest.fixture
def _needs_a_gpu() -> None:
    if not HAS_GPU:
        pytest.skip("only a CUDA device has streams, recorded graphs and memory of its own")


@pytest.fixture(scope="session", autouse=True)
def _miniature(device: str) -> Iterator[None]:
    """Make the interpreter's work small, and its sums as regular as a GPU's: BLAS adds otherwise for other tiles."""
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        if device == "cpu":
            from decoding.gpu.tiles import Tile, Weight

            patch.setattr(language_model, "CudaRecorder", lambda: RecordedRun)
            patch.setattr(Weight, "first_tile", lambda *_: Tile(64, 32, num_warps=4, num_stages=3))
            patch.setattr(invariance, "_LONGEST_PROMPT", 6)
            patch.setattr(invariance, "_NUM_SCORED", 4)
            patch.setattr(invariance, "_FORWARDS", ((1, 4), (2, 1), (3, 2)))
        yield


@pytest.fixture(scope="session", params=CASES, ids=str)
def models(request: pytest.FixtureRequest, device: str, tmp_path_factory: pytest.TempPathFactory) -> Models:
    """A target and a good draft for it, loaded and checked."""
    return load_models(request.param, device, tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def plain(models: Models) -> list[list[int]]:
    """The text of each row of `rows.sequences()`, written alone, one token a round, with nothing recorded."""
    return plain_texts(models)


@pytest.fixture
def make_engine(models: Models, monkeypatch: pytest.MonkeyPatch) -> MakeEngine:
    """Make an engine over the models. On the CPU a recording is the work itself, which is done when it is replayed."""

    def make(drafter: str = "none", *, is_recorded: bool = True, **options: object):
        for model in (models.target, models.draft):
            if not is_recorded:
                monkeypatch.setattr(model, "graphs", None)
            elif not HAS_GPU:
                monkeypatch.setattr(model, "graphs", ForwardGraphs(model._run_fused, RecordedRun))
        monkeypatch.setenv("DRAY_GRAPHS", "on" if is_recorded else "off")
        engine = engine_over(models, drafter, **options)
        for lane in engine.lanes if is_recorded and not HAS_GPU else ():
            if lane.ahead is not None:
                monkeypatch.setattr(lane.ahead, "record", RecordedRun)
        return engine

    return make
