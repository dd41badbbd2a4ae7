"""`run.validate`: a text is written again until it passes, and each try is a function of the row and its number."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from actors.rows.check import SchemaCheck, SqlCheck
from actors.workers.engine_worker import EngineWorker
from decoding.noise import noise_key
from jobs import audit, generate, retry, show
from jobs.config.loading import load
from jobs.config.run import RunConfig
from jobs.driver import execution
from jobs.driver.plan import make_plan
from pipeline.errors import RowError
from pipeline.run.directory import RunDirectory
from tests.jobs.runs import arguments, content, errors, generations, problems, prompts, write_jsonl

PAIR = ("examples/tiny_pair/target", "examples/tiny_pair/draft")
ROWS = prompts(12)
EVEN = "--run.validate.function=tests.jobs.some_checks:has_even_length"
FLAGS = ("--sampling.temperature=0.9", "--sampling.max_tokens=10", "--sampling.n=2", "--run.seed=5")
WHAT_DEPENDS_ON_DRAFTS = ("num_rounds", "num_draft_tokens", "num_accepted_tokens", "accepted_per_position")


def write(folder: Path, *flags: str, rows: list[Any] = ROWS, more: tuple[str, ...] = ("--run.local",)) -> Path:
    folder.mkdir(exist_ok=True)
    source = write_jsonl(folder / "in.jsonl", rows)
    assert generate.main(arguments(source, folder / "out", PAIR, *FLAGS, *more, *flags)) == 0
    return folder / "out"


def written(run: Path) -> list[tuple[Any, ...]]:
    """All that must be the same of a run: texts, tries, and what became of rows that never passed."""
    texts = [(row["id"], row["sample"], row["token_ids"], row["num_tries"]) for row in generations(run)]
    return [*texts, *((row["id"], row["stage"], row["message"], row["text"], row["num_tries"]) for row in errors(run))]


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("plain"), "--engine.drafter=none")


@pytest.fixture(scope="module")
def valid(tmp_path_factory) -> Path:
    """A run that tests only read."""
    return write(tmp_path_factory.mktemp("valid"), EVEN, "--run.validate.max_tries=3", "--engine.drafter=none")


def test_the_noise_of_a_first_attempt_is_what_it_was_and_that_of_others_is_of_no_other_sample():
    assert noise_key(3, 4, 1) == noise_key(3, 4, 1, 0) == -2246725431521020666
    keys = {noise_key(3, row, sample, attempt) for row in range(9) for sample in range(9) for attempt in range(9)}
    assert len(keys) == 9**3


def test_texts_that_pass_at_first_are_those_of_a_run_without_a_check_and_others_are_tried_again(plain, valid):
    first = {(row["id"], row["sample"]): row for row in generations(plain)}
    rows = generations(valid)
    assert {row["num_tries"] for row in rows} >= {1, 2}
    for row in rows:
        before = first[row["id"], row["sample"]]
        assert len(row["text"]) % 2 == 0
        assert (row["num_tries"] == 1) == (len(before["text"]) % 2 == 0)
        assert (row["token_ids"] == before["token_ids"]) == (row["num_tries"] == 1)
    assert "num_tries" not in first["row-0", 0]
    assert problems(valid) == []


def test_a_row_that_never_passes_is_an_error_row_with_its_last_text(valid):
    failed = errors(valid)
    assert failed, "three tries of two samples leave some"
    for row in failed:
        assert (row["stage"], row["error_type"], row["num_tries"]) == ("validate", "NotValid", 3)
        assert len(row["text"]) % 2 == 1
        assert re.match(r"sample [01]: none of its 3 tries is valid", row["message"])
    rows = generations(valid)
    said = json.loads((valid / "report.json").read_text())["validation"]
    assert said == {
        "num_texts": len(rows),
        "num_tries": sum(row["num_tries"] for row in rows),
        "num_at_first": sum(row["num_tries"] == 1 for row in rows),
        "num_rows_never_valid": len(failed),
    }


@pytest.mark.parametrize(
    "flags",
    [("--engine.drafter=suffix", "--engine.num_slots=1"), ("--engine.drafter=model", "--engine.num_slots=4")],
)
def test_texts_and_tries_are_the_same_whatever_drafts_and_however_many_slots_there_are(valid, tmp_path, flags):
    run = write(tmp_path / "run", EVEN, "--run.validate.max_tries=3", *flags)
    assert content(run) == content(valid)
    assert written(run) == written(valid)


def test_an_audit_and_one_row_again_know_the_tries_and_a_retry_fails_in_the_same_way(valid, tmp_path, capsys):
    assert audit.main([str(valid), "--rows=all"]) == 0, capsys.readouterr()
    assert show.main([str(valid), "--row=row-1", "--regenerate"]) == 0
    before = written(valid)
    source = valid.parent / "in.jsonl"
    more = ("--run.validate.max_tries=3", "--engine.drafter=none", "--run.local")
    retry.main(arguments(source, valid, PAIR, *FLAGS, EVEN, *more))
    assert written(valid) == before
    assert {row["attempt"] for row in errors(valid)} == {1}


def test_earlier_texts_predict_the_try_that_wrote_them(valid, plain, tmp_path):
    run = write(tmp_path / "run", EVEN, "--run.validate.max_tries=3", f"--run.reuse={valid}")
    assert written(run) == written(valid)
    for row in generations(run):
        assert row["num_earlier_tokens"] == row["num_unchanged_tokens"] == row["num_output_tokens"]
    run = write(tmp_path / "other", EVEN, "--run.validate.max_tries=3", f"--run.reuse={plain}")
    assert written(run) == written(valid)
    for row in generations(run):
        assert (row["num_earlier_tokens"] is None) == (row["num_tries"] > 1)


def test_sql_and_schemas_check_texts_and_what_goes_wrong_is_of_the_row(tmp_path):
    run = write(tmp_path / "sql", "--run.validate.sql=length(text) % 2 = 0", "--run.validate.max_tries=3")
    assert {len(row["text"]) % 2 for row in generations(run)} == {0}
    schema = '--run.validate.json_schema={"type": "object"}'
    run = write(tmp_path / "schema", schema, "--run.validate.max_tries=2", "--run.max_error_rate=1")
    assert all("it is not JSON" in row["message"] for row in errors(run))
    assert len(errors(run)) == 12
    raises = "--run.validate.function=tests.jobs.some_checks:raises_for_one_row"
    run = write(tmp_path / "raises", raises)
    assert len(generations(run)) == 22
    (error,) = errors(run)
    assert (error["id"], error["stage"], error["error_type"]) == ("row-2", "validate", "SystemExit")
    assert re.search(r"the check failed: no more \(line \d+ of ", error["message"])
    assert error["text"] is not None
    mixed = [{"id": "greedy", "kind": "a", "prompt": "hello", "sampling": {"temperature": 0}}]
    wrong = "--run.validate.function=tests.jobs.some_checks:says_what_is_wrong"
    run = write(tmp_path / "greedy", wrong, "--run.max_error_rate=1", rows=mixed)
    assert errors(run)[0]["num_tries"] == 1, "another try would be the same text"
    assert "its one try is valid, the last one: too few of greedy" in errors(run)[0]["message"]


def test_a_schema_takes_json_of_its_form_alone():
    check = SchemaCheck('{"$defs": {"n": {"type": "integer"}}, "properties": {"a": {"$ref": "#/$defs/n"}}}')
    assert check.problem({"content": '{"a": 1}'}) is None
    assert check.problem({"content": '{"a": "x"}'}) == "$.a: 'x' is not of type 'integer'"
    for text in ("", '{"a": NaN}', "[" * 100_000, None):
        assert "it is not JSON" in str(check.problem({"content": text}))


@pytest.mark.parametrize(
    ("schema", "text", "kind"),
    [
        ('{"$ref": "#"}', "1", "RecursionError"),
        ('{"items": {"$ref": "#"}}', "[" * 400 + "]" * 400, "RecursionError"),
        ('{"multipleOf": 0.1}', "1" + "0" * 400, "OverflowError"),
    ],
)
def test_a_text_that_a_schema_cannot_judge_is_an_error_of_its_row_alone(schema, text, kind):
    with pytest.raises(RowError, match="the check failed: ") as raised:
        SchemaCheck(schema).problem({"content": text})
    assert (raised.value.stage, raised.value.kind) == ("validate", kind)


SOME = "--run.validate.function=tests.jobs.some_checks"


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ([f"{SOME}:nothing"], "the module has no 'nothing'"),
        ([f"{SOME}:is_async"], "expected `def is_async(row)`"),
        ([f"{SOME}:takes_two"], "it is called with one argument, row"),
        (["--run.validate.function=nowhere:f"], "the module 'nowhere' cannot be imported"),
        (["--run.validate.function=f"], "must be 'module:function'"),
        (["--run.validate.sql=length("], "syntax error"),
        (["--run.validate.sql=length(text)"], "of the type BIGINT"),
        (["--run.validate.sql=num_rounds > 1"], 'column "num_rounds" not found'),
        (["--run.validate.sql=exists(select 1 from read_text('README.md'))"], "file system operations are disabled"),
        (["--run.validate.sql=true; drop table x"], "more than one statement"),
        (['--run.validate.json_schema={"type": "objct"}'], "is no JSON Schema: $.type"),
        (['--run.validate.json_schema={"$ref": "#/nowhere"}'], "has the reference"),
        (['--run.validate.json_schema={"$dynamicRef": "#nowhere"}'], "has the reference"),
        (['--run.validate.json_schema={"type": '], "is not JSON"),
        (["--run.validate.json_schema=nowhere.json"], "there is no file"),
        ([EVEN, "--run.validate.sql=true"], "keep one of them"),
        (["--run.validate.max_tries=5"], "nothing is checked"),
        ([EVEN, "--run.validate.max_tries=0"], "max_tries"),
        ([EVEN, "--sampling.temperature=0"], "so tries write the same text"),
        ([EVEN, "--program.function=a.b:c"], "run.validate is set, but program.function is set"),
    ],
)
def test_a_check_that_cannot_work_is_refused_before_anything_is_loaded(plain, flags, why):
    with pytest.raises(ValueError, match=re.escape(why)):
        make_plan(load(RunConfig, arguments(plain.parent / "in.jsonl", plain.parent / "x", PAIR, *flags), prog="test"))


TEXT_AND_TIME = pa.schema({"text": pa.string(), "user": pa.string(), "sent": pa.timestamp("us")})


@pytest.mark.parametrize(
    ("sql", "name"),
    [
        ("length(text) > 20 AND Random() > 0.5", "random"),
        ("len(list_filter([1, 2], lambda x: random() > 0.5)) > 1", "random"),
        ("now() > sent", "now"),
        ("CURRENT_TIMESTAMP > sent", "CURRENT_TIMESTAMP"),
        ("current_date > sent", "current_date"),
        ("localtimestamp > sent", "localtimestamp"),
        ("age(sent) > INTERVAL 1 DAY", "age"),
        ("ago('1 day') > sent", "ago"),
        ("text = session_user", "session_user"),
        ("count(*) > 1", "count_star"),
        ("sum(length(text)) OVER () > 1", "sum"),
        ("row_number() OVER () = 1", "row_number"),
        ("current_localtimestamp() > sent", "current_localtimestamp"),
    ],
)
def test_sql_that_has_another_value_another_day_or_is_about_many_rows_is_refused(sql: str, name: str) -> None:
    with pytest.raises(ValueError, match=f": {name} (has another value|is about many rows)"):
        SqlCheck(sql, TEXT_AND_TIME)


@pytest.mark.parametrize(
    "sql",
    [
        "\"user\" = 'a' AND TEXT LIKE '%b%'",
        "len(list_filter(string_split(text, ' '), lambda word: word LIKE 'a%')) > 1",
        "age(sent, TIMESTAMP '2026-01-01') > INTERVAL 1 DAY",
        "CASE WHEN try_cast(text AS int) > 3 THEN regexp_matches(text, '^[0-9]+$') ELSE text IN ('a', 'b') END",
        "list_aggregate(string_split(text, ' '), 'max') > 'b'",
        "USER = 'a' AND text = any(['a', 'b'])",
    ],
)
def test_sql_about_the_row_alone_is_taken(sql: str) -> None:
    SqlCheck(sql, TEXT_AND_TIME)


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("EXISTS (SELECT 1 FROM (VALUES (1), (2)) t(x) USING SAMPLE 50%)", "it has a FROM"),
        ("(SELECT value FROM duckdb_settings() WHERE name = 'TimeZone') = 'UTC'", "it has a FROM"),
        ("columns(*) IS NULL", "it has several values"),
        (" + ".join(["1"] * 3000) + " > 1", "recursion|depth"),
    ],
)
def test_sql_of_tables_samples_and_several_values_is_refused(sql: str, why: str) -> None:
    with pytest.raises(ValueError, match=f"(?i){why}"):
        SqlCheck(sql, TEXT_AND_TIME)


def test_a_row_for_which_sql_has_several_values_is_an_error_of_its_own() -> None:
    with pytest.raises(RowError, match="it has 2 values for one row, and must have one"):
        SqlCheck("unnest([true, false])", TEXT_AND_TIME).problem({"text": "a", "user": None, "sent": None})


def test_a_time_with_a_zone_is_read_in_utc_on_every_machine() -> None:
    code = (
        "import datetime, pyarrow as pa; from actors.rows.check import SqlCheck; "
        "check = SqlCheck(\"strftime(sent, '%H') = '14'\", pa.schema({'sent': pa.timestamp('us', tz='UTC')})); "
        "print(check.problem({'sent': datetime.datetime(2026, 1, 1, 14, tzinfo=datetime.timezone.utc)}))"
    )
    there = {**os.environ, "TZ": "America/New_York"}
    assert subprocess.run([sys.executable, "-c", code], env=there, capture_output=True, text=True).stdout == "None\n"


def test_null_is_no_and_said() -> None:
    row = {"text": "a", "user": None, "sent": None}
    assert SqlCheck('length("user") = 1', TEXT_AND_TIME).problem(row) == 'length("user") = 1 is null'
    assert SqlCheck("coalesce(\"user\", 'b') = 'b'", TEXT_AND_TIME).problem(row) is None


def test_duckdb_is_asked_for_by_name_where_it_is_missing(plain, monkeypatch):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    flags = ["--run.validate.sql=true"]
    with pytest.raises(ValueError, match=r"needs DuckDB, which is not installed; pip install .* 'dray\[sql\]'"):
        make_plan(load(RunConfig, arguments(plain.parent / "in.jsonl", plain.parent / "x", PAIR, *flags), prog="test"))


def killed_at_a_second_try(where: Path) -> type[EngineWorker]:
    """Return a worker whose process is killed, once, while second tries of some rows are written."""

    class Killed(EngineWorker):
        async def _finish(self, rows: list[Any]) -> None:
            again, engine = self.rows._again, self.engine.loop.engine  # type: ignore[attr-defined]

            def again_and_look(row: Any, sample: int, attempt: int) -> Any:
                sequence, step = again(row, sample, attempt), engine.step

                def step_and_look() -> Any:
                    finished = step()
                    if len(sequence.output_token_ids) > 1 and not (where / "killed").exists():
                        (where / "killed").touch()
                        os.kill(os.getpid(), signal.SIGKILL)
                    return finished

                engine.step = step_and_look
                return sequence

            object.__setattr__(self.rows, "_again", again_and_look)
            await super()._finish(rows)

    return Killed


@pytest.mark.ray
@pytest.mark.timeout(600)
def test_a_process_that_is_killed_in_a_second_try_leaves_the_same_corpus(valid, tmp_path, ray_address, monkeypatch):
    monkeypatch.setattr(execution, "EngineWorker", killed_at_a_second_try(tmp_path))
    more = (f"--run.ray_address={ray_address}", "--actors.max_actors=1")
    run = write(tmp_path / "run", EVEN, "--run.validate.max_tries=3", "--engine.drafter=suffix", more=more)
    assert (tmp_path / "killed").exists()
    assert content(run) == content(valid)
    assert written(run) == written(valid)
    assert problems(run) == []
    assert RunDirectory.open(str(run)).has("tries")
