"""A corpus opened from a finished run, with its rows, keys, counts and refusals."""

import shutil
from pathlib import Path

import pytest

from decoding.noise import noise_key
from pipeline.run.directory import RunDirectory
from pipeline.storage.location import Location
from tests.jobs.runs import generations
from tests.pipeline.stores import CREDENTIALS, running_s3_server, s3_uri
from tests.text_pair import save_byte_fallback_tokenizer
from training.corpus.corpus import Corpus
from training.corpus.options import CorpusOptions
from training.corpus.rows import is_held_out


@pytest.fixture
def run(plain_run: Path) -> str:
    return str(plain_run / "out")


@pytest.fixture
def copied(plain_run: Path, tmp_path: Path) -> Path:
    """The run in a folder that a test may change."""
    return Path(shutil.copytree(plain_run / "out", tmp_path / "out"))


def opened(path: str | list[str], target: str, **options: object) -> Corpus:
    return Corpus.open(CorpusOptions(path=path, **options), target)  # type: ignore[arg-type]


def test_a_run_is_read_in_its_order_with_prompts_outputs_kinds_and_noise_keys(run, text_pair):
    corpus = opened(run, text_pair[0], kind_column="kind")
    rows, found = generations(Path(run)), list(corpus.examples())
    assert [example.output_token_ids for example in found] == [tuple(row["token_ids"]) for row in rows]
    assert [len(example.prompt_token_ids) for example in found] == [row["num_prompt_tokens"] for row in rows]
    assert [example.kind for example in found] == [row["kind"] for row in rows]
    units = {unit.unit_id: unit for unit in RunDirectory.open(run).units()}
    keys = [
        noise_key(0, units[row["row_id"] >> 32].first_ordinal + (row["row_id"] & 0xFFFFFFFF), row["sample"])
        for row in rows
    ]
    assert [example.noise_key for example in found] == keys
    assert len(set(keys)) == len(rows) == 30
    assert {example.params.max_tokens for example in found} == {12}


@pytest.mark.parametrize("max_rows", [1, 8, 13])
def test_only_the_first_rows_are_taken_where_that_is_asked_for(run, text_pair, max_rows):
    whole, first = list(opened(run, text_pair[0]).examples()), opened(run, text_pair[0], max_rows=max_rows)
    assert list(first.examples()) == whole[:max_rows]
    assert first.num_rows == max_rows
    assert first.num_output_tokens == sum(len(example.output_token_ids) for example in whole[:max_rows])


def test_held_out_rows_and_the_others_are_the_whole_and_share_no_prompt(run, text_pair):
    corpus = opened(run, text_pair[0], held_out_share=0.4)
    whole, held_out, rest = (list(corpus.examples(part)) for part in (None, True, False))
    assert held_out
    assert rest
    assert sorted(map(repr, [*held_out, *rest])) == sorted(map(repr, whole))
    assert not {each.prompt_token_ids for each in held_out} & {each.prompt_token_ids for each in rest}


def test_held_out_rows_and_the_others_come_in_the_order_of_all(run, text_pair):
    corpus = opened(run, text_pair[0], held_out_share=0.4, max_rows=27)
    for part in (True, False):
        expected = [each for each in corpus.examples() if is_held_out(each.prompt_token_ids, 0.4) == part]
        assert list(corpus.examples(part)) == expected


def test_a_run_in_progress_has_the_rows_of_the_parts_that_are_committed_when_it_is_opened(copied, text_pair):
    part = copied / "data" / "part-000000001.parquet"
    kept = part.read_bytes()
    whole = list(opened(str(copied), text_pair[0]).examples())
    part.unlink()
    corpus = opened(str(copied), text_pair[0])
    part.write_bytes(kept)
    assert list(corpus.examples()) == [*whole[:8], *whole[16:]]
    assert corpus.fingerprint() != opened(str(copied), text_pair[0]).fingerprint()


def test_the_fingerprint_is_that_of_the_rows_wherever_the_run_is(run, copied, text_pair):
    fingerprint = opened(run, text_pair[0]).fingerprint()
    assert opened(str(copied), text_pair[0]).fingerprint() == fingerprint
    assert opened(run, text_pair[0], max_rows=29).fingerprint() != fingerprint
    assert opened(run, text_pair[0], held_out_share=0.1).fingerprint() != fingerprint


def test_a_part_that_changes_after_the_corpus_was_opened_is_an_error(copied, text_pair):
    corpus = opened(str(copied), text_pair[0])
    shutil.copy(copied / "data" / "part-000000000.parquet", copied / "data" / "part-000000003.parquet")
    with pytest.raises(ValueError, match=r"part-000000003.parquet has changed since the corpus was opened: it had"):
        list(corpus.examples())


def test_a_run_of_another_target_is_refused(run, text_pair):
    with pytest.raises(ValueError, match=r"is a run of another target, .*target: its fingerprint is"):
        opened(run, text_pair[1])


def test_a_run_with_another_chat_template_is_refused(run, text_pair, tmp_path):
    changed = Path(shutil.copytree(text_pair[0], tmp_path / "target"))
    template = changed / "chat_template.jinja"
    template.write_text(template.read_text().replace("<assistant>", "<model>"))
    with pytest.raises(ValueError, match="is a run with another tokenizer or chat template"):
        opened(run, str(changed))


def test_a_run_with_another_tokenizer_is_refused(run, text_pair, tmp_path):
    save_byte_fallback_tokenizer(tmp_path)
    with pytest.raises(ValueError, match=r"another tokenizer or chat template.* set models\.tokenizer to the run's"):
        Corpus.open(CorpusOptions(path=run), text_pair[0], str(tmp_path))


def test_a_run_without_a_part_is_refused(copied, text_pair):
    for part in copied.glob("data/*.parquet"):
        part.unlink()
    with pytest.raises(ValueError, match="has no rows with a text: 0 files with 0 rows; name a run that has committed"):
        opened(str(copied), text_pair[0])


def test_a_kind_column_that_is_not_there_is_refused_with_those_that_are(run, text_pair):
    with pytest.raises(ValueError, match=r"has no column 'topic'; it has row_id, sample, .*kind: set corpus\."):
        opened(run, text_pair[0], kind_column="topic")


def test_several_runs_are_one_corpus(run, copied, text_pair):
    both = opened([run, str(copied)], text_pair[0])
    found = list(both.examples())
    assert len(both.runs) == 2
    assert both.num_rows == len(found) == 60
    assert found[:30] == found[30:]


def test_a_run_in_a_store_has_the_same_rows(run, text_pair, monkeypatch):
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with running_s3_server() as address:
        store = Location.parse(s3_uri(address, "bucket/run"))
        store.make_folder()
        for file in (path for path in Path(run).rglob("*") if path.is_file()):
            to = store.child(str(file.relative_to(run)))
            with to.filesystem.open_output_stream(to.path) as stream:
                stream.write(file.read_bytes())
        corpus, local = opened(store.name, text_pair[0]), opened(run, text_pair[0])
        assert list(corpus.examples()) == list(local.examples())
        assert corpus.fingerprint() == local.fingerprint()
