"""`jobs.generate` in its own process, with real models and Parquet (tests/faults and test_placements.py use Ray)."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from jobs import generate, verify
from tests.jobs.runs import arguments, commits, content, errors, generations, problems, prompts, write_jsonl

pytestmark = pytest.mark.usefixtures("local")
Pair = tuple[str, str]
MIXED = ("--run.seed=1", "--run.max_error_rate=1", "--run.local")

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
def mixed_run(tmp_path_factory: pytest.TempPathFactory, text_pair: Pair) -> Path:
    """Return a folder with in.jsonl, whose rows are good, bad and odd, and the run over it in out/."""
    folder = tmp_path_factory.mktemp("mixed")
    source = write_jsonl(folder / "in.jsonl", MIXED_ROWS)
    assert generate.main(arguments(source, folder / "out", text_pair, *MIXED)) == 0
    return folder


def test_every_row_comes_back_exactly_once_in_data_or_in_errors(mixed_run):
    output = mixed_run / "out"
    data, dead = generations(output), errors(output)
    ids = [row["row_id"] for row in data if row["sample"] == 0] + [row["row_id"] for row in dead]
    assert sorted(ids) == sorted(set(ids))
    assert len(ids) == len(MIXED_ROWS)
    assert [row["id"] for row in data][:23] == [f"row-{i}" for i in range(20)] + ["fine"] * 3
    assert [row["sample"] for row in data[20:23]] == [0, 1, 2]
    assert {row["id"]: row["stage"] for row in dead if row["row_number"] < 29} == {
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


def test_another_seed_writes_another_corpus_and_a_rerun_none(job, mixed_run, plain_run):
    job.source, job.output = mixed_run / "in.jsonl", mixed_run / "out"
    texts = [row["token_ids"] for row in generations(job.output)[:20]]
    others = generations(plain_run / "out")[:20]
    assert [row["id"] for row in others] == [f"row-{i}" for i in range(20)]
    assert texts != [row["token_ids"] for row in others]
    before = commits(job.output)
    assert job.generate(*MIXED) == 0
    assert commits(job.output) == before
    assert "Nothing left to do" in job.printed()


def test_only_a_damaged_part_is_generated_again(job, plain_run):
    job.source = plain_run / "in.jsonl"
    shutil.copytree(plain_run / "out", job.output)
    whole, before = content(job.output), commits(job.output)
    part = job.output / "data/part-000000001.parquet"
    part.write_bytes(part.read_bytes()[:-20])
    assert job.generate() == 1
    assert "part-000000001" in job.printed()
    assert not (job.output / "_SUCCESS").exists()
    part.unlink()
    assert verify.main([str(job.output)]) == 1
    assert job.generate() == 0
    assert (job.output / "_SUCCESS").exists()
    assert content(job.output) == whole
    after = commits(job.output)
    assert {name for name in before if before[name] != after[name]} == {"part-000000001.parquet"}


def test_ids_keep_their_type_text_parts_are_text_and_all_columns_are_carried(job):
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    job.read(
        [
            {"id": 7, "kind": "a", "score": 1.5, "messages": [{"role": "user", "content": parts}]},
            {"id": 8, "kind": "b", "messages": [{"role": "user", "content": "hello"}], "sampling": {"n": 2}},
            {"id": 9, "kind": "c", "messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        ]
    )
    flags = [flag for flag in job.command("--sampling.temperature=0") if "carry_columns" not in flag]
    assert generate.main([*flags, "--input.carry_columns=all"]) == 0
    first, *others = generations(job.output)
    assert [(row["id"], row["kind"], row["score"]) for row in (first, *others)] == [
        (7, "a", 1.5),
        (8, "b", None),
        (8, "b", None),
    ]
    assert {(row["prompt"], *row["token_ids"]) for row in others} == {(first["prompt"], *first["token_ids"])}
    (dead,) = errors(job.output)
    assert (dead["id"], dead["stage"]) == (9, "template")
    assert dead["message"] == "messages[0].content[0].type: 'image_url' is not supported, only text parts are"
    assert problems(job.output) == []


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ("--sampling.temperature=0.5", "sampling.temperature"),
        ("--run.seed=9", "seed"),
        ("--engine.verification=rejection", "verification"),
        ("--chat.system_prompt=Be brief.", "chat.system_prompt"),
        ("--engine.max_model_len=100", "max_model_len"),
        ("--models.target={draft}", "target"),
        ("--models.tokenizer={other}", "tokenizer"),
    ],
)
def test_a_change_that_would_write_other_tokens_is_refused_by_name(job, plain_run, tmp_path, change, field):
    target, draft = job.pair
    shutil.copytree(target, tmp_path / "other")
    (tmp_path / "other/chat_template.jinja").write_text("{{ messages[0].content }}")
    job.source, job.output = plain_run / "in.jsonl", plain_run / "out"
    assert job.generate(change.format(draft=draft, other=tmp_path / "other")) == 2
    assert f"  {field}: was" in job.printed()


def test_a_changed_input_is_refused(job, mixed_run):
    job.source, job.output = mixed_run / "in.jsonl", mixed_run / "out"
    written = job.source.stat()
    job.read([*MIXED_ROWS, *prompts(1)])
    assert job.generate(*MIXED) == 2
    error = job.printed()
    assert "other input" in error
    assert str(job.source) in error
    job.read(MIXED_ROWS)
    os.utime(job.source, ns=(written.st_atime_ns, written.st_mtime_ns))
    assert job.generate(*MIXED) == 0, "the input is what it was"


def test_under_rejection_another_drafter_is_refused_too(job):
    job.read(3)
    job.begin("--engine.verification=rejection")
    assert job.generate("--engine.verification=rejection", "--engine.drafter=none") == 2
    assert "  drafter.name: was" in job.printed()


def test_a_draft_of_another_vocabulary_is_refused_before_anything_is_written(job, tmp_path):
    other = tmp_path / "draft"
    shutil.copytree(job.pair[1], other)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    job.read(3)
    assert job.generate(f"--models.draft={other}") == 2
    assert "does not share the vocabulary" in job.printed()
    assert not job.output.exists()


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--models.target=/nowhere", "no model at '/nowhere'"),
        ("--engine.max_model_len=9999", "the target sees at most 256 positions"),
        ('--sampling.logit_bias={"99999": 1}', "sampling.logit_bias: token id 99999 is outside"),
        ("--sampling.allowed_token_ids=[1, 99999]", "sampling.allowed_token_ids: token id 99999 is outside"),
        ('--sampling.bad_words=["no", [1, 99999]]', "sampling.bad_words: token id 99999 is outside"),
        ('--sampling.bad_words=["no", ""]', "sampling.bad_words must be"),
        ("--chat.chat_template={% for", "not valid Jinja"),
        ("--input.carry_columns=[colour]", "colour"),
        ("--models.device=cuda", "no GPU"),
    ],
)
def test_errors_known_in_advance_are_reported_before_anything_is_written(job, flag, message):
    job.read(3)
    assert job.generate(flag) == 2
    assert message in job.printed()
    assert not job.output.exists()


def test_too_many_errors_stop_the_run_with_a_reason(job):
    job.read([*prompts(3), *["{not json"] * 300])
    assert job.generate("--run.max_error_rate=0.1") == 1
    said = job.printed()
    assert "rows failed, more than run.max_error_rate 0.1; the commonest error so far (" in said
    assert ") is: not a JSON line: " in said
    assert len(commits(job.output)) < 38, "it went on to the end"


def test_a_small_run_with_many_failed_rows_succeeds_only_when_they_are_accepted(job, mixed_run):
    job.source = mixed_run / "in.jsonl"
    shutil.copytree(mixed_run / "out", job.output)
    (job.output / "_SUCCESS").unlink()  # as a driver leaves it that ended before its verdict
    for _ in range(2):
        assert job.generate(*MIXED, "--run.max_error_rate=0.3") == 1
        assert not (job.output / "_SUCCESS").exists()
    assert job.generate(*MIXED) == 0
    assert (job.output / "_SUCCESS").exists()


@pytest.mark.parametrize("dry_run", [(), ("--dry-run",)], ids=["run", "dry run"])
def test_weights_that_are_cut_off_are_told_in_one_line_before_anything_is_written(job, tmp_path, dry_run):
    broken = tmp_path / "broken"
    shutil.copytree(job.pair[0], broken)
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    job.read(3)
    assert job.generate(f"--models.target={broken}", *dry_run) == 2
    (line,) = job.capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: '{weights}' is cut off or damaged")
    assert not job.output.exists()


@pytest.mark.parametrize("name", ["tokenizer.json", "generation_config.json", "model.safetensors"])
@pytest.mark.parametrize("role", ["target", "draft", "tokenizer"])
def test_a_link_to_nothing_in_any_folder_of_a_run_is_told_in_one_line_before_anything_is_written(
    job, tmp_path, monkeypatch, role, name
):
    monkeypatch.setenv("HOME", str(tmp_path))
    shutil.copytree(job.pair[role == "draft"], tmp_path / "model")
    job.read(3)
    assert job.generate(f"--models.{role}=~/model", "--dry-run") == 0
    (tmp_path / "model" / name).unlink(missing_ok=True)
    (tmp_path / "model" / name).symlink_to("../blobs/0a1b")
    job.capsys.readouterr()
    assert job.generate(f"--models.{role}=~/model", "--dry-run") == 2
    (line,) = job.capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: '{tmp_path / 'model' / name}' is a link to nothing")
    assert not job.output.exists()


def test_weights_that_hold_no_numbers_are_told_in_a_line_by_the_run(job, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(job.pair[0], broken)
    tensors = load_file(broken / "model.safetensors")
    tensors["model.norm.weight"] *= float("nan")
    save_file(tensors, broken / "model.safetensors", metadata={"format": "pt"})
    job.read(3)
    assert job.generate(f"--models.target={broken}") == 1
    lines = job.capsys.readouterr().err.splitlines()
    assert any(line.startswith(f"error: '{broken}' computes logits that are not finite numbers") for line in lines)


@pytest.mark.parametrize("dry_run", [(), ("--dry-run",)], ids=["run", "dry run"])
def test_an_output_folder_with_other_files_is_refused_by_the_plan(job, dry_run):
    job.read(3)
    job.output.mkdir()
    (job.output / "notes.txt").write_text("mine")
    assert job.generate(*dry_run) == 2
    assert "is not empty and is not a run: it has ['notes.txt']" in job.printed()


def test_an_output_folder_that_cannot_be_made_is_told_with_what_to_do(job):
    job.read(1)
    assert job.generate(f"--output.path={job.source / 'out'}") == 2  # the input is a file, and no folder
    assert "must be one that can be written and has room" in " ".join(job.printed().split())


@pytest.mark.parametrize("flag", ["--input.path", "--output.path"])
def test_a_hub_path_without_a_network_is_told_in_one_line(job, monkeypatch, flag):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:1")
    job.read(3)
    assert job.generate(f"{flag}=hf://datasets/some{flag[2:5]}/rows.jsonl") == 2
    (line,) = job.capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: OSError: looking at hf://datasets/some{flag[2:5]}/rows.jsonl")
    assert "check the network" in line
