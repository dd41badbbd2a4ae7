"""dray.generate and dray.stream: the rows of a run without a run."""

import subprocess
import sys
import warnings
from itertools import count
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dray
from dray.generation import _kept
from jobs import generate
from jobs.config.one_line import load_run
from jobs.config.run import GenerateConfig
from jobs.driver.chosen import chosen_here
from tests.dray.conftest import DRAFT, TARGET
from tests.jobs.runs import errors, generations, write_jsonl

QUESTION = [{"role": "user", "content": "Write a story about a fox."}]
ROWS = [
    {"id": 7, "kind": "text", "prompt": "Once upon a time"},
    {"id": 8, "kind": "chat", "messages": QUESTION},
    {"id": 9, "kind": "bad", "messages": [{"role": "user"}]},
    {"id": 10, "kind": None, "prompt": "The fox", "sampling": {"n": 1, "temperature": 0}},
    {"id": 11, "kind": "bad", "prompt": "fox " * 5000},
    {"id": 12, "kind": "chat", "messages": [{"role": "system", "content": "Be short."}, *QUESTION]},
]
TABLE = pa.table({name: [row.get(name) for row in ROWS] for name in ("id", "kind", "prompt", "messages", "sampling")})
SAMPLED = {"temperature": 0.8, "n": 2, "max_tokens": 16, "seed": 3}
# How fast a row was written may differ: what decides its text may not.
TEXT = ["id", "kind", "sample", "prompt", "is_chat", "text", "token_ids", "finish_reason", "stop_reason"]
TEXT += ["num_prompt_tokens", "num_output_tokens"]


def texts(table: pa.Table) -> list[dict[str, object]]:
    return [row for row in table.select([*TEXT, "error_message"]).to_pylist() if row.pop("error_message") is None]


@pytest.mark.parametrize("form", ["dicts", "arrow", "pandas", "jsonl", "parquet", "iterator"])
@pytest.mark.filterwarnings("ignore:2 of 6 rows failed")
def test_the_rows_are_those_that_the_command_writes(form, model, written, tmp_path):
    source, run = written
    parquet = tmp_path / "rows.parquet"
    rows = {
        "dicts": lambda: ROWS,
        "arrow": lambda: TABLE,
        "pandas": lambda: pd.DataFrame(ROWS).astype({"kind": "category"}),
        "jsonl": lambda: source,
        "parquet": lambda: pq.write_table(TABLE, parquet) or str(parquet),
        "iterator": lambda: iter(ROWS),
    }[form]()
    table = dray.generate(rows, model, id_column="id", carry_columns=["kind"], **SAMPLED)
    assert texts(table) == [{name: row[name] for name in TEXT} for row in generations(run)]
    failed = [row for row in table.to_pylist() if row["error_message"] is not None]
    assert [(row["id"], row["error_stage"], row["error_message"]) for row in failed] == [
        (row["id"], row["stage"], row["message"]) for row in errors(run)
    ]
    assert table["row_id"].to_pylist() == [0, 0, 1, 1, 2, 3, 4, 5, 5]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The rows as a file, and the run that the command makes of them."""
    folder = tmp_path_factory.mktemp("written")
    source = write_jsonl(folder / "rows.jsonl", ROWS)
    sampling = [f"--sampling.{name}={value}" for name, value in SAMPLED.items() if name != "seed"]
    flags = [f"--input.path={source}", "--input.id_column=id", "--input.carry_columns=[kind]", *sampling]
    flags += [f"--output.path={folder / 'run'}", f"--models.target={TARGET}", f"--models.draft={DRAFT}"]
    assert generate.main([*flags, "--run.local", "--run.seed=3", "--run.progress=none"]) == 0
    return str(source), folder / "run"


def test_a_prompt_is_asked_unless_it_is_to_be_gone_on_with(model):
    rows = ["Once upon a time", QUESTION, {"prompt": "The fox"}]
    asked = dray.generate(rows, model, max_tokens=4)
    assert asked["prompt"][0].as_py() == "<|user|>Once upon a time<|end|><|assistant|>"
    assert asked["is_chat"].to_pylist() == [True, True, True]
    gone_on = dray.generate(rows, model, max_tokens=4, prompts_are="text")
    assert gone_on["prompt"].to_pylist()[::2] == ["Once upon a time", "The fox"]
    assert gone_on["is_chat"].to_pylist() == [False, True, False]


def test_a_row_that_fails_loses_no_other_and_is_warned_of(model):
    rows = ["Once upon a time", 7, [{"role": "user", "content": object()}], {"id": {1, 2}, "prompt": "x"}, "The fox"]
    with pytest.warns(
        UserWarning, match="3 of 5 rows failed; error_message says why, of row 1: a row: expected a text"
    ):
        table = dray.generate(rows, model, max_tokens=4, id_column="id")
    assert [message is None for message in table["error_message"].to_pylist()] == [True, False, False, False, True]
    assert [text is None for text in table["text"].to_pylist()] == [False, True, True, True, False]
    with warnings.catch_warnings(action="error"):
        dray.generate(["Once upon a time"], model, max_tokens=4)


def test_a_stream_yields_the_rows_as_they_finish_and_reads_no_further_than_it_must(model):
    taken = count()
    endless = ({"prompt": "Once", "number": next(taken), "sampling": {"max_tokens": 1}} for _ in count())
    rows = dray.stream(endless, model, max_tokens=4, carry_columns="all")
    first = [next(rows) for _ in range(10)]
    assert sorted(row["number"] for row in first) == sorted(row["row_id"] for row in first)
    rows.close()
    assert next(taken) < 1100, "1000 rows tell the types of columns"
    many = ["The fox", "A long day " * 9, *["Once"] * 30]
    whole = dray.generate(many, model, seed=5, max_tokens=8)
    streamed = list(dray.stream(many, model, seed=5, max_tokens=8))
    assert sorted(streamed, key=lambda row: row["row_id"])[1]["text"] == whole["text"][1].as_py()
    assert len(streamed) == whole.num_rows == 32
    assert list(streamed[0]) == whole.column_names


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ("Tell me a story", {}, r"no input file at 'Tell me a story'.*a list of one: \['Tell me a story'\]"),
        (QUESTION, {}, r"messages of one chat; .* put it into a list: \[chat\]"),
        ({"prompt": "x"}, {}, "rows are a list, a table or the path of a file, got dict"),
        (["x"], {"temprature": 0}, "temprature: is not a field; did you mean temperature?"),
        (["x"], {"num_slots": 8}, "num_slots: is not a field .*: sampling, input"),
        (["x"], {"max_tokens": "many"}, "max_tokens: .*integer.*got 'many'"),
        (["x"], {"seed": None}, "seed: .*integer.*got None"),
        (["x"], {"temperature": -1}, "sampling.temperature must be 0"),
        (["x"], {"structured": {"regex": "("}}, "regex"),
        ([{"prompt": "x"}], {"carry_columns": ["y"]}, "the rows have no 'y'; they have prompt"),
        (
            TABLE,
            {"prompt_column": "text", "messages_column": "m"},
            "the rows have no 'text'; they have id, kind, prompt",
        ),
        (["x"], {"id_column": "id"}, "the rows have no 'id'; they have prompt"),
    ],
)
def test_what_is_wrong_with_the_call_is_said_before_any_row(rows, options, message, model):
    with pytest.raises(ValueError, match=message):
        dray.stream(rows, model, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_slots": "many"}, "num_slots: .*integer.*got 'many'"),
        ({"dtype": "float8"}, "dtype: .*'bfloat16'.*got 'float8'"),
        ({"draft": 7}, "draft: .*string.*got 7"),
        ({"system_prompt": ["x"]}, "system_prompt: .*string"),
        ({"target": "x"}, "another name of the argument model"),
    ],
)
def test_what_is_wrong_with_a_model_is_said_before_it_is_loaded(options, message):
    with pytest.raises(ValueError, match=message):
        dray.load_model(TARGET, **options)


@pytest.mark.parametrize("is_exact", [True, False])
def test_numbers_and_drafter_are_chosen_as_one_line_of_the_command_chooses_them(is_exact, tmp_path, monkeypatch):
    monkeypatch.setattr("decoding.network.invariance.is_invariant_on_cpu", lambda *_: is_exact)
    source = write_jsonl(tmp_path / "rows.jsonl", ROWS)
    line = load_run(GenerateConfig, [str(source), str(tmp_path / "out"), "--model", TARGET], "dray generate")
    chosen, loaded = chosen_here(line).generator, dray.load_model(Path(TARGET)).settings
    assert loaded.models.dtype == chosen.models.dtype == ("bfloat16" if is_exact else "float32")
    assert loaded.engine.drafter == chosen.engine.drafter == "suffix"


def test_arrays_of_texts_and_ids_of_numpy_are_rows(model):
    texts = dray.generate(["Once", "The fox"], model, max_tokens=4)["text"]
    array = pa.array(["Once", "The fox"])
    for rows in (array, list(array), pa.record_batch({"prompt": array}), array.to_numpy(zero_copy_only=False)):
        assert dray.generate(rows, model, max_tokens=4)["text"] == texts
    rows = [{"id": np.int64(number), "prompt": text.as_py()} for number, text in enumerate(array)]
    table = dray.generate(rows, model, max_tokens=4, id_column="id")
    assert (table["id"].to_pylist(), table["text"]) == ([0, 1], texts)


def test_a_model_that_is_named_stays_loaded_until_another_one_is():
    dray.generate(["Once"], TARGET, max_tokens=1)
    first = _kept.model
    assert next(dray.stream(["Once"], TARGET, temperature=0.5, max_tokens=1))["text"] is not None
    assert _kept.model is first
    dray.generate(["Once"], TARGET, drafter="ngram", max_tokens=1)
    assert _kept.model is not first


def test_the_bar_counts_rows_and_tokens(model, capsys):
    dray.generate(["Once", "The fox"], model, max_tokens=3, progress=True)
    assert "2/2" in (shown := capsys.readouterr().err)
    assert "6 tokens" in shown
    dray.generate(["Once"], model, max_tokens=3)
    assert capsys.readouterr().err == "", "no terminal"


def test_a_notebook_without_ipywidgets_has_a_line_of_progress(model, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    dray.generate(["Once", "The fox"], model, max_tokens=3)
    assert "2/2" in capsys.readouterr().err


def test_a_program_may_end_while_a_stream_is_open():
    program = (
        f"import dray\nrows = dray.stream(['Once'] * 30, {str(TARGET)!r}, max_tokens=100)\nprint(next(rows)['text'])"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0
    assert "Traceback" not in ended.stderr
