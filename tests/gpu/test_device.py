"""What only a GPU can show: that no round waits, which kernels run, and that memory is given back."""

import gc
from collections import Counter

import pytest
import torch

from decoding import Engine, SamplingParams, Sequence
from tests.decoding.tiny import run
from tests.gpu import rows
from tests.gpu.engines import Models, engine_over

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("_needs_a_gpu")]

_OURS = ("attend", "split_heads", "multiply", "rms_norm", "summarize", "pick")
_OTHER_ATTENTION = ("cudnn", "flash", "fmha")
_OTHER_PRODUCTS = ("gemm", "gemv", "cutlass", "cublas", "nvjet")
_MIB = 1 << 20
GREEDY = SamplingParams(max_tokens=200, temperature=0.0)
SAMPLED = SamplingParams(max_tokens=200, temperature=0.8, top_p=0.95)


def writing(models: Models, params: SamplingParams, drafter: str = "model") -> Engine:
    """An engine all of whose rows write, after rounds enough for everything to be recorded."""
    engine = engine_over(models, drafter, num_slots=4, num_speculative_tokens=3)
    for _ in range(2):  # the second time all shapes are known
        engine.clear()
        engine.submit([Sequence.create(prompt, params, row=row) for row, prompt in enumerate(rows.PROMPTS[:4])])
        for _ in range(20):
            engine.step()
    assert len(engine.lanes[0].running) == 4
    return engine


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_round_waits_for_the_device_once_for_the_verdicts_alone(models, params):
    """The wait for the verdicts is that for an event, which this mode allows; all others raise."""
    _only_in_bfloat16(models)
    engine = writing(models, params)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(8):
            engine.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("drafter", ["none", "model"])
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_rounds_run_our_kernels_and_no_other_attention_or_products(models, params, drafter):
    """The draft's products are the library's: nothing but speed depends on them."""
    _only_in_bfloat16(models)
    engine = writing(models, params, drafter)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(4):
            engine.step()
        torch.cuda.synchronize()
    kernels = Counter(event.name for event in profile.events() if event.device_type == torch.profiler.DeviceType.CUDA)
    foreign = _OTHER_ATTENTION + (_OTHER_PRODUCTS if drafter == "none" else ())
    assert all(any(ours in name for name in kernels) for ours in _OURS), kernels
    assert not [name for name in kernels if any(other in name.lower() for other in foreign)], kernels


def test_memory_returns_when_the_slots_go(models):
    models.target.release()
    models.draft.release()
    before = _reserved()
    engine = engine_over(models, "model", num_slots=64, num_speculative_tokens=3)
    run(engine, rows.sequences())
    assert _reserved() > before + _MIB * 64
    for lane in engine.lanes:
        lane.close()
    models.draft.release()
    del engine, lane
    assert _reserved() < before + _MIB * 24  # a segment of the allocator may stay


def _reserved() -> int:
    """Bytes of the device that torch holds once it has given back what nothing uses."""
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


def _only_in_bfloat16(models: Models) -> None:
    if models.case.dtype != "bfloat16":
        pytest.skip("in float32 the host decides close calls, so rounds do not overlap")
