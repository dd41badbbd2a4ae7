"""What a form costs, as it was measured, and that it can be measured again; a grown target writes the same."""

import json

import pytest

from benchmarks import forms
from benchmarks.grown_target import grow
from checks import figures
from decoding import Engine, EngineOptions, SamplingParams, Sequence

BUNDLED, FIXED, GROWN = (json.loads(path.read_text()) for path in figures.FORMS)


@pytest.mark.parametrize("at_once", [4, 16])
def test_a_schema_costs_at_most_a_twentieth_of_the_bundled_pairs_speed(at_once):
    (schema,) = [line for line in BUNDLED["lines"] if _is(line, rows_at_once=at_once, drafter="none", output="schema")]
    assert schema["times_no_form"] >= 0.95


def test_at_4_rows_of_the_bundled_pair_forced_tokens_bring_1_2_times_tokens_a_round_without_white_space_and_save_time():
    for drafter in ("suffix", "model"):
        (tight,) = [
            line for line in BUNDLED["lines"] if _is(line, rows_at_once=4, drafter=drafter, output="tight schema")
        ]
        assert tight["tokens_a_round_times_not_forced"] >= 1.2
        assert tight["times_not_forced"] > 1


@pytest.mark.parametrize("output", ["schema", "tight schema"])
def test_where_lengths_are_fixed_forced_tokens_bring_a_lookup_1_2_times_tokens_a_round(output):
    lines = [line for line in FIXED["lines"] if _is(line, drafter="ngram", output=output)]
    assert {line["rows_at_once"] for line in lines} == {4, 16}
    for line in lines:
        assert line["tokens_a_round_times_not_forced"] >= 1.2
        assert line["times_not_forced"] > 1
        assert line["times_no_form"] > 1


def _is(line: dict[str, object], **wanted: object) -> bool:
    return all(line[name] == value for name, value in wanted.items())


def test_beside_the_forward_of_a_larger_model_a_schema_costs_at_most_a_twentieth_of_the_speed():
    grown = [line for line in GROWN["lines"] if line["grown"] > 1 and line["drafter"] == "none"]
    (schema,) = [line for line in grown if line["output"] == "schema"]
    assert schema["times_no_form"] >= 0.95


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_grown_target_writes_what_the_target_writes_and_has_more_weights(tmp_path, temperature):
    grown = grow(forms.PAIR / "target", tmp_path / "grown", 3)
    prompts = [request.prompt for request in forms.requests()[:4]]
    params, options = SamplingParams(temperature=temperature, max_tokens=24), EngineOptions(drafter="none", num_slots=4)
    texts, widths = [], []
    for target in (forms.PAIR / "target", grown):
        engine = Engine.load(str(target), options=options, device="cpu", dtype="float32")
        texts.append([row.output_token_ids for row in engine.generate(prompts, params)])
        widths.append((target / "model.safetensors").stat().st_size)
    assert texts[0] == texts[1]
    assert widths[1] > 1.5 * widths[0]


def test_the_benchmark_measures_each_output_while_all_slots_are_in_use(tmp_path, capsys):
    few = ["--one-in", "10", "--answers", "1", "--new-tokens", "40", "--repeats", "1", "--batches", "2"]
    forms.main([*few, "--drafters", "none,ngram", "--json", str(tmp_path / "found.json")])
    assert "by CPU time" in capsys.readouterr().out
    found = json.loads((tmp_path / "found.json").read_text())
    outputs = {(line["drafter"], line["output"]): line for line in found["lines"]}
    assert set(outputs) == {("ngram", output) for output in forms.OUTPUTS} | {
        ("none", output) for output in ("no form", "schema", "tight schema")
    }
    assert outputs["none", "schema"]["tokens_a_round"] == 1
    assert outputs["ngram", "tight schema"]["tokens_a_round_times_not_forced"] > 0
    assert set(found["compile_seconds"]) == set(forms.SCHEMAS)
    shown = figures.forms_table([found])
    assert shown.count("\n| bundled | 2 |") == 2


def test_no_round_is_timed_in_which_a_slot_is_empty():
    options = EngineOptions(drafter="none", num_slots=2)
    way = forms.Way("no form", Engine.load(str(forms.PAIR / "target"), options=options, device="cpu", dtype="float32"))
    lengths = (3, 4, 12)  # two rows at once: the last one is alone behind six rounds
    rows = [
        Sequence.create(request.prompt, SamplingParams(max_tokens=length), run_seed=0, row=0)
        for request, length in zip(forms.requests(), lengths, strict=False)
    ]
    way.begin(rows)
    while way.is_full:
        way.take_turn()
    assert len(rows[2].output_token_ids) < 12
    num_rounds, seconds = way.num_rounds[0], way.seconds[0]
    way.end()
    assert len(rows[2].output_token_ids) == 12
    assert (way.num_rounds, way.seconds) == ([num_rounds], [seconds])
    assert way.tokens[0] < sum(lengths)
