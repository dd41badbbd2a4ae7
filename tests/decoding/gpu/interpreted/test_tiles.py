"""Tiles of products: all that the clock may choose give the same bits, and what was chosen is kept for later loads."""

import fcntl
import json
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from triton.runtime.errors import OutOfResources

from decoding.fused.packed_linear import InvariantLinear
from decoding.gpu import linear, tile_clock
from decoding.gpu.tile_clock import choose_tiles
from decoding.gpu.tiles import Tile, Weight
from decoding.network.language_model import LanguageModel
from tests.decoding.tiny import build, llama_config

WITH_PARTS, WITHOUT = (70, 1100), (70, 100)  # outputs, inputs
NUM_LINES = (20, 140)  # of which no tile is full


def layers(shape: tuple[int, int], number: int = 2) -> list[InvariantLinear]:
    torch.manual_seed(1)
    weights = [(torch.randn(shape) / shape[1] ** 0.5).bfloat16() for _ in range(number)]
    return [InvariantLinear(weight_OI, torch.randn(shape[0]).bfloat16()) for weight_OI in weights]


def weight_of(layer: InvariantLinear, num_weights: int = 1) -> Weight:
    return Weight(*layer.weight.shape, layer.weight.dtype, num_weights)


def multiplied(way: str, tile: Tile, num_lines: int, shape: tuple[int, int]) -> torch.Tensor:
    """Return a product of lines in float32, so that it has all bits of its sums."""
    up, gate = layers(shape)
    x_NI, other_NO = torch.randn(num_lines, shape[1]), torch.randn(num_lines, shape[0])
    for layer in (up, gate):
        layer.tiles = {(1 + (way == "gated"), lines): tile for lines in (32, 256)}
    return {
        "forward": lambda: up(x_NI),
        "plus": lambda: up.plus(x_NI, other_NO),
        "gated": lambda: up.gated(x_NI, gate),
    }[way]()


@pytest.mark.parametrize("num_lines", NUM_LINES)
@pytest.mark.parametrize(("way", "shape"), [("plus", WITH_PARTS), ("gated", WITHOUT), ("forward", WITHOUT)])
def test_all_tiles_that_the_clock_may_choose_give_the_same_bits(way, shape, num_lines):
    weight = weight_of(layers(shape)[0], 1 + (way == "gated"))
    first, *others = weight.tiles(num_lines)
    # What is compiled otherwise is the same here: stages and warps.
    sizes = {(tile.outputs, tile.lines, tile.is_whole): tile for tile in others}
    expected = multiplied(way, first, num_lines, shape)
    assert len(sizes) > 1
    assert all(torch.equal(multiplied(way, tile, num_lines, shape), expected) for tile in sizes.values())


def test_numbers_that_are_added_in_other_parts_have_other_bits(monkeypatch):
    """The test above sees an order."""
    first, *_ = weight_of(layers(WITH_PARTS)[0]).tiles(20)
    expected = multiplied("plus", first, 20, WITH_PARTS)
    monkeypatch.setattr(Weight, "part_size", 320)
    assert not torch.equal(multiplied("plus", first, 20, WITH_PARTS), expected)


# The choice


class Clock:
    """Takes one of each weight's tiles for the fastest."""

    def __init__(self, favourite: int) -> None:
        self.favourite, self.num_times = favourite, 0

    def __call__(self, run) -> float:
        self.num_times += 1
        return abs(self.num_times % 6 - self.favourite)


@pytest.fixture
def few_lines(monkeypatch) -> None:
    monkeypatch.setattr(tile_clock, "_FIRST_LINES", (16,))
    monkeypatch.setattr(tile_clock, "LINES", (16, 32))
    monkeypatch.setattr(tile_clock, "_LEAST_BYTES", 0)


def chosen(folder: Path, clock) -> SimpleNamespace:
    up, gate = layers(WITHOUT)
    choose_tiles([(up, gate), (gate, None)], folder, clock)
    x_NI = torch.randn(9, WITHOUT[1], generator=torch.Generator().manual_seed(3)).bfloat16()
    return SimpleNamespace(tiles=(up.tiles, gate.tiles), found=(up.gated(x_NI, gate), gate(x_NI)))


@pytest.mark.usefixtures("few_lines")
def test_which_tile_wins_changes_no_number(tmp_path):
    ways = [chosen(tmp_path / str(favourite), Clock(favourite)) for favourite in (1, 4)]
    assert ways[0].tiles != ways[1].tiles
    assert ways[0].tiles[0].keys() == {(2, 16), (2, 32)}
    assert all(map(torch.equal, ways[0].found, ways[1].found))


@pytest.mark.usefixtures("few_lines")
def test_a_model_computes_the_same_logits_whichever_tiles_win(tmp_path):
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 2}
    model = LanguageModel(build(llama_config(**heads), seed=1).bfloat16(), frozenset())
    model.exact = "on"
    model.speed_up()
    assert model.fused is not None
    assert len(model.fused.measured) == 2 * 4 + 1
    tokens_BT = torch.arange(2 * 9).view(2, 9)
    ways = []
    for favourite in (1, 4):
        choose_tiles(model.fused.measured, tmp_path / str(favourite), Clock(favourite))
        model.allocate(2, 20)
        logits_BJV = model.forward([0, 0], tokens_BT, torch.arange(9).expand(2, -1)).clone()
        ways.append((logits_BJV, [layer.tiles for layer, _ in model.fused.measured]))
    assert all(all(tiles) for _, tiles in ways)
    assert ways[0][1] != ways[1][1]
    assert torch.equal(ways[0][0], ways[1][0])


@pytest.mark.usefixtures("few_lines")
def test_no_other_process_measures_on_the_same_gpu_meanwhile(tmp_path):
    locked = []

    def clock(_: object) -> float:
        with (tmp_path / "tiles-cpu.lock").open("w") as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        locked.append(True)
        return 1.0

    chosen(tmp_path, clock)
    assert locked
    with (tmp_path / "tiles-cpu.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)  # it was given back


@pytest.mark.usefixtures("few_lines")
def test_what_was_chosen_is_kept_and_not_measured_again(tmp_path, caplog):
    caplog.set_level("INFO")
    first, again = Clock(4), Clock(1)
    before = chosen(tmp_path, first)
    assert first.num_times
    assert chosen(tmp_path, again).tiles == before.tiles
    assert not again.num_times
    assert "4 measured, 0 from" in caplog.text
    assert "0 measured, 4 from" in caplog.text


@pytest.mark.usefixtures("few_lines")
@pytest.mark.parametrize("fault", ["broken", "of another card", "of no tile"])
def test_a_file_that_cannot_be_used_is_measured_again(fault, tmp_path):
    before = chosen(tmp_path, Clock(4))
    (file,) = tmp_path.glob("tiles-*.json")
    kept = json.loads(file.read_text())
    changed = {
        "broken": "{",
        "of another card": json.dumps(kept | {"card": ["another", 9, 0]}),
        "of no tile": json.dumps(kept | {"tiles": {name: [1, 2, 3, 4, False] for name in kept["tiles"]}}),
    }
    file.write_text(changed[fault])
    again = Clock(4)
    assert chosen(tmp_path, again).tiles == before.tiles
    assert again.num_times
    assert json.loads(file.read_text()) == kept


@pytest.mark.usefixtures("few_lines")
@pytest.mark.parametrize("refusal", [OutOfResources(1, 2, "shared memory"), torch.OutOfMemoryError("no memory")])
def test_a_tile_without_room_or_with_another_last_bit_is_left_out(refusal, tmp_path, monkeypatch):
    sums, tried = linear.sums, set()

    def planted(x_NI, weight_OI, bias_O, tiles):
        of, sizes = sums(x_NI, weight_OI, bias_O, tiles), {(tile.outputs, tile.num_stages) for tile in tiles.values()}
        tried.update(sizes)
        if (64, 4) in sizes:
            raise refusal
        return replace(of, parts_CNO=of.parts_CNO * (1 + 2**-22)) if (128, 3) in sizes else of

    monkeypatch.setattr(linear, "sums", planted)
    (layer,) = layers(WITH_PARTS, 1)
    times = []
    choose_tiles([(layer, None)], tmp_path, lambda run: times.append(run()) or -len(times))
    assert {(64, 4), (128, 3), (128, 5)} <= tried
    assert {(tile.outputs, tile.num_stages) for tile in layer.tiles.values()} == {(128, 5)}
    assert len(times) == 2 * 4  # of six tiles


@pytest.mark.usefixtures("few_lines")
def test_a_device_that_fails_while_tiles_are_measured_is_no_tile_that_is_left_out(tmp_path):
    num_times = count()

    def clock(run) -> float:
        if next(num_times):
            raise RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered")
        return 1.0

    with pytest.raises(RuntimeError, match="illegal memory access"):
        choose_tiles([(layer, None) for layer in layers(WITHOUT)], tmp_path, clock)
    assert not list(tmp_path.glob("*.json"))


@pytest.mark.usefixtures("few_lines")
def test_a_load_measures_for_a_limited_time_and_the_next_one_goes_on(tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO")
    clock = Clock(1)
    with monkeypatch.context() as patch:
        patch.setattr(tile_clock, "MOST_SECONDS", 0.0)
        assert chosen(tmp_path, clock).tiles == ({}, {})
    assert not clock.num_times
    assert "4 left, in" in caplog.text
    assert chosen(tmp_path, clock).tiles != ({}, {})
