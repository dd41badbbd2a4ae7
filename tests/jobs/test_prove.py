"""`jobs.prove` compares every setting with transformers' own code, and says what differs."""

import json
from pathlib import Path

import pytest

from jobs import generate, prove
from jobs.proving import placed
from tests.jobs.runs import arguments, prompts, write_jsonl

SMALL = ("--prove.num_prompts=5", "--prove.draft_lengths=3", "--prove.num_slots=3", "--prove.asked=nothing")


@pytest.fixture
def command(tmp_path: Path, text_pair: tuple[str, str]) -> list[str]:
    write_jsonl(tmp_path / "in.jsonl", prompts(8))
    return arguments(tmp_path / "in.jsonl", tmp_path / "out", text_pair, *SMALL)


def test_every_drafter_and_temperature_is_compared_and_the_result_is_written(command, tmp_path, capsys):
    path = tmp_path / "proof.json"
    more = (f"--prove.json_path={path}", "--prove.temperatures=0", "--prove.temperatures=0.8")
    assert prove.main([*command, *more]) == 0
    printed, result = capsys.readouterr().out, json.loads(path.read_text())
    assert "identical: " in printed
    assert f"{result['num_tokens']:,} tokens in {result['num_settings']} settings, 0 different" in printed
    assert {finding["setting"]["drafter"] for finding in result["findings"]} == {
        "none", "ngram", "suffix", "model", "hybrid",
    }  # fmt: skip
    assert result["num_settings"] == 2 * (1 + 4 * 2)
    assert result["num_tokens"] > 500
    assert not (tmp_path / "out").exists(), "a proof writes no run"


def test_a_dry_run_says_what_would_be_compared_and_loads_no_model(command, capsys, monkeypatch):
    monkeypatch.setattr("jobs.work.proof.Proof", None)
    assert prove.main([*command, "--dry-run", "--prove.drafters=ngram"]) == 0
    assert "with the target alone, then with ngram in" in capsys.readouterr().out


@pytest.mark.usefixtures("lenient_verifier")
def test_a_verifier_that_accepts_what_it_must_not_is_found_out(command, capsys):
    assert prove.main([*command, "--prove.drafters=ngram", "--sampling.temperature=0"]) == 1
    printed = capsys.readouterr().out
    assert "NOT IDENTICAL" in printed
    assert "first difference of ngram: row" in printed
    assert "logits apart" in printed


@pytest.mark.ray
@pytest.mark.usefixtures("ray_address")
@pytest.mark.parametrize(
    ("flags", "where"),
    [
        (("--placement=split", "--drafts.num_cpus=0.5", "--drafts.timeout_s=30"), "draft actors"),
        pytest.param(("--stages.count=2", "--stages.num_cpus=0.5"), "2 stages", marks=pytest.mark.slow),
    ],
)
def test_an_engine_with_its_models_where_the_run_puts_them_is_compared_too(flags, where, command, tmp_path):
    path = tmp_path / "proof.json"
    few = ("--prove.drafters=none", "--prove.asked=mixed", "--prove.every_setting", "--engine.draft_length=fixed")
    assert prove.main([*command, *flags, *few, f"--prove.json_path={path}"]) == 0
    findings = json.loads(path.read_text())["findings"]
    assert [finding["asked"] for finding in findings] == ["nothing", "nothing", "mixed", "mixed"]
    for here, there in (findings[:2], findings[2:]):
        assert (here["setting"]["where"], there["setting"]["where"]) == ("one process", where)
        assert there["num_tokens"] == here["num_tokens"] > 40
        assert there["num_draft_tokens"] > 0


@pytest.mark.ray
@pytest.mark.usefixtures("ray_address")
def test_an_engine_that_cannot_be_placed_is_told_before_anything_is_compared(command, capsys, monkeypatch):
    flags = ("--stages.count=2", "--stages.num_cpus=1000", "--run.no_progress_timeout_s=5")
    monkeypatch.setattr(placed, "_PATIENCE_S", 0.1)
    assert prove.main([*command, *flags, "--prove.drafters=none"]) == 1
    printed = capsys.readouterr()
    assert "identical" not in printed.out
    assert "error: the engine cannot be loaded as the run loads it: " in printed.err
    assert "1000 CPU" in printed.err


def test_the_target_alone_writes_in_slots_of_its_own(command, tmp_path, capsys):
    """The last row of a case begins as the first one of the next case does, which then goes on from there."""
    texts = ["hello world " * 12, "a world ", "b hello ", "c ", "hello world " * 12 + "hello"]
    write_jsonl(tmp_path / "in.jsonl", [{"id": text, "kind": "a", "prompt": text} for text in texts])
    more = ("--models.dtype=bfloat16", "--prove.drafters=none", "--prove.asked=[nothing,stop]")
    prove.main([*command, *more])  # what the kernels promise in bfloat16 depends on the processor
    assert "0 different" in capsys.readouterr().out


def test_a_run_that_exists_gets_the_proof_in_its_report(command, tmp_path):
    run = [word for word in command if not word.startswith("--prove.")]
    assert generate.main([*run, "--run.local"]) == 0
    assert prove.main([*command, "--prove.drafters=none"]) == 0
    proof = json.loads((tmp_path / "out/report.json").read_text())["proof"]
    assert (proof["num_prompts"], proof["asked"], proof["num_different_rows"]) == (5, ["nothing"], 0)


def test_rows_that_cannot_be_written_or_asked_for_it_are_left_out_and_without_a_row_a_proof_is_refused(
    command, tmp_path, capsys
):
    long = {"id": "long", "kind": "a", "prompt": "word " * 400}
    own = {"id": "own", "kind": "a", "prompt": "hello", "sampling": {"ignore_eos": True}}
    command = [*command, "--prove.drafters=none", "--prove.asked=choice", "--engine.max_model_len=100"]
    write_jsonl(tmp_path / "in.jsonl", [long, {"id": "none"}, own, *prompts(3)])
    assert prove.main(command) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.count("is left out: ") == 3
    assert "row 3 of the input, with choice asked of it, is left out: sampling.ignore_eos is True" in printed
    assert "identical: " in printed
    write_jsonl(tmp_path / "in.jsonl", [own])
    assert prove.main(command) == 2
    assert "prove.asked has 'choice', and no row of the input can be written with it" in capsys.readouterr().err
    write_jsonl(tmp_path / "in.jsonl", [long])
    assert prove.main(command) == 2
    assert "no row of the input can be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("verification", "why"),
    [
        ("rejection", "keeps the distribution of the target and not its tokens"),
        ("unadjusted", "keeps neither the tokens of the target nor its distribution"),
    ],
)
def test_only_coupled_can_be_compared_token_by_token(command, capsys, verification, why):
    assert prove.main([*command, f"--engine.verification={verification}"]) == 2
    assert f"engine.verification is '{verification}', which {why}; only 'coupled' can be" in capsys.readouterr().err
