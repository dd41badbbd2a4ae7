"""`python -m benchmarks.decoder` from end to end, on a pair that takes milliseconds."""

import json

import pytest

from benchmarks.decoder.__main__ import main, measure_all
from benchmarks.decoder.options import parse
from benchmarks.decoder.results import Report
from benchmarks.decoder.runners import EngineRunner, Repeat


@pytest.fixture(scope="module")
def report(pair, tmp_path_factory) -> Report:
    """The report of one run over every kind of configuration that needs nothing installed."""
    folder = tmp_path_factory.mktemp("bench")
    arguments = (
        f"--pair {pair} --dtype float32 --repeats 2 --batches 1,3 --new-tokens 12 --prompt-lengths 3-9 --few 2 "
        f"--memory adaptive@3 --json {folder}/bench.json --only plain,fixed-2,adaptive*,transformers*"
    )
    (report,) = measure_all(*parse(arguments.split(), "bench"), "bench")
    written = json.loads((folder / "bench.json").read_text())["results"]
    assert [row["figures"]["efficiency"] for row in written] == [result.efficiency for result in report.results]
    return report


def test_every_configuration_is_measured_at_every_batch_where_it_exists(report):
    labels = {result.label for result in report.results if result.seconds}
    assert {"plain@1", "plain@3", "fixed-2@3", "adaptive@1", "adaptive-ngram@3"} <= labels
    assert {"transformers-looped@1", "transformers-batched@3", "transformers-assisted-4@1"} <= labels
    assert "transformers-batched@1" not in labels
    measured = [result for result in report.results if result.seconds]
    assert {(len(result.seconds), result.num_output_tokens / result.num_rows) for result in measured} == {(2, 12.0)}


def test_all_our_configurations_write_what_transformers_writes_in_float32(report):
    measured = [result for result in report.results if result.seconds]
    assert {(result.equal_to_transformers, result.equal_to_plain) for result in measured} == {(1.0, 1.0)}


def test_the_forwards_alone_are_part_of_the_time(report):
    for result in report.results:
        if result.name in ("plain", "fixed-2", "adaptive"):
            assert result.efficiency > 0
            assert sum(result.raw_draft) > 0 or not result.num_draft_tokens
    assert sum(report.find("plain", 3).raw_draft) == 0
    assert report.find("transformers-looped", 1).efficiency is None


def test_what_a_round_reads_and_starts_is_counted_for_our_configurations(report):
    plain, drafted = report.find("plain", 3), report.find("fixed-2", 3)
    assert plain.bytes_per_round >= report.target_bytes
    assert drafted.bytes_per_round > plain.bytes_per_round
    assert (plain.launches_per_round.replays, drafted.launches_per_round.replays) == (1, 3)
    assert report.find("transformers-batched", 3).launches_per_round is None
    assert plain.roofline_share is None  # of a CPU


@pytest.mark.slow
def test_sampled_rows_with_prompts_of_mixed_lengths_are_as_plain_ones_and_are_recorded(pair, tmp_path):
    arguments = (
        f"--pair {pair} --dtype float32 --repeats 1 --batches 3 --new-tokens 6 --prompt-lengths 3-90 --temperature 0.8 "
        f"--top-p 0.9 --memory none --only plain,fixed-2,transformers-batched --json {tmp_path}/bench.json"
    )
    assert main(arguments.split()) == 0
    written = json.loads((tmp_path / "bench.json").read_text())
    assert (written["options"]["top_p"], written["options"]["prompt_lengths"]) == (0.9, [3, 90])
    assert 3 <= written["prompt_tokens"]["shortest"] < 40 < written["prompt_tokens"]["longest"] <= 90
    _, drafted, theirs = written["results"]
    assert drafted["equal_to_plain"] == 1.0
    assert drafted["launches_per_round"]["replays"] == 3
    assert theirs["num_output_tokens"] == 36


def test_a_timed_pass_that_writes_another_text_is_seen(pair, monkeypatch):
    """Only timed passes run on what is recorded from beginning to end."""
    real, labels = EngineRunner.repeat, []

    def repeat(runner: EngineRunner) -> Repeat:
        labels.append(runner.label)
        found = real(runner)
        if labels.count("fixed-2@3") == 2 and runner.label == "fixed-2@3":
            found.outputs[1][-1] ^= 1
        return found

    monkeypatch.setattr(EngineRunner, "repeat", repeat)
    arguments = (
        f"--pair {pair} --dtype float32 --repeats 2 --batches 3 --prompts 4 --new-tokens 5 --prompt-lengths 3-9 "
        "--memory none --no-raw --reference 2 --only plain,fixed-2"
    )
    (report,) = measure_all(*parse(arguments.split(), "bench"), "bench")
    found = {result.name: (result.equal_to_plain, result.equal_to_transformers) for result in report.results}
    assert found == {"plain": (1.0, 1.0), "fixed-2": (0.75, 0.5)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sweep", "0.5"], "--sweep makes a pair for each acceptance rate"),
        (["--new-tokens", "9999"], "the longest row would have"),
    ],
)
def test_options_that_contradict_the_pair_give_one_line_on_standard_error(pair, arguments, message, capsys):
    assert main(["--pair", str(pair), *arguments]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert errors[-1].startswith("error: ")
    assert message in errors[-1]
