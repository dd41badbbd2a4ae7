"""The rows on which a lesson judges two drafts."""

from pathlib import Path

import pytest

from decoding.sampling_params import SamplingParams
from tests.training.pair import DRAFT, TARGET
from training import lesson as module
from training.corpus.options import CorpusOptions
from training.corpus.rows import Example
from training.lesson import Lesson, drawn
from training.trainer.options import ModelOptions

PARAMS = SamplingParams()


def _examples(number: int) -> list[Example]:
    kinds = ["code"] * (number // 2) + ["story"] * (number - number // 2)
    return [Example((index,), (1,), kind, index, PARAMS) for index, kind in enumerate(kinds)]


def test_rows_from_all_parts_of_a_corpus_judge_a_draft() -> None:
    found = drawn(iter(_examples(1000)), 100)
    assert len({example.noise_key for example in found}) == 100
    assert 30 < sum(example.kind == "story" for example in found) < 70
    assert drawn(_examples(1000), 100) == found


def test_a_lesson_without_a_row_to_judge_by_is_refused_before_it_trains(
    texts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "train_planned", lambda *_: pytest.fail("it trains"))
    models, corpus = ModelOptions(target=TARGET, draft=DRAFT), CorpusOptions(path=texts, held_out_share=1e-9)
    with pytest.raises(ValueError, match="none of the 96 rows is held out"):
        module.hold(Lesson(models=models, corpus=corpus, output=str(tmp_path / "draft")))


def test_all_rows_judge_a_draft_where_there_are_few() -> None:
    assert drawn(_examples(7), 100) == _examples(7)
