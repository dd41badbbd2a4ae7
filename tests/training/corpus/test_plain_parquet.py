"""Parquet of prompts and outputs that is no run."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.text.codec import TextCodec
from tests.training.pair import TARGET
from training.corpus.corpus import Corpus
from training.corpus.options import CorpusOptions

CODEC = TextCodec.load(TARGET)
END = CODEC.tokenizer.eos_token_id


def saved(path: Path, **columns: list[Any]) -> str:
    pq.write_table(pa.table(columns), path, row_group_size=3)
    return str(path)


def opened(path: str, **options: Any) -> Corpus:
    return Corpus.open(CorpusOptions(path=path, **options), TARGET)


def test_text_becomes_the_tokens_that_the_tokenizer_gives_it_behind_its_prompt_and_an_end_token(tmp_path):
    path = saved(tmp_path / "a.parquet", prompt=["Once upon"], text=[" a time there was."])
    (example,) = opened(path, temperature=0.7).examples()
    assert example.prompt_token_ids == tuple(CODEC.encode("Once upon", False))
    whole = CODEC.tokenizer("Once upon a time there was.")["input_ids"]
    assert [*example.prompt_token_ids, *example.output_token_ids] == [*whole, END]
    assert (example.noise_key, example.kind, example.params.temperature) == (None, "all", 0.7)


def test_a_last_file_without_rows_counts_in_the_fingerprint_as_in_older_versions(tmp_path):
    saved(tmp_path / "a.parquet", prompt=["Once"], text=[" upon a time"])
    alone = opened(str(tmp_path / "a.parquet"))
    saved(tmp_path / "b.parquet", prompt=[], text=[])
    both = opened(str(tmp_path))
    assert [file.num_rows for file in both.files] == [1, 0]
    assert both.fingerprint() != alone.fingerprint()
    assert [file.num_rows for file in opened(str(tmp_path), max_rows=1).files] == [1]


def test_a_text_that_ran_into_its_limit_or_a_stop_string_gets_no_end_token(tmp_path):
    path = saved(
        tmp_path / "a.parquet",
        prompt=["Once"] * 4,
        text=[" upon a time"] * 4,
        finish_reason=["stop", "length", "stop", None],
        stop_reason=[None, None, "\n", None],
    )
    ends = [example.output_token_ids[-1] == END for example in opened(path).examples()]
    assert ends == [True, False, False, True]


def test_token_ids_are_taken_as_they_are(tmp_path):
    path = saved(tmp_path / "a.parquet", prompt=["Once"], text=["other"], token_ids=[[5, 6, 7]])
    (example,) = opened(path).examples()
    assert example.output_token_ids == (5, 6, 7)


def test_rows_without_a_prompt_or_a_text_are_skipped_and_counted(tmp_path):
    path = saved(tmp_path / "a.parquet", prompt=["a", "b", None, "", "c"], text=["x", "", "y", "z", None])
    corpus = opened(path)
    assert [example.prompt_token_ids for example in corpus.examples()] == [tuple(CODEC.encode("a", False))]
    assert (corpus.num_rows, corpus.num_output_tokens) == (1, 2)


def test_the_first_rows_are_those_of_the_first_row_groups(tmp_path):
    texts = [f"text {number}" for number in range(10)]
    path = saved(tmp_path / "a.parquet", prompt=[f"prompt {number}" for number in range(10)], text=texts)
    whole = list(opened(path).examples())
    assert list(opened(path, max_rows=7).examples()) == whole[:7]


@pytest.mark.parametrize(
    ("columns", "missing"),
    [
        ({"question": ["a"], "text": ["b"]}, "'prompt'; it has question, text"),
        ({"prompt": ["a"], "answer": ["b"]}, "'text'; it has prompt, answer"),
    ],
)
def test_a_file_without_a_column_is_refused_with_the_columns_that_it_has(tmp_path, columns, missing):
    path = saved(tmp_path / "a.parquet", **columns)
    with pytest.raises(ValueError, match=f"a.parquet has no column {missing}: set corpus.prompt_column"):
        opened(path)


def test_a_folder_without_parquet_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text("prompt,text\na,b\n")
    with pytest.raises(ValueError, match="is no run directory and names no Parquet file"):
        opened(str(tmp_path))


def test_a_file_that_is_no_parquet_is_refused(tmp_path):
    (tmp_path / "a.parquet").write_text("no parquet at all")
    with pytest.raises(ValueError, match=r"a\.parquet: damaged, or no Parquet file"):
        opened(str(tmp_path))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": []}, "corpus.path must name a run directory or Parquet files"),
        ({"path": "a", "held_out_share": 1.0}, "held_out_share must be at least 0 and below 1, got 1.0"),
        ({"path": "a", "max_rows": 0}, "max_rows must be at least 1, got 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        CorpusOptions(**options)
