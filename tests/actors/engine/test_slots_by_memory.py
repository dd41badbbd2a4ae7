"""`engine.num_slots: auto` is what a GPU has room for, and the text is the same whatever that is."""

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace
from math import ceil
from types import SimpleNamespace

import pytest
import ray
import torch

from actors.engine.loop import EngineLoop
from actors.engines.dray import load, load_engine
from actors.engines.footprint import footprint, slots_in_words, with_slots
from actors.placement import StageSettings
from actors.settings import EngineSettings, GeneratorSettings, ModelSettings
from decoding import Engine, EngineOptions, SamplingParams
from decoding.cache.footprint import GIB
from decoding.checkpoint.supported import load_config
from tests.actors.engine.engines import Pair, alone, sequences, tokens
from tests.decoding.stand_in_gpu import StandInGpu, record_forwards

PARAMS = SamplingParams(max_tokens=10, temperature=0.8, ignore_eos=True)


def settings_of(pair: Pair, *, device: str = "cuda", **engine: object) -> GeneratorSettings:
    models = ModelSettings(target=pair[0], draft=pair[1], device=device, dtype="float32")  # type: ignore[arg-type]
    options = {"draft_length": "fixed", "num_speculative_tokens": 3, "max_model_len": 64} | engine
    return GeneratorSettings(models=models, engine=EngineSettings(**options))  # type: ignore[arg-type]


def bytes_planned(settings: GeneratorSettings, num_slots: int) -> int:
    """Return what a plan says of both models with a number of slots that is given."""
    given = replace(settings, engine=replace(settings.engine, num_slots=num_slots))
    drafts = settings.engine.drafter != "suffix"
    return sum(footprint(given, model).total for model in [given.models.target, given.models.draft][: 1 + drafts])


def set_memory(patch: pytest.MonkeyPatch, total: int, free: int | None = None) -> None:
    patch.setattr(torch.cuda, "mem_get_info", lambda *_: (total if free is None else free, total))


def bytes_of_keys(settings: GeneratorSettings, num_slots: int) -> int:
    """Return what a layer of the target's cache allocates at once for this many slots."""
    given, target = replace(settings, engine=replace(settings.engine, num_slots=num_slots)), settings.models.target
    return footprint(given, target).cache // (2 * load_config(target).num_hidden_layers)


@pytest.fixture(scope="module")
def expected(text_pair: Pair) -> list[list[int]]:
    """The texts of a processor, of a row at a time and without a draft."""
    return alone(text_pair, sequences(9, PARAMS))


def on_gpu(gpu: StandInGpu, call: Callable[..., object]) -> Callable[..., object]:
    def called(*args: object) -> object:
        with gpu:
            return call(*args)

    return called


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> StandInGpu:
    """A device that lies, on which engines of device 'cuda' are loaded."""
    for module in ("decoding.checkpoint.loading", "decoding.kept.models"):
        monkeypatch.setattr(f"{module}.pick_device", lambda _: torch.device("cpu"))
    monkeypatch.setenv("DRAY_KERNELS", "off")
    record_forwards(monkeypatch)
    gpu = StandInGpu().install(monkeypatch)
    for name in ("step", "resize"):  # the loop has a thread of its own, and a device is one thread's
        monkeypatch.setattr(Engine, name, on_gpu(gpu, getattr(Engine, name)))
    return gpu


def load_on(gpu: StandInGpu, settings: GeneratorSettings) -> Engine:
    with gpu:
        return load_engine(settings)


@pytest.mark.parametrize("num_slots", [1, 2, 37, 255])
@pytest.mark.parametrize("drafter", ["model", "suffix"])
def test_a_gpu_gets_the_slots_that_fit_beside_the_models_into_nine_tenths_of_it(
    text_pair, monkeypatch, drafter, num_slots
):
    settings = settings_of(text_pair, drafter=drafter)
    just = -(-10 * bytes_planned(settings, num_slots) // 9)
    set_memory(monkeypatch, just + 1)
    assert with_slots(settings).engine.num_slots == num_slots
    set_memory(monkeypatch, just - 100)
    if num_slots > 1:
        assert with_slots(settings).engine.num_slots == num_slots - 1
    else:
        with pytest.raises(
            ValueError, match=r"num_slots is auto, and not one slot of this GPU fits .* lower engine.max_model_len"
        ):
            with_slots(settings)
    free = bytes_planned(settings, num_slots) + GIB + 1  # others have the rest; the tenth is of the whole
    set_memory(monkeypatch, 10 * GIB, free)
    assert with_slots(settings).engine.num_slots == num_slots


def test_a_slot_has_room_for_masks_and_twice_the_logits_of_a_targets_round_and_of_one_token_of_the_draft(text_pair):
    settings = settings_of(text_pair, num_speculative_tokens=3)
    vocabulary = load_config(text_pair[0]).vocab_size
    sizes = [footprint(settings, model).logits_per_slot for model in text_pair]
    a_position = 2 * 4 * vocabulary + vocabulary / 8  # a mask has a bit a token
    assert sizes == [ceil(5 * a_position), ceil(a_position)]  # 3 drafted tokens, for which 4 are, and one more


def test_longer_texts_and_wider_drafts_get_fewer_slots(text_pair, monkeypatch):
    monkeypatch.setattr("actors.engines.footprint.max_positions", lambda _: 1024)
    set_memory(monkeypatch, -(-10 * bytes_planned(settings_of(text_pair), 64) // 9) + 1)
    assert with_slots(settings_of(text_pair)).engine.num_slots == 64
    assert 16 < with_slots(settings_of(text_pair, max_model_len=257)).engine.num_slots < 64  # two pages a row
    assert with_slots(settings_of(text_pair, num_speculative_tokens=2)).engine.num_slots > 64


def test_a_gpu_with_room_for_more_gets_256_and_a_part_of_it_its_part(text_pair, monkeypatch):
    settings = settings_of(text_pair)
    set_memory(monkeypatch, 80 * GIB)
    assert with_slots(settings).engine.num_slots == settings.most_slots == 256
    assert "as many as its GPU has room for (engine.num_slots auto), at most 256" in slots_in_words(settings)
    set_memory(monkeypatch, 4 * (-(-10 * bytes_planned(settings, 90) // 9) + 1))

    class OfAQuarter:
        worker = SimpleNamespace(mode=ray.WORKER_MODE)

        def get_assigned_resources(self) -> dict[str, float]:
            return {"GPU": 0.25}

    monkeypatch.setattr("ray.is_initialized", lambda: True)
    monkeypatch.setattr("ray.get_runtime_context", OfAQuarter)
    assert with_slots(settings).engine.num_slots == 90
    OfAQuarter.worker.mode = ray.SCRIPT_MODE  # a driver, which Ray gives nothing
    assert with_slots(settings).engine.num_slots == 256
    set_memory(monkeypatch, -(-10 * bytes_planned(settings, 60) // 9) + 1)
    assert with_slots(settings, 3).engine.num_slots == 19  # each engine has a page that belongs to no row


def test_rows_of_ragged_lengths_get_pages_for_what_they_take_on_average_and_so_more_slots(text_pair, monkeypatch):
    """20 slots of 4 pages are 80 pages; rows of 300 tokens on average take less than a page and a quarter."""
    monkeypatch.setattr("actors.engines.footprint.max_positions", lambda _: 1024)
    lengths = {"drafter": "suffix", "max_model_len": 1024}
    whole, ragged = (settings_of(text_pair, tokens_per_slot=number, **lengths) for number in (None, 300))
    each = [footprint(replace(of, engine=replace(of.engine, num_slots=64)), text_pair[0]) for of in (whole, ragged)]
    assert [of.cache // (256 * of.cache_per_token) for of in each] == [1 + 64 * 4, 1 + 75]
    set_memory(monkeypatch, -(-10 * bytes_planned(whole, 20) // 9) + 1)
    found = [with_slots(settings).engine.num_slots for settings in (whole, ragged)]
    assert found[0] == 20
    assert 45 < found[1] <= 80 * 256 // 300  # logits take a part
    few = footprint(settings_of(text_pair, tokens_per_slot=5, num_slots=2, **lengths), text_pair[0])
    assert few.cache == 256 * (1 + 4) * few.cache_per_token  # one whole row always fits


def test_a_number_a_processor_and_models_in_other_processes_have_what_they_had(text_pair, monkeypatch):
    set_memory(monkeypatch, 80 * GIB)
    apart = replace(settings_of(text_pair), stages=StageSettings(count=2))
    for settings, number in (
        (settings_of(text_pair, num_slots=7), 7),
        (settings_of(text_pair, device="cpu"), 16),
        (apart, 16),
    ):
        assert with_slots(settings) == settings
        assert settings.engine.slots == settings.most_slots == number
        assert slots_in_words(settings) == str(number)
    assert Engine.load(*text_pair, EngineOptions(), device="cpu").options.slots == 16


@pytest.mark.parametrize("value", ["all", "AUTO", "", 0, -1])
def test_what_is_neither_auto_nor_a_number_from_1_is_refused(value):
    with pytest.raises(ValueError, match=rf"engine.num_slots must be .*at least 1, got {re.escape(repr(value))}"):
        EngineOptions(num_slots=value)


def test_the_text_is_the_same_with_the_slots_of_any_memory(text_pair, expected, gpu):
    texts, slots = [], []
    for num_slots in (3, 8):
        settings = settings_of(text_pair)
        total = -(-10 * bytes_planned(settings, num_slots) // 9) + 1
        gpu.memory = total, total
        with gpu:
            loaded = load(settings)
        assert loaded.footer["slots"] == loaded.facts["slots"] == num_slots
        assert loaded.engine.target.cache.num_slots == num_slots
        rows = sequences(9, PARAMS)
        asyncio.run(asyncio.wait_for(EngineLoop(loaded.engine).finish(rows), timeout=120))
        texts.append(tokens(rows))
        slots.append(loaded.engine.options.slots)
    assert slots == [3, 8]
    assert texts[0] == texts[1] == expected


@pytest.mark.parametrize("when", ["at load", "in a round"])
def test_memory_that_runs_out_all_the_same_halves_the_slots(text_pair, expected, gpu, caplog, when):
    settings = settings_of(text_pair, draft_length="adaptive" if when == "at load" else "fixed", max_model_len=256)
    total = -(-10 * bytes_planned(settings, 12) // 9) + 1
    gpu.memory = total, total
    gpu.largest = bytes_of_keys(settings, 4)
    engine = load_on(gpu, settings)
    assert engine.options.slots == (3 if when == "at load" else 12)
    rows = sequences(9, PARAMS)
    asyncio.run(asyncio.wait_for(EngineLoop(engine).finish(rows), timeout=120))
    assert engine.options.slots == 3
    said = [message.partition(" running=")[0] for message in caplog.messages if message.startswith("out of memory")]
    assert said == ["out of memory slots=12 going_on_with=6", "out of memory slots=6 going_on_with=3"]
    assert tokens(rows) == expected


def test_a_number_that_is_given_is_not_lowered_when_an_engine_is_loaded(text_pair, gpu):
    settings = settings_of(text_pair, num_slots=64, draft_length="adaptive", max_model_len=256)
    gpu.largest = bytes_of_keys(settings, 4)
    with pytest.raises(torch.OutOfMemoryError):
        load_on(gpu, settings)
