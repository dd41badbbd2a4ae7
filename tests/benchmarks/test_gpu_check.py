"""The check-up of a GPU without one: which parts run, what is kept of them, and how they are judged."""

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.decoder.counts.work import Work
from benchmarks.decoder.options import parse
from benchmarks.gpu_check import findings, table
from benchmarks.gpu_check.__main__ import main, run_missing
from benchmarks.gpu_check.parts import MINIATURE, PARTS, Part, select
from benchmarks.gpu_check.progress import counts_so_far
from benchmarks.gpu_check.results import PartResult, keep, read_results
from benchmarks.gpu_check.round_profile import Event, predicted_seconds, summary
from tests.benchmarks.conftest import made_up, made_up_report

DECODER_PARTS = [part for part in MINIATURE if part.line.startswith("benchmarks.decoder ")]


def part(name: str, *words: str, needs_gpu: bool = False) -> Part:
    """A part that does what `tests/benchmarks/some_part.py` is told."""
    return Part(
        name=name,
        asks="something",
        line=shlex.join(["tests.benchmarks.some_part", "{measured}", *words]),
        needs_gpu=needs_gpu,
        judge=lambda measured, kept: iter([findings.Finding("a number", str(measured["number"]), "1", True)]),
    )


def run(parts: list[Part], folder: Path, **options: Any) -> dict[str, PartResult]:
    run_missing(parts, folder, folder / "pairs", **{"limit_seconds": 60.0, "again": False, "gpu": True, **options})
    return read_results(folder)


def test_a_part_that_has_run_is_not_run_again_unless_that_is_asked_for(tmp_path):
    diary = tmp_path / "diary"
    parts = [part("first", f"tell={diary}"), part("second", "write", f"tell={diary}")]
    run(parts[1:], tmp_path)
    assert diary.read_text() == "."
    kept = run(parts, tmp_path)
    assert diary.read_text() == ".."
    assert (kept["second"].status, kept["second"].measured) == ("done", {"number": 1})
    run(parts, tmp_path, again=True)
    assert diary.read_text() == "...."


def test_a_part_that_fails_is_kept_with_the_reason_and_the_next_one_runs(tmp_path):
    kept = run([part("bad", "say=it broke", "fail"), part("good", "write")], tmp_path)
    assert (kept["bad"].status, kept["bad"].why) == ("failed", "exit code 3: it broke")
    assert kept["good"].status == "done"
    assert run([part("bad", "write")], tmp_path)["bad"].status == "failed", "it would fail again"


def test_a_part_that_takes_too_long_is_ended_and_what_it_has_told_is_kept(tmp_path):
    said = "repeat 1/2: plain@64 7,312.0 tokens/s"
    kept = run([part("long", f"say={said}", f"pid={tmp_path}/pid", "hang")], tmp_path, limit_seconds=3.0)["long"]
    assert (kept.status, kept.why) == ("stopped", f"stopped after 3 s: {said}")
    assert kept.measured == {"speeds_so_far": {"plain@64": 7312.0}}
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text()}").exists()


def test_a_part_that_was_killed_together_with_the_check_up_runs_again(tmp_path):
    (tmp_path / "killed.log").write_text("half of it")
    (tmp_path / "killed.measured.json").write_text('{"number":')
    (tmp_path / "killed.json.part").write_text('{"part":')
    assert run([part("killed", "write")], tmp_path)["killed"].measured == {"number": 1}


def test_what_needs_a_gpu_is_not_measured_without_one_and_runs_when_there_is_one(tmp_path):
    parts = [part("fast", "write", needs_gpu=True), part("right", "write")]
    kept = run(parts, tmp_path, gpu=False)
    assert (kept["fast"].status, kept["right"].status) == ("not measured", "done")
    assert "not measured: no GPU" in "\n".join(table.lines(parts, kept))
    assert table.is_as_wanted(parts, kept)
    assert run(parts, tmp_path)["fast"].status == "done"
    assert run(parts, tmp_path, gpu=False)["fast"].status == "done", "what was measured stays"


def test_without_a_gpu_the_check_up_says_what_it_can_do_instead(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["--out", str(tmp_path)]) == 2
    assert "--miniature runs what can run without one" in capsys.readouterr().err
    assert main(["--out", str(tmp_path), "--part", "speed-65"]) == 2
    assert "no part is called 'speed-65'; the names are environment, tests-bfloat16" in capsys.readouterr().err
    for limit in ("0", "-1", "nan"):
        assert main(["--out", str(tmp_path), "--limit", limit]) == 2
        assert "--limit must be above 0 seconds, got" in capsys.readouterr().err


@pytest.mark.parametrize("measuring", DECODER_PARTS, ids=[part.name for part in DECODER_PARTS])
def test_the_benchmark_takes_each_command(measuring, tmp_path):
    command = measuring.command(tmp_path / "measured.json", tmp_path)
    assert command[:3] == [sys.executable, "-m", "benchmarks.decoder"]
    options, given = parse(command[3:], "bench")
    assert given.json == tmp_path / "measured.json"
    assert options.device == ("cuda" if measuring.needs_gpu else "cpu")
    assert not any("{" in word for word in command)


def test_parts_are_named_once_and_the_miniature_has_all_that_the_check_up_has():
    names = [part.name for part in PARTS]
    assert len(set(names)) == len(names)
    assert set(names) < {part.name for part in MINIATURE}
    assert [part.name for part in select(PARTS, ["speed-*", "environment"])][:2] == ["environment", "speed-64"]
    (speed,) = select(PARTS, ["speed-128"])
    assert speed in MINIATURE


def measured(*results: Any, **options: object) -> dict[str, Any]:
    """What a part that measured these results has kept."""
    report = made_up_report(*results, **options)
    return json.loads(json.dumps(report.to_dict(), default=lambda value: vars(value)))


def verdicts(name: str, **kept: dict[str, Any] | None) -> dict[str, str]:
    """The verdicts on what a part found, by what was asked of it; keys name parts, with _ for -."""
    results = {
        key.replace("_", "-"): PartResult(part=key.replace("_", "-"), status="done", measured=value)
        for key, value in kept.items()
    }
    (judged,) = select(PARTS, [name])
    found = judged.judge(results[name].measured, results)
    return {finding.what: str(finding.is_met) for finding in found if finding.wanted}


def at(batch: int, **changes: Any) -> Any:
    """Plain and adaptive results; by default adaptive is twice as fast, and plain takes 4.0 s for its rounds."""
    work = Work(prefill_bytes=1, round_bytes=1, roofline_seconds=1.0, roofline_round_seconds=changes.pop("least", 3.4))
    plain = made_up("plain", batch, work=work, seconds=(4.5, 4.5), equal_to_plain=1.0, num_draft_tokens=0)
    return measured(plain, made_up("adaptive", batch, **{"seconds": (2.25, 2.25), "equal_to_plain": 1.0, **changes}))


@pytest.mark.parametrize(("least", "verdict"), [(3.21, "True"), (3.19, "False"), (None, "None")])
def test_plain_decoding_must_reach_four_fifths_of_its_ideal(least, verdict):
    assert verdicts("speed-128", speed_128=at(128, least=least))["plain@128 of its ideal"] == verdict


def test_texts_of_products_that_promise_nothing_are_told_and_not_judged():
    plain, drafted = made_up("plain", 64, equal_to_plain=1.0), made_up("fixed-2", 64, equal_to_plain=0.5)
    found = verdicts("speed-64-library", speed_64_library=measured(plain, drafted, exact="off"))
    assert "rows as plain decoding writes them" not in found


@pytest.mark.parametrize(("name", "ratio"), [("speed-64-ragged", 0.9), ("speed-64-top-p", 0.95)])
def test_prompts_and_sampling_are_compared_round_for_round_with_the_greedy_part(name, ratio):
    """In the first case nothing is accepted: the tokens a second fall, the rounds a second do not."""
    key = name.replace("-", "_")
    base = measured(made_up("fixed-2", 64, seconds=(4.0,), num_rounds=40))
    for change, verdict in ((1.0, "True"), (ratio + 0.01, "True"), (ratio - 0.01, "False")):
        own = measured(made_up("fixed-2", 64, seconds=(12.0 / change,), num_rounds=120, equal_to_plain=1.0))
        found = verdicts(name, speed_64=base, **{key: own})
        (asked,) = [what for what in found if what.startswith("fixed-2@64, rounds/s over")]
        assert found[asked] == verdict
    alone = verdicts(name, **{key: base})
    assert [verdict for what, verdict in alone.items() if "rounds/s" in what] == ["None"]


def test_versions_that_are_too_old_are_a_failure():
    versions = {"python": "3.12.1", "torch": "2.11.0+cu130", "triton": "3.6.0", "transformers": "5.17.0", "ray": None}
    for name, old in (("torch", "2.10.1"), ("triton", "3.5.9"), ("transformers", None)):
        for version, verdict in ((versions[name], True), (old, False)):
            machine = {"versions": versions | {name: version}, "nvidia_smi": None}
            found = {finding.what: finding for finding in findings.of_environment(machine, {})}
            assert found["versions"].is_met is verdict
    assert "ray absent" in found["versions"].found


@pytest.mark.parametrize(("batch", "least"), [(32, 1.6), (64, 1.5), (128, 1.3)])
def test_speculation_must_be_this_much_faster_than_plain_decoding(batch, least):
    name, asked = f"speed-{batch}", f"adaptive@{batch} over plain"
    fast_enough, too_slow = 4.5 / (least + 0.01), 4.5 / (least - 0.01)
    for seconds, verdict in ((fast_enough, "True"), (too_slow, "False")):
        found = verdicts(name, **{name.replace("-", "_"): at(batch, seconds=(seconds, seconds))})
        assert found[asked] == verdict


@pytest.mark.parametrize(("share", "verdict"), [(1.0, "True"), (0.99, "False")])
def test_one_row_that_is_not_as_plain_decoding_writes_it_is_a_failure(share, verdict):
    for name in ("speed-64", "equal-bfloat16"):
        found = verdicts(name, **{name.replace("-", "_"): at(64, equal_to_plain=share)})
        assert found["rows as plain decoding writes them"] == verdict


def test_tests_are_counted_by_the_log_as_far_as_it_goes(tmp_path):
    log = tmp_path / "log"
    log.write_text(
        "collecting ... collected 9 items / 2 deselected / 7 selected\n\n"
        "tests/gpu/test_text.py::test_text[a - b] PASSED                [ 14%]\n"
        "tests/gpu/test_text.py::test_text[c] FAILED                    [ 28%]\n"
        "tests/gpu/test_device.py::test_it SKIPPED (only a GPU)         [ 42%]\n"
    )
    counts = counts_so_far(tmp_path / "none", log)
    assert counts == {"collected": 7, "passed": 1, "skipped": 1, "failed": ["tests/gpu/test_text.py::test_text[c]"]}
    (told, failed) = findings.of_tests(counts, {})
    assert (told.found, told.is_met) == ("1 passed, 1 skipped, 1 failed of 7", False)
    assert failed.found == "test_text.py::test_text[c]"
    (unfinished,) = findings.of_tests(counts | {"failed": []}, {})
    assert unfinished.is_met is False, "four were not run"
    (whole,) = findings.of_tests({"collected": 2, "passed": 1, "skipped": 1, "failed": []}, {})
    assert whole.is_met is True
    (none,) = findings.of_tests({"collected": 2, "passed": 0, "skipped": 2, "failed": []}, {})
    assert none.is_met is None


def test_the_table_fits_a_hundred_columns_and_counts_its_verdicts(tmp_path):
    for name, status, found in (
        ("speed-128", "done", at(128)),
        ("speed-64", "stopped", {"speeds_so_far": {"plain@64": 7000.0}}),
        ("speed-32", "failed", None),
    ):
        started = "2026-11-23 10:00"
        why = "" if status == "done" else f"{status} for {'a very long reason, ' * 9}"
        keep(PartResult(part=name, status=status, why=why, measured=found, seconds=312.4, started=started), tmp_path)
    lines = list(table.lines(PARTS, read_results(tmp_path)))
    assert max(map(len, lines)) <= 100
    text = re.sub(r"\s+", " ", " ".join(lines))
    assert "done in 312 s on 2026-11-23 10:00 UTC" in text
    assert "plain@64 7,000 tokens/s" in text
    assert not table.is_as_wanted(PARTS, read_results(tmp_path))
    (passed, failed, unknown) = map(int, re.findall(r"\d+", lines[-1]))
    assert (passed, failed) == (3, 2)
    assert unknown == len(PARTS) - 3


def test_a_profile_tells_the_share_of_the_time_in_which_the_gpu_works():
    work = [("gemm", 0, 40), ("gemm", 30, 50), ("norm", 60, 70)]
    events = [Event(name, True, start, end) for name, start, end in work]
    calls = ["cudaGraphLaunch"] * 4 + ["cuLaunchKernelEx"] * 6 + ["cudaMemcpyAsync"] * 2 + ["cudaEventSynchronize"] * 2
    events += [Event(name, False, 0, 1) for name in [*calls, "aten::add"]]
    found = summary(events, num_rounds=2, seconds=100e-6)
    assert found["busy_share"] == pytest.approx(0.6)
    assert found["seconds_per_round"] == pytest.approx(50e-6)
    rates = {name: found[f"{name}_per_round"] for name in ("waits", "replays", "launches")}
    assert rates == {"waits": 1.0, "replays": 2.0, "launches": 4.0}
    assert [(kernel["name"], kernel["per_round"]) for kernel in found["kernels"]] == [("gemm", 1.0), ("norm", 0.5)]
    assert found["kernels"][0]["share"] == pytest.approx(60 / 70)
    found |= {"drafted": 2, "tokens_per_round": 3.0, "prompt_tokens_per_second": 9e3}
    busy, prompts, waits, launches, *_ = findings.of_profile({"profiles": [found]}, {})
    assert busy.found == "0.05 ms, 60,000 tokens/s, the GPU works for 60%"
    assert prompts.found == "9,000 tokens/s"
    assert (waits.is_met, launches.is_met) == (True, True)
    found |= {"waits_per_round": 2.0, "launches_per_round": 61.0}
    _, _, waits, launches, *_ = findings.of_profile({"profiles": [found]}, {})
    assert (waits.is_met, launches.is_met) == (False, False)
    found["predicted_seconds"] = 40e-6
    _, predicted, *_ = findings.of_profile({"profiles": [found]}, {})
    assert predicted.found == "0.04 ms; it takes +25%"


def test_the_profiled_round_of_a_gpu_is_predicted_and_that_of_an_unknown_one_is_not():
    assert predicted_seconds("NVIDIA H100 80GB HBM3", 64) == pytest.approx(10.1e-3, rel=0.02)  # docs/log.md
    assert predicted_seconds("a GPU without limits", 64) is None


def test_a_tile_that_another_one_beats_is_named():
    tiles = [{"tile": [64, 128, 4, 3], "us": 80.0, "is_same": True}]
    product = {"product": "qkv", "lines": 128, "library_us": 70.0, "present": [64, 128, 8, 3], "tiles": tiles}
    attention = {"rows": 64, "tokens": 1, "gb": 0.3, "present_us": 100.0, "tiles": tiles}
    measured = {"products": [product | {"present_us": 83.0}, product | {"present_us": 90.0}], "attention": [attention]}
    good, poor, bits, attended = findings.of_kernels(measured, {})
    assert (bits.found, bits.is_met) == ("none", True)
    assert good.found == "83 us; [64, 128, 8, 3], by the clock; 70 us, the library"
    assert poor.found == "90 us; [64, 128, 8, 3], by the clock; 70 us, the library; 80 us with [64, 128, 4, 3]"
    assert attended.found.startswith("100 us; 3,000 GB/s; 80 us")


def test_a_tile_of_a_product_that_gives_other_bits_is_a_failure():
    tiles = [
        {"tile": [64, 128, 4, 3], "us": 80.0, "is_same": True},
        {"tile": [64, 128, 8, 4], "us": 90.0, "is_same": False},
    ]
    times = {"library_us": 70.0, "present": [64, 128, 4, 3], "present_us": 83.0}
    product = {"product": "qkv", "lines": 128, **times, "tiles": tiles}
    _, bits = findings.of_kernels({"products": [product], "attention": []}, {})
    assert (bits.found, bits.is_met) == ("qkv@128", False)
