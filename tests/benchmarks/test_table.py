"""The report as text."""

import pytest

from benchmarks.decoder.counts.launches import Launches
from benchmarks.decoder.counts.work import Work
from benchmarks.decoder.table import HEADINGS, ROUND_HEADINGS, cells, round_rows, sweep_rows
from tests.benchmarks.conftest import MEMORY, made_up, made_up_report

PLAIN = made_up("plain", seconds=(8.0, 10.0), raw_draft=(0.0, 0.0), raw_target=(6.0, 7.5))


def test_a_row_has_a_cell_for_every_heading():
    report = made_up_report(PLAIN, made_up(memory=MEMORY))
    found = dict(zip(HEADINGS, cells(report, report.results[1]), strict=True))
    assert found["tokens/s"] == "26.7"
    assert found["x plain"] == "2.00"
    assert found["efficiency"] == "0.78"
    assert found["a round"] == "3.00"
    assert found["memory"] == "1.15"
    assert found["by position"] == ".75 1.00 1.25"


def test_the_share_of_the_roofline_stands_beside_the_measured_speed():
    work = Work(prefill_bytes=500, round_bytes=4e9, roofline_seconds=1.5, roofline_round_seconds=1.0)
    launches = Launches(launches=1026.5, replays=5, host_syncs=11)
    report = made_up_report(made_up(work=work, launches_per_round=launches), made_up("plain"))
    found = dict(zip(HEADINGS, cells(report, report.results[0]), strict=True))
    assert found["roofline"] == "33%"
    (row,) = round_rows(report)
    assert dict(zip(ROUND_HEADINGS, row, strict=True)) == {
        "configuration": "adaptive",
        "batch": "4",
        "GB a round": "0.400",
        "launches": "1,026",
        "replays": "5",
        "host syncs": "11",
        "roofline/s": "80.0",
        "tokens/s": "26.7",
        "share": "33%",
    }


def test_adaptive_is_compared_with_the_best_fixed_length_of_the_draft_model():
    fixed = [
        made_up("fixed-2", seconds=(5.0, 6.0)),
        made_up("fixed-3", seconds=(3.0, 4.0)),
        made_up("fixed-4-ngram", seconds=(1.0, 1.0)),
    ]
    report = made_up_report(PLAIN, made_up(), *fixed)
    (row,) = sweep_rows([report])
    assert row[3] == "fixed-3"
    assert row[6] == "2.50"  # draft tokens a round
    assert float(row[7]) == pytest.approx((3 / 4 + 4 / 5) / 2, abs=0.001)
