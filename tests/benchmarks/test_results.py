"""Every figure of the report, worked out by hand."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.decoder.counts.work import Work
from benchmarks.decoder.results import share_equal
from benchmarks.harness import write_json
from tests.benchmarks.conftest import MEMORY, made_up, made_up_report


def test_efficiency_is_the_forwards_share_of_each_repeats_time():
    assert made_up().efficiency == pytest.approx((3.0 / 4.0 + 4.0 / 5.0) / 2)  # prefill and draft count


def test_ideal_is_the_run_with_nothing_but_its_forwards():
    result = made_up(raw_target=(2.0, 2.0))
    assert result.ideal_tokens_per_second == pytest.approx(120 / 3.0)
    plain = made_up("plain", raw_target=(6.0, 6.0), raw_draft=(0.0, 0.0), seconds=(9.0, 9.0))
    assert result.ideal_speedup(plain) == pytest.approx(6.5 / 3.0)


def test_the_speed_up_is_paired_by_repeat_and_counts_tokens():
    plain = made_up("plain", seconds=(8.0, 15.0))
    assert made_up().speedup(plain) == pytest.approx((8.0 / 4.0 + 15.0 / 5.0) / 2)
    assert made_up(num_output_tokens=240).speedup(plain) == pytest.approx(2 * 2.5)


def test_acceptance_by_position_is_conditional_and_the_rate_is_not():
    assert made_up().acceptance_by_position == pytest.approx((30 / 40, 25 / 25, 25 / 20))
    assert made_up().acceptance_rate == 0.8
    assert made_up().tokens_per_round == 3.0


def test_the_roofline_is_the_runs_time_on_a_gpu_at_its_limits():
    work = Work(prefill_bytes=500, round_bytes=4000, roofline_seconds=1.5, roofline_round_seconds=1.0)
    result = made_up(work=work)
    assert result.bytes_per_round == 4000 / 10
    assert result.roofline_tokens_per_second == pytest.approx(120 / 1.5)
    assert result.roofline_share == pytest.approx(1.5 / 4.5)
    assert result.round_roofline_share == pytest.approx(1.0 / 4.0), "without the prefill of half a second"
    unknown = made_up(
        work=Work(prefill_bytes=500, round_bytes=4000, roofline_seconds=None, roofline_round_seconds=None)
    )
    assert (unknown.bytes_per_round, unknown.roofline_share) == (400, None)


def test_a_report_in_json_has_everything_and_the_figures(tmp_path):
    report = made_up_report(made_up("plain"), made_up(memory=MEMORY, equal_to_plain=0.5), pair=Path("out"))
    write_json(tmp_path / "out" / "bench.json", report.to_dict())
    found = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert found["format"] == 1
    assert found["options"]["pair"] == "out"
    result, figures = found["results"][1], found["results"][1].pop("figures")
    assert result == json.loads(json.dumps(asdict(report.results[1])))
    assert figures["efficiency"] == report.results[1].efficiency


def test_the_share_of_equal_rows_is_over_the_rows_both_have():
    assert share_equal([[1, 2], [3, 4], [5, 6]], [[1, 2], [3, 9]]) == 0.5
    assert share_equal([[1]], []) is None
