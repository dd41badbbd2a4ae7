"""Jobs of task "score": log-probabilities of given texts, exactly once, with the best of several and a distribution."""

import json
import math
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from jobs import best, generate, retry
from jobs.config.loading import load
from jobs.config.run import RunConfig
from jobs.driver.plan import make_plan
from tests.jobs.runs import errors, generations, problems, write_jsonl

GOOD = [
    {"id": f"row-{i}", "prompt": "hello world " * (1 + i % 4), "answer": " and all" * (1 + i % 3)} for i in range(10)
]


def command(folder: Path, target: str, *flags: str) -> list[str]:
    return [
        f"--input.path={folder / 'in.jsonl'}",
        "--input.id_column=id",
        f"--output.path={folder / 'out'}",
        f"--models.target={target}",
        "--task=score",
        "--run.rows_per_unit=8",
        "--run.progress=none",
        *flags,
    ]


def expected(target: str, prompt: str, continuation: str) -> list[float]:
    """What transformers computes in float32."""
    tokenizer, network = AutoTokenizer.from_pretrained(target), AutoModelForCausalLM.from_pretrained(target).float()
    prompt_ids, token_ids = tokenizer(prompt)["input_ids"], tokenizer(prompt + continuation)["input_ids"]
    with torch.no_grad():
        logprobs_TV = network(torch.tensor([token_ids])).logits[0].log_softmax(-1)
    return [logprobs_TV[place - 1, token_ids[place]].item() for place in range(len(prompt_ids), len(token_ids))]


def test_a_run_scores_each_continuation_once_and_goes_on_after_a_crash(tmp_path, text_pair, capsys):
    target, bad = text_pair[0], {"id": "bad", "prompt": "hello", "answer": ""}
    write_jsonl(tmp_path / "in.jsonl", [*GOOD, bad])
    flags = command(tmp_path, target, "--score.continuation_column=answer", "--run.local")
    assert generate.main(flags) == 0
    rows = generations(tmp_path / "out")
    assert [row["id"] for row in rows] == [row["id"] for row in GOOD]
    for row, given in zip(rows, GOOD, strict=True):
        wanted = expected(target, given["prompt"], given["answer"])
        assert row["logprobs"] == pytest.approx(wanted, abs=1e-4)
        assert row["logprob"] == pytest.approx(sum(wanted), abs=1e-3)
        assert row["perplexity"] == pytest.approx(math.exp(-row["logprob"] / len(wanted)))
        assert (row["text"], row["finish_reason"], row["candidate"]) == (given["answer"], "scored", 0)
        assert (row["probability"], row["is_best"]) == (1.0, True)
    (error,) = errors(tmp_path / "out")
    assert (error["id"], error["stage"]) == ("bad", "read")
    assert not problems(tmp_path / "out")
    next((tmp_path / "out" / "data").glob("*.parquet")).unlink()  # as if the run had died before it
    assert generate.main(flags) == 0
    again = generations(tmp_path / "out")
    for row in (*rows, *again):  # how much was copied depends on which texts were in the engine together
        del row["num_cached_tokens"]
    assert again == rows
    assert retry.main(flags) == 0
    assert [error["attempt"] for error in errors(tmp_path / "out")] == [1]
    assert "perplexity" in capsys.readouterr().out


def test_the_best_row_of_each_prompt_is_picked_by_a_column(tmp_path, text_pair, capsys):
    rows = [{"id": number // 3, "prompt": "hello", "answer": [5 + number, 6]} for number in range(12)]
    write_jsonl(tmp_path / "in.jsonl", rows)
    assert generate.main(command(tmp_path, text_pair[0], ANSWER, "--run.local")) == 0
    output, file = str(tmp_path / "out"), tmp_path / "best.parquet"
    assert best.main([output, str(file), "--by=logprob", "--group=id"]) == 0
    assert "4 best of 12 rows" in capsys.readouterr().out
    scored, picked = generations(tmp_path / "out"), pq.read_table(file).to_pylist()
    for prompt, row in zip(range(4), picked, strict=True):
        assert row == max((other for other in scored if other["id"] == prompt), key=lambda other: other["logprob"])
    assert best.main([output, str(file), "--by=perplexity", "--group=id", "--lowest"]) == 0
    assert pq.read_table(file).to_pylist() == picked
    for column, message in (("nothing", "has no column 'nothing'"), ("text", "name a column of numbers")):
        assert best.main([output, str(file), f"--by={column}"]) == 2
        assert message in capsys.readouterr().err


def test_the_best_label_of_each_row_is_kept_with_the_distribution_over_all(tmp_path, text_pair):
    target, labels = text_pair[0], [" and all", " hello", " world world"]
    write_jsonl(tmp_path / "in.jsonl", GOOD)
    more = [f"--score.labels={json.dumps(labels)}", "--score.keep=best", "--run.local"]
    assert generate.main(command(tmp_path, target, *more)) == 0
    for row, given in zip(generations(tmp_path / "out"), GOOD, strict=True):
        sums = [sum(expected(target, given["prompt"], label)) for label in labels]
        assert row["candidate_logprobs"] == pytest.approx(sums, abs=1e-3)
        assert row["candidate_probabilities"] == pytest.approx(torch.tensor(sums).softmax(0).tolist(), abs=1e-3)
        best = max(range(3), key=sums.__getitem__)
        assert (row["candidate"], row["text"], row["sample"], row["is_best"]) == (best, labels[best], 0, True)
        assert row["probability"] == row["candidate_probabilities"][best]
    assert not problems(tmp_path / "out")


def scorer_rows(tmp_path: Path, target: str, rows: list[Any], *flags: str) -> tuple[list[dict[str, Any]], list[Any]]:
    """Read, encode and score rows as a worker does, without Ray: output rows and errors."""
    from actors.engine.score_translation import decode_scored_row, encode_scored_row
    from actors.engines.dray import load_engine
    from actors.engines.loading import load_codec
    from pipeline.errors import ErrorRow
    from pipeline.inputs.rows import read_unit, result_or_error

    write_jsonl(tmp_path / "in.jsonl", [{"id": number, **row} for number, row in enumerate(rows)])
    plan = make_plan(load(RunConfig, command(tmp_path, target, "--models.device=cpu", *flags), prog="test"))
    codec, engine, score = load_codec(plan.settings), load_engine(plan.settings), plan.config.score
    done, failed = [], []
    for unit in plan.new_units():
        for row in read_unit(unit, plan.input_options, plan.carried):
            encoded = row
            if not isinstance(row, ErrorRow):
                encoded = result_or_error("encode", row, unit.file, encode_scored_row, row, codec, score)
            if isinstance(encoded, ErrorRow):
                failed.append(encoded)
                continue
            engine.score([encoded.scored])
            found = result_or_error("generate", row, unit.file, decode_scored_row, encoded, codec, score)
            (failed.append if isinstance(found, ErrorRow) else done.extend)(found)
    assert len({row["row_id"] for row in done}) + len(failed) == len(rows), "a row was lost"
    return done, failed


ANSWER, CANDIDATES = "--score.continuation_column=answer", "--score.candidates_column=answer"
BAD_ROWS = [
    (ANSWER, {"answer": ""}, "is empty, so there is nothing to score"),
    (ANSWER, {"answer": None}, "is null; it holds what is scored"),
    (ANSWER, {"answer": 5}, "expected a text or a list of token ids, got int"),
    (ANSWER, {"answer": []}, "is empty, so there is nothing to score"),
    (ANSWER, {"answer": [1, "a"]}, "expected a text or a list of token ids, got str"),
    (ANSWER, {"answer": [True]}, "expected a text or a list of token ids, got bool"),
    (ANSWER, {"answer": [10**6]}, "outside the target's vocabulary"),
    (ANSWER, {"answer": [-1]}, "outside the target's vocabulary"),
    (ANSWER, {"answer": [5] * 5000}, "shorten the text or raise engine.max_model_len"),
    (ANSWER, {"answer": "\ud800"}, "surrogate"),
    (ANSWER, {"prompt": ""}, "the prompt is empty"),
    (ANSWER, {"sampling": {"temperature": 0.5}}, "and nothing is sampled"),
    (CANDIDATES, {"answer": "one text"}, "not JSON"),
    (CANDIDATES, {"answer": {"a": 1}}, "expected a list of texts"),
    (CANDIDATES, {"answer": []}, "the list of candidates is empty"),
    (CANDIDATES, {"answer": ["good", ""]}, "candidate 1 is empty"),
    (CANDIDATES, {"answer": ["good", None]}, "candidate 1: expected a text or a list of token ids, got NoneType"),
    (CANDIDATES, {"answer": [{"text": "good"}]}, "candidate 0: expected a text or a list of token ids, got dict"),
]


@pytest.mark.parametrize("column", [ANSWER, CANDIDATES])
def test_bad_rows_are_error_rows_that_say_why_and_none_is_lost(column, tmp_path, text_pair):
    good = {"id": "good", "prompt": "hello", "answer": " all" if column == ANSWER else [" all", [5, 6], " all"]}
    bad = [(row, message) for flag, row, message in BAD_ROWS if flag == column]
    rows = [{"id": str(number), "prompt": "hello", "answer": "x", **row} for number, (row, _) in enumerate(bad)]
    done, failed = scorer_rows(tmp_path, text_pair[0], [*rows, good], column)
    assert [error.row_number for error in failed] == list(range(len(rows)))
    for error, (_, message) in zip(failed, bad, strict=True):
        assert message in error.message
    assert {row["id"] for row in done} == {"good"}
    if column == CANDIDATES:
        first, second, third = done
        assert (first["logprob"], first["is_best"] and third["is_best"]) == (third["logprob"], False)
        assert sum(row["probability"] for row in done) == pytest.approx(1)
        assert second["token_ids"] == [5, 6]
        assert second["text"]


def test_a_whole_text_is_scored_from_its_second_token_on(tmp_path, text_pair):
    (row,), (error,) = scorer_rows(tmp_path, text_pair[0], [{"prompt": "hello world"}, {"prompt": "h"}])
    token_ids = AutoTokenizer.from_pretrained(text_pair[0])("hello world")["input_ids"]
    assert row["token_ids"] == token_ids[1:]
    assert (row["num_output_tokens"], row["num_prompt_tokens"]) == (len(token_ids) - 1, len(token_ids))
    assert row["text"] == row["prompt"] == "hello world"
    assert "the first token of a text has no score" in error.message


def test_the_mean_prefers_a_long_text_that_the_sum_does_not(tmp_path, text_pair):
    rows = [{"prompt": "hello", "answer": [[5, 6, 7, 8], [9]]} for _ in range(1)]
    by_sum, _ = scorer_rows(tmp_path, text_pair[0], rows, CANDIDATES)
    by_mean, _ = scorer_rows(tmp_path, text_pair[0], rows, CANDIDATES, "--score.best_by=mean_logprob")
    for found, length in ((by_sum, lambda row: 1), (by_mean, lambda row: row["num_output_tokens"])):
        best = max(found, key=lambda row: row["logprob"] / length(row))
        assert [row["is_best"] for row in found] == [row is best for row in found]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (['--score.labels=["a", "a"]'], "names ['a'] more than once"),
        (['--score.labels=["a", ""]'], "empty label"),
        (['--score.labels=["a"]'], "a choice needs at least two"),
        (['--score.labels=["a", "b"]', ANSWER], "are both set"),
        ([ANSWER, CANDIDATES], "are both set"),
        ([ANSWER, "--score.keep=best"], "rows have one text each"),
        (["--score.best_by=length"], "score.best_by"),
        (["--score.top_logprobs=21"], "0 to 20, got 21"),
        (["--score.continuation_column=nothing"], "column 'nothing' is not in the input: it has answer, id, prompt"),
        (["--score.continuation_column=prompt"], "the column of the prompt"),
        ([ANSWER, "--sampling.max_tokens=5"], "sampling is set, but task is 'score'"),
        ([ANSWER, "--models.draft=x"], "models.draft is set, but task is 'score'"),
        ([ANSWER, "--engine.drafter=ngram"], "engine.drafter 'ngram' is set"),
        ([ANSWER, "--engine.verification=rejection"], "engine.verification 'rejection' is set"),
        ([ANSWER, "--engine.backend=vllm"], "Dray's own engine"),
        ([ANSWER, "--task=judge"], "task"),
        ([ANSWER, "--task=generate"], "score has fields that are set, but task is 'generate'"),
        (
            [ANSWER, "--input.carry_columns=[answer]", "--input.id_column=prompt", '--score.labels=["a","b"]'],
            "both set",
        ),
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused(flags, message, tmp_path, text_pair, capsys):
    write_jsonl(tmp_path / "in.jsonl", GOOD)
    assert generate.main(command(tmp_path, text_pair[0], *flags)) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_carried_column_with_the_name_of_a_score_is_refused(tmp_path, text_pair, capsys):
    write_jsonl(tmp_path / "in.jsonl", [{**row, "logprob": 1.0} for row in GOOD])
    assert generate.main(command(tmp_path, text_pair[0], ANSWER, "--input.carry_columns=[logprob]")) == 2
    assert "['logprob'] have names that the output uses itself" in capsys.readouterr().err


def test_a_run_of_scores_is_resumed_only_with_the_same_task(tmp_path, text_pair):
    from jobs.driver.plan import create_run

    write_jsonl(tmp_path / "in.jsonl", GOOD)
    create_run(make_plan(load(RunConfig, command(tmp_path, text_pair[0], ANSWER), prog="test")))
    make_plan(load(RunConfig, command(tmp_path, text_pair[0], ANSWER), prog="test"))
    with pytest.raises(ValueError, match=r"score\.continuation_column: was"):
        make_plan(load(RunConfig, command(tmp_path, text_pair[0]), prog="test"))
    with pytest.raises(ValueError, match=r"task: was \"score\", is absent"):
        make_plan(load(RunConfig, [*command(tmp_path, text_pair[0]), "--task=generate"], prog="test"))
