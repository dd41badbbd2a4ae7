"""`jobs.eval_draft` on a finished run: what it prints, records and refuses."""

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs import eval_draft
from pipeline.counts import Counts, count_generations
from pipeline.storage.parquet import table_of


@pytest.fixture
def arguments(plain_run, text_pair) -> list[str]:
    target, draft = text_pair
    return [
        f"--corpus.path={plain_run / 'out'}",
        "--corpus.kind_column=kind",
        f"--models.target={target}",
        f"--models.draft={draft}",
        "--models.dtype=float32",
        "--eval.rows=all",
        "--eval.num_draft_tokens=8",
    ]


def with_draft(arguments: list[str], draft: object) -> list[str]:
    """Return the arguments with another draft to evaluate."""
    return [*(flag for flag in arguments if not flag.startswith("--models.draft=")), f"--models.draft={draft}"]


def counts_of(run: Path) -> Counts:
    tables = (table_of(part.read_bytes()) for part in sorted(run.glob("data/*.parquet")))
    return sum((count_generations(table, 0) for table in tables), Counts())


def test_the_rounds_of_a_run_are_replayed_from_its_files(arguments, plain_run, tmp_path, capsys):
    assert eval_draft.main([*arguments, f"--eval.json_path={tmp_path / 'found.json'}"]) == 0
    (draft,) = json.loads((tmp_path / "found.json").read_text())["drafts"]
    counts, found = counts_of(plain_run / "out"), draft["all"]
    assert found["num_rounds"] == counts.num_rounds
    assert found["num_accepted_tokens"] == counts.num_accepted_tokens
    assert found["num_tokens"] == counts.num_output_tokens
    assert found["reproduced"] == 1
    printed = capsys.readouterr().out
    assert "the target, in float32, reproduces 100.00% of them" in printed
    assert list(draft["by_kind"]) == ["b", "c", "chat"]
    assert {"b", "c", "chat", "all"} <= set(printed.split())


def test_only_held_out_rows_are_read_unless_all_are_asked_for(arguments, tmp_path, capsys):
    flags = ["--eval.rows=held_out", "--corpus.held_out_share=0.4", f"--eval.json_path={tmp_path / 'found.json'}"]
    assert eval_draft.main([*arguments, *flags]) == 0
    assert 0 < json.loads((tmp_path / "found.json").read_text())["num_rows"] < 30
    assert "held-out rows" in capsys.readouterr().out


def test_a_draft_is_not_judged_on_rows_that_it_has_seen(arguments, text_pair, tmp_path, capsys):
    trained = tmp_path / "trained"
    shutil.copytree(text_pair[1], trained)
    (trained / "provenance.json").write_text(json.dumps({"corpus": {"held_out_share": 0.3}}))
    flags = [*arguments, "--eval.rows=held_out"]
    for asked in (with_draft(flags, trained), [*flags, f"--against={trained}"]):
        assert eval_draft.main([*asked, "--corpus.held_out_share=0.4"]) == 2
        assert "was trained with corpus.held_out_share 0.3, so it has seen some of the rows" in capsys.readouterr().err
    assert eval_draft.main([*with_draft(flags, trained), "--corpus.held_out_share=0.3"]) == 0


def test_what_is_wrong_with_the_second_draft_or_the_result_file_is_said_before_anything_is_scored(arguments, capsys):
    for flag, message in (("--against=/nowhere", "/nowhere"), ("--eval.json_path=/nowhere/found.json", "not there")):
        assert eval_draft.main([*arguments, flag]) == 2
        printed = capsys.readouterr()
        assert message in printed.err
        assert printed.out == ""


def test_the_gate_lets_a_better_draft_pass_and_no_worse_one(arguments, text_pair, capsys):
    target, draft = text_pair
    better = [*with_draft(arguments, target), f"--against={draft}"]
    assert eval_draft.main(better) == 0
    assert "gate: passed: " in capsys.readouterr().out
    assert eval_draft.main([*arguments, f"--against={target}"]) == 1
    assert "gate: not passed: " in capsys.readouterr().out


def test_the_speed_up_is_printed_where_it_is_asked_for(arguments, capsys):
    assert eval_draft.main([*arguments, "--eval.costs", "--eval.num_slots=2", "--eval.max_rows=4"]) == 0
    printed = capsys.readouterr().out
    assert "speed" in printed
    assert "by the costs of rounds of 2 rows here" in printed


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--corpus.held_out_share=0", "--eval.rows=held_out"], "error: none of the corpus' rows is held out"),
        (["--corpus.kind_column=topic"], "has no column 'topic'"),
        (["--models.draft_vocabulary=map"], "error: models.draft_vocabulary is 'map'"),
        (["--corpus.path=/nowhere"], "error: no input file at '/nowhere'"),
        (["--eval.num_draft_token=3"], "--eval.num_draft_token is not a flag; did you mean --eval.num_draft_tokens?"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(arguments, flags, message, capsys):
    assert eval_draft.main([*arguments, *flags]) == 2
    found = capsys.readouterr().err
    assert message in found
    assert found.count("\n") == 1


def test_a_draft_must_be_named(arguments, capsys):
    assert eval_draft.main([flag for flag in arguments if not flag.startswith("--models.draft")]) == 2
    assert "error: models.draft names no draft; name the draft to evaluate" in capsys.readouterr().err


def test_texts_of_another_model_are_refused(arguments, tmp_path, capsys):
    texts = pa.table({"prompt": ["hello world"] * 20, "token_ids": [[7, 9, 11, 5] * 3] * 20})
    pq.write_table(texts, tmp_path / "texts.parquet")
    flags = [f"--corpus.path={tmp_path / 'texts.parquet'}", "--corpus.temperature=0"]
    assert eval_draft.main([*(flag for flag in arguments if "kind_column" not in flag), *flags]) == 2
    assert "holds texts of another model, or with another prompt" in capsys.readouterr().err
