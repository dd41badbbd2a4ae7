"""The roofline: bytes and times worked out by hand, a table that was computed by other means, and the command."""

import json
from dataclasses import replace

import pytest
import torch
from transformers import MixtralConfig, Qwen2Config

from benchmarks.pair_factory import SHAPES
from benchmarks.roofline.__main__ import PAIRS, main
from benchmarks.roofline.gpus import GPUS, Gpu
from benchmarks.roofline.ideal import (
    ROUND_SECONDS,
    STEP_SECONDS,
    Drafting,
    best_speed,
    drafted_speed,
    forward_seconds,
    plain_speed,
)
from benchmarks.roofline.launched import (
    headed_round,
    launched_round,
    product,
    with_tile,
)
from benchmarks.roofline.model_size import Forward, ModelSize
from decoding.gpu.tiles import Tile, Weight

H100 = GPUS["h100"]
CONTEXT, ACCEPTANCE = 1088, 0.8
SMALL = ModelSize(
    layer_weights=1000, head_weights=200, embedding_weights=200, cached_values=16, query_values=32, bytes_per_value=2
)
SLOW = Gpu("slow", "Abacus", bandwidth=1e3, flops=1e4, memory=1e4)


def size(shape) -> ModelSize:
    return ModelSize.of_config(shape.config())


TARGET, DRAFT = (size(shape) for shape in PAIRS["8b"])
HEAD = ModelSize.of_head(SHAPES["8b"].config())


@pytest.mark.parametrize(
    ("batch", "cache_gb", "plain", "drafted", "windowed", "headed"),
    [
        (32, 5.1, 4_560, (7_660, 3), (10_900, 6), 13_600),
        (64, 10.3, 7_330, (10_500, 2), (15_100, 3), 17_900),
        (128, 20.5, 10_600, (12_500, 1), (16_500, 2), 19_000),
        (256, 41.1, 13_100, (12_700, 1), (17_000, 2), 19_600),
    ],
)
def test_an_h100_decodes_the_8b_pair_as_fast_as_a_table_computed_by_other_means_says(
    batch, cache_gb, plain, drafted, windowed, headed
):
    step = Forward.of_round(batch, 1, CONTEXT)
    assert TARGET.weight_bytes_read(step) / 1e9 == pytest.approx(15.1, abs=0.05)
    assert TARGET.cache_bytes_read(step) / 1e9 == pytest.approx(cache_gb, abs=0.05)
    assert plain_speed(H100, TARGET, batch, CONTEXT).tokens_per_second == pytest.approx(plain, rel=0.01)
    for drafting, (speed, length) in (
        (Drafting(DRAFT, CONTEXT, ACCEPTANCE), drafted),
        (Drafting(DRAFT, 260, ACCEPTANCE), windowed),
    ):
        best = best_speed(H100, TARGET, drafting, batch, CONTEXT)
        assert best.tokens_per_second == pytest.approx(speed, rel=0.01)
        assert best.num_draft_tokens == length
    best = best_speed(H100, TARGET, Drafting(HEAD, CONTEXT, ACCEPTANCE), batch, CONTEXT)
    assert best.tokens_per_second == pytest.approx(headed, rel=0.02)


def test_a_forward_takes_the_longer_of_reading_and_computing_for_products_and_for_attention():
    few, many = Forward.of_round(1, 1, 10), Forward.of_round(1, 50, 10)
    weights, cache = 2 * 1200, 2 * 16 * 10
    assert forward_seconds(SLOW, SMALL, few) == pytest.approx((weights + cache) / 900)
    products, attention = 2 * 50 * 1200, 4 * 50 * 10 * 32
    assert forward_seconds(SLOW, SMALL, many) == pytest.approx((products + attention) / 7000)


def test_a_round_is_a_target_forward_over_all_positions_and_a_draft_forward_for_each_token():
    drafting = Drafting(replace(SMALL, layer_weights=100), 4, acceptance=0.5)
    scored, step = Forward.of_round(3, 3, 10), Forward.of_round(3, 1, 4)
    seconds = ROUND_SECONDS + forward_seconds(SLOW, SMALL, scored)
    seconds += 2 * (STEP_SECONDS + forward_seconds(SLOW, drafting.size, step))
    found = drafted_speed(SLOW, SMALL, drafting, 3, 10, num_draft_tokens=2)
    assert found.tokens_per_second == pytest.approx(3 * (1 + 0.5 + 0.25) / seconds)


@pytest.mark.parametrize(
    "config",
    [MixtralConfig(), Qwen2Config(use_sliding_window=True, sliding_window=64, max_window_layers=0)],
    ids=["experts", "sliding"],
)
def test_a_network_of_another_kind_has_no_size(config):
    assert ModelSize.of_config(config) is None


def test_the_command_prints_every_batch_and_says_which_do_not_fit(capsys, tmp_path):
    command = f"--model 8b --batch 128,256 --context 1088 --slot-length 1152 --gpu h100 --json {tmp_path}/out.json"
    assert main(command.split()) == 0
    printed = capsys.readouterr().out
    assert "nothing is measured" in printed
    memory, _, as_launched = printed.partition("as our kernels are launched")
    assert "0.98" in as_launched
    rows = {line.split()[1]: line for line in memory.splitlines() if line.startswith("│") and "GB" not in line}
    assert rows["128"].split()[-2] == "all"
    assert "only plain │" in rows["256"]  # a window bounds what is read, and no memory
    written = json.loads((tmp_path / "out.json").read_text())
    assert [round(batch["plain"]["tokens_per_second"], -2) for batch in written["batches"]] == [10_600, 13_100]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--batch 0", "--batch must be numbers from 1 up, got 0"),
        ("--batch ,", "--batch must be numbers from 1 up, got none"),
        ("--context 0", "--context must be at least 1, got 0"),
        ("--slot-length 9", "--slot-length must be at least --context, got 9 < 1088"),
        ("--acceptance 1", "--acceptance must be between 0 and 1, got 1.0"),
        ("--draft-window 0", "--draft-window must be at least 1, got 0"),
        ("--gpu h900", "invalid choice: 'h900'"),
    ],
)
def test_a_question_without_a_meaning_is_refused(arguments, message, capsys):
    with pytest.raises(SystemExit):
        main(arguments.split())
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("pair", "batch", "products", "keys", "kernels", "ratio"),
    [
        ("llama-3.1-8b", 16, 5.0, 1.0, 0.8, 1.09),
        ("llama-3.1-8b", 64, 5.0, 3.9, 0.8, 1.04),
        ("llama-3.1-8b", 128, 5.1, 7.8, 0.8, 1.00),
        ("8b", 128, 5.2, 8.8, 0.9, 0.98),
    ],
)
def test_a_round_on_an_h100_is_predicted_as_its_kernels_are_launched(pair, batch, products, keys, kernels, ratio):
    """An H100 took 6.63 ms for the products of 8b at 128 rows, 7.30 for attention, and 15.0 ms for the round."""
    shape = PAIRS[pair][0]
    found = launched_round(H100, shape, size(shape), batch, CONTEXT)
    times = (1e3 * found.products, 1e3 * found.keys, 1e3 * found.kernels)
    assert times == pytest.approx((products, keys, kernels), abs=0.05)
    assert found.peer / found.seconds == pytest.approx(ratio, abs=0.005)


@pytest.mark.parametrize(
    ("batch", "products", "keys", "kernels", "ratio"), [(16, 5.8, 1.1, 1.1, 1.06), (128, 16.4, 8.5, 1.1, 0.87)]
)
def test_a_round_with_a_head_is_the_targets_over_all_drafted_tokens_and_the_heads_steps(
    batch, products, keys, kernels, ratio
):
    shape = PAIRS["llama-3.1-8b"][0]
    found = headed_round(H100, shape, size(shape), batch, CONTEXT, 3)
    times = (1e3 * found.products, 1e3 * found.keys, 1e3 * found.kernels)
    assert times == pytest.approx((products, keys, kernels), abs=0.05)
    assert found.peer / found.seconds == pytest.approx(ratio, abs=0.005)
    one_more = headed_round(H100, shape, size(shape), batch, CONTEXT, 4)
    assert one_more.keys - found.keys == pytest.approx(CONTEXT * batch * 2 * 1024 * 2 / (0.7 * H100.bandwidth))


def test_more_programs_than_fit_at_once_take_another_wave():
    tile = Tile(outputs=64, lines=128, num_warps=8, num_stages=3)  # two on each of 132 multiprocessors
    one_wave, two_waves = (
        with_tile(H100, 128, Weight(64 * num_programs, 4096, torch.bfloat16, 2), tile) for num_programs in (264, 265)
    )
    assert two_waves > 1.5 * one_wave


def test_the_tile_of_a_prediction_is_the_one_that_is_counted_as_the_fastest():
    weight = Weight(4096, 12288, torch.bfloat16)
    times = [with_tile(H100, 128, weight, tile) for tile in weight.tiles(128)]
    assert product(H100, 128, 4096, 12288, 1) == min(times) < times[0]
