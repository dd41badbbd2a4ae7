"""`jobs.generate` on a real Ray, with real models and real Parquet."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest

from jobs import generate, verify
from jobs.config.run import load_config
from jobs.driver.plan import create_run, make_plan
from tests.jobs.runs import arguments, commits, content, errors, generations, problems, prompts, wait_until, write_jsonl

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_address")]
Pair = tuple[str, str]
MIXED = ("--run.seed=1", "--run.max_error_rate=1")

ODD_SAMPLING = [
    {"n": "3"},
    {"n": 2**31 - 1},
    {"temperature": "hot"},
    {"stop": None},
    {"stop": [""]},
    {"logit_bias": {"x": 1}},
    {"logit_bias": {"99999": 1}},
    {"stop_token_ids": [2**70]},
    {"seed": 2**100},
    {"max_tokens": 0},
    ["not", "an", "object"],
    "not json",
]
ODD_MESSAGES = [
    [],
    [1],
    [{"role": 3, "content": "x"}],
    [{"role": "user", "content": ["parts"]}],
    '[{"role": "\\ud800", "content": "x"}]',
    {"role": "user"},
]
MIXED_ROWS: list[Any] = [
    *prompts(20),
    "{not json",
    {"id": "no-prompt", "kind": "a"},
    {"id": "wrong-type", "kind": "a", "prompt": 5},
    {"id": "empty", "kind": "a", "prompt": ""},
    {"id": "too-long", "kind": "a", "prompt": "hello " * 400},
    {"id": "bad-override", "kind": "a", "prompt": "hello", "sampling": {"temperature": -1}},
    {"id": "unknown-override", "kind": "a", "prompt": "hello", "sampling": {"temprature": 1}},
    {"id": "bad-messages", "kind": "a", "messages": [{"role": "user"}]},
    {"id": "fine", "kind": "a", "prompt": "hello", "sampling": {"n": 3, "max_tokens": 2}},
    *({"id": f"sampling-{i}", "kind": "a", "prompt": "hello", "sampling": s} for i, s in enumerate(ODD_SAMPLING)),
    *({"id": f"messages-{i}", "kind": "a", "messages": m} for i, m in enumerate(ODD_MESSAGES)),
    {"id": {"nested": [1]}, "kind": "a", "prompt": "hello"},
    '{"id": "surrogate", "kind": "a", "prompt": "half \\ud83d"}',
    '{"id": "\\ud800", "kind": "a", "prompt": "hello"}',
    '{"id": "nan", "kind": "a", "prompt": "hello", "sampling": {"temperature": NaN}}',
    "[1, 2]",
    "null",
]


@pytest.fixture(scope="module")
def mixed_run(tmp_path_factory: pytest.TempPathFactory, text_pair: Pair, ray_address: str) -> Path:
    """Return a folder with in.jsonl, whose rows are good, bad and odd, and the run over it in out/."""
    folder = tmp_path_factory.mktemp("mixed")
    source = write_jsonl(folder / "in.jsonl", MIXED_ROWS)
    assert generate.main(arguments(source, folder / "out", text_pair, *MIXED)) == 0
    return folder


def test_every_row_comes_back_exactly_once_in_data_or_in_errors(mixed_run: Path) -> None:
    output = mixed_run / "out"
    data, dead = generations(output), errors(output)
    ids = [row["row_id"] for row in data if row["sample"] == 0] + [row["row_id"] for row in dead]
    assert sorted(ids) == sorted(set(ids))
    assert len(ids) == len(MIXED_ROWS)
    assert [row["id"] for row in data][:23] == [f"row-{i}" for i in range(20)] + ["fine"] * 3
    assert [row["sample"] for row in data[20:23]] == [0, 1, 2]
    stages = {row["id"]: row["stage"] for row in dead if row["row_number"] < 29}
    assert stages == {
        None: "read",
        "no-prompt": "read",
        "wrong-type": "read",
        "empty": "encode",
        "too-long": "generate",
        "bad-override": "params",
        "unknown-override": "params",
        "bad-messages": "template",
    }
    assert all(row["message"] for row in dead)
    assert problems(output) == []
    assert verify.main([str(output)]) == 0
    report = json.loads((output / "report.json").read_text())
    assert report["complete"]
    assert (report["counts"]["num_generations"], report["counts"]["num_errors"]) == (len(data), len(dead))


def test_another_seed_writes_another_corpus_and_running_again_does_nothing(
    mixed_run: Path, text_pair: Pair, plain_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = mixed_run / "out"
    texts = [row["token_ids"] for row in generations(output)[:20]]
    others = generations(plain_run / "out")[:20]
    assert [row["id"] for row in others] == [f"row-{i}" for i in range(20)]
    assert texts != [row["token_ids"] for row in others]
    before = commits(output)
    assert generate.main(arguments(mixed_run / "in.jsonl", output, text_pair, *MIXED)) == 0
    assert commits(output) == before
    assert "Nothing left to do" in capsys.readouterr().out


def test_only_a_damaged_part_is_generated_again(
    tmp_path: Path, plain_run: Path, text_pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    shutil.copytree(plain_run / "out", output)
    command = arguments(plain_run / "in.jsonl", output, text_pair)
    whole, before = content(output), commits(output)
    part = output / "data/part-000000001.parquet"
    part.write_bytes(part.read_bytes()[:-20])
    assert generate.main(command) == 1
    assert "part-000000001" in capsys.readouterr().err
    assert not (output / "_SUCCESS").exists()
    part.unlink()
    assert verify.main([str(output)]) == 1
    assert generate.main(command) == 0
    assert (output / "_SUCCESS").exists()
    assert content(output) == whole
    after = commits(output)
    assert {name for name in before if before[name] != after[name]} == {"part-000000001.parquet"}


@pytest.mark.slow  # tests/faults/test_driver_kills.py kills one in every run of the tests
def test_a_driver_killed_halfway_resumes_to_the_same_corpus(tmp_path: Path, text_pair: Pair, ray_address: str) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", prompts(96))
    undisturbed, output = tmp_path / "undisturbed", tmp_path / "out"
    slow = ("--sampling.max_tokens=60", "--engine.num_slots=4", "--actors.units_in_flight=1")
    assert generate.main(arguments(source, undisturbed, text_pair, *slow)) == 0

    command = [sys.executable, "-m", "jobs.generate", *arguments(source, output, text_pair, *slow)]
    driver = subprocess.Popen([*command, f"--run.ray_address={ray_address}"])
    wait_until(lambda: len(commits(output)) >= 3 or driver.poll() is not None)
    os.kill(driver.pid, signal.SIGKILL)
    assert driver.wait() == -signal.SIGKILL, "the driver finished before it could be killed: make the run longer"
    before = commits(output)
    assert 3 <= len(before) < 12
    assert verify.main([str(output)]) == 1

    assert generate.main(arguments(source, output, text_pair, *slow)) == 0
    after = commits(output)
    assert content(output) == content(undisturbed)
    assert problems(output) == []
    assert {name: after[name] for name in before} == before, "what was committed was generated again"


@pytest.mark.slow  # tests/jobs/test_demo.py compares runs that differ in all of these in every run of the tests
@pytest.mark.parametrize(
    "changed",
    [
        ("--engine.drafter=none",),
        ("--engine.drafter=ngram", "--engine.num_speculative_tokens=8"),
        (
            *("--engine.num_speculative_tokens=1", "--engine.num_slots=3", "--run.rows_per_unit=5"),
            *("--actors.min_actors=2", "--actors.max_actors=2", "--actors.units_in_flight=4"),
        ),
    ],
    ids=" ".join,
)
def test_the_corpus_does_not_depend_on_how_it_was_made(
    tmp_path: Path, text_pair: Pair, plain_run: Path, changed: tuple[str, ...]
) -> None:
    output = tmp_path / "out"
    assert generate.main(arguments(plain_run / "in.jsonl", output, text_pair, *changed)) == 0
    texts = {(row["id"], row["sample"]): row["token_ids"] for row in generations(output)}
    assert texts == {(row["id"], row["sample"]): row["token_ids"] for row in generations(plain_run / "out")}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ("--sampling.temperature=0.5", "sampling.temperature"),
        ("--run.seed=9", "seed"),
        ("--engine.verification=rejection", "verification"),
        ("--chat.system_prompt=Be brief.", "chat.system_prompt"),
        ("--engine.max_model_len=100", "max_model_len"),
    ],
)
def test_a_change_that_would_write_other_tokens_is_refused_by_name(
    plain_run: Path, text_pair: Pair, capsys: pytest.CaptureFixture[str], change: str, field: str
) -> None:
    assert generate.main(arguments(plain_run / "in.jsonl", plain_run / "out", text_pair, change)) == 2
    assert f"  {field}: was" in capsys.readouterr().err


def test_a_changed_input_is_refused(mixed_run: Path, text_pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    source, output = mixed_run / "in.jsonl", mixed_run / "out"
    written, command = source.stat(), arguments(source, output, text_pair, *MIXED)
    write_jsonl(source, [*MIXED_ROWS, *prompts(1)])
    assert generate.main(command) == 2
    error = capsys.readouterr().err
    assert "other input" in error
    assert str(source) in error
    write_jsonl(source, MIXED_ROWS)
    os.utime(source, ns=(written.st_atime_ns, written.st_mtime_ns))
    assert generate.main(command) == 0, "the input is what it was"


def test_another_target_or_tokenizer_is_refused(
    tmp_path: Path, plain_run: Path, text_pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    target, draft = text_pair
    source, output = plain_run / "in.jsonl", plain_run / "out"
    assert generate.main(arguments(source, output, (draft, draft))) == 2
    assert "  target: was" in capsys.readouterr().err
    other = tmp_path / "tokenizer"
    shutil.copytree(target, other)
    (other / "chat_template.jinja").write_text("{{ messages[0].content }}")
    assert generate.main([*arguments(source, output, text_pair), f"--models.tokenizer={other}"]) == 2
    assert "  tokenizer: was" in capsys.readouterr().err


def test_under_rejection_another_drafter_is_refused_too(
    tmp_path: Path, text_pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    source, output = write_jsonl(tmp_path / "in.jsonl", prompts(3)), tmp_path / "out"
    command = arguments(source, output, text_pair, "--engine.verification=rejection")
    config = load_config(command, prog="test")
    create_run(make_plan(config, "cpu"), config)  # as a driver that ended before its first unit leaves it
    assert generate.main([*command, "--engine.drafter=none"]) == 2
    assert "  drafter.name: was" in capsys.readouterr().err


def test_a_draft_of_another_vocabulary_is_refused_before_anything_is_written(
    tmp_path: Path, text_pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "draft"
    shutil.copytree(text_pair[1], other)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    source, output = write_jsonl(tmp_path / "in.jsonl", prompts(3)), tmp_path / "out"
    assert generate.main(arguments(source, output, (text_pair[0], str(other)))) == 2
    assert "does not share the vocabulary" in capsys.readouterr().err
    assert not output.exists()


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--models.target=/nowhere", "no model at '/nowhere'"),
        ("--engine.max_model_len=9999", "the target sees at most 256 positions"),
        ('--sampling.logit_bias={"99999": 1}', "names token id 99999"),
        ("--chat.chat_template={% for", "not valid Jinja"),
        ("--input.carry_columns=[colour]", "colour"),
        ("--models.device=cuda", "no GPU"),
    ],
)
def test_errors_that_are_known_in_advance_are_reported_before_anything_is_written(
    tmp_path: Path, text_pair: Pair, capsys: pytest.CaptureFixture[str], flag: str, message: str
) -> None:
    source, output = write_jsonl(tmp_path / "in.jsonl", prompts(3)), tmp_path / "out"
    assert generate.main(arguments(source, output, text_pair, flag)) == 2
    assert message in capsys.readouterr().err
    assert not output.exists()


def test_too_many_errors_stop_the_run_with_a_reason(
    tmp_path: Path, text_pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", [*prompts(3), *["{not json"] * 300])
    assert generate.main(arguments(source, tmp_path / "out", text_pair, "--run.max_error_rate=0.1")) == 1
    assert "more than run.max_error_rate 0.1" in capsys.readouterr().err
    assert len(commits(tmp_path / "out")) < 38, "it went on to the end"


def test_a_small_run_with_many_failed_rows_succeeds_only_when_they_are_accepted(
    tmp_path: Path, mixed_run: Path, text_pair: Pair
) -> None:
    source, output = mixed_run / "in.jsonl", tmp_path / "out"
    shutil.copytree(mixed_run / "out", output)
    (output / "_SUCCESS").unlink()  # as a driver leaves it that ended before its verdict
    for _ in range(2):
        assert generate.main(arguments(source, output, text_pair, *MIXED, "--run.max_error_rate=0.3")) == 1
        assert not (output / "_SUCCESS").exists()
    assert generate.main(arguments(source, output, text_pair, *MIXED)) == 0
    assert (output / "_SUCCESS").exists()


def test_a_model_that_cannot_load_prints_one_readable_line(
    tmp_path: Path, text_pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(text_pair[0], broken)
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    source = write_jsonl(tmp_path / "in.jsonl", prompts(3))
    assert generate.main(arguments(source, tmp_path / "out", (str(broken), text_pair[1]))) == 1
    first_line, *_ = capsys.readouterr().err.splitlines()
    assert first_line.startswith(f"error: cannot load the model at '{broken}'")


@pytest.mark.slow
def test_an_interrupted_run_can_be_resumed(tmp_path: Path, text_pair: Pair, ray_address: str) -> None:
    source, output = write_jsonl(tmp_path / "in.jsonl", prompts(64)), tmp_path / "out"
    slow = ("--sampling.max_tokens=60", "--engine.num_slots=2", "--actors.units_in_flight=1")
    command = [sys.executable, "-m", "jobs.generate", *arguments(source, output, text_pair, *slow)]
    driver = subprocess.Popen([*command, f"--run.ray_address={ray_address}"], stderr=subprocess.PIPE, text=True)
    wait_until(lambda: bool(commits(output)) or driver.poll() is not None)
    driver.send_signal(signal.SIGINT)
    _, stderr = driver.communicate(timeout=120)
    assert (driver.returncode, "the same command goes on" in stderr) == (3, True)
    assert generate.main(arguments(source, output, text_pair, *slow)) == 0


def test_duckdb_computes_acceptance_from_the_counts(plain_run: Path) -> None:
    rates = duckdb.sql(
        f"""select kind, sum(num_accepted_tokens) / sum(num_draft_tokens) as acceptance_rate,
                   1 + sum(num_accepted_tokens) / sum(num_rounds) as mean_acceptance_length
            from '{plain_run}/out/data/*.parquet' group by kind order by kind"""
    ).fetchall()
    assert [kind for kind, *_ in rates] == ["b", "c", "chat"]
    assert all(0 < rate <= 1 and length > 1 for _, rate, length in rates)


def test_a_dry_run_writes_nothing(tmp_path: Path, text_pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    source, output = write_jsonl(tmp_path / "in.jsonl", prompts(20)), tmp_path / "out"
    assert generate.main(arguments(source, output, text_pair, "--dry-run")) == 0
    assert not output.exists()
    assert "3 of at most 8 rows; 3 missing" in capsys.readouterr().out
