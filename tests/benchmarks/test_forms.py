"""What a form costs can be measured; a grown target writes the same."""

import json

import pytest

from benchmarks import forms
from checks import tables
from decoding import Engine, EngineOptions, SamplingParams, Sequence
from decoding.turns import one_repeat
from jobs.work.tuning.engine_turns import engine_way


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_grown_target_writes_what_the_target_writes_and_has_more_weights(tmp_path, temperature):
    grown = forms.grow(forms.PAIR / "target", tmp_path / "grown", 3)
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
    shown = tables.forms_table([found])
    assert shown.count("\n| bundled | 2 |") == 2


def test_no_round_is_timed_in_which_a_slot_is_empty():
    options = EngineOptions(drafter="none", num_slots=2)
    engine = Engine.load(str(forms.PAIR / "target"), options=options, device="cpu", dtype="float32")
    lengths = (3, 4, 12)  # two rows at once: the last one is alone behind six rounds
    rows = [
        Sequence.create(request.prompt, SamplingParams(max_tokens=length), run_seed=0, row=0)
        for request, length in zip(forms.requests(), lengths, strict=False)
    ]
    found = one_repeat({"no form": engine_way(lambda: engine, lambda _: rows, least_rows=2)}, 0)["no form"]
    assert len(rows[2].output_token_ids) == 12
    assert found.done < 3 + 4 + 12
    assert found.num_rounds <= 6
