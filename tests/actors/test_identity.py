"""What decides the tokens of an engine is named once, for runs and for served models."""

from dataclasses import replace

import pytest

from actors.engines import backend_of
from actors.identity import as_begun
from actors.settings import EngineSettings, GeneratorSettings, ModelSettings

PAIR = ModelSettings(target="a target", draft="a draft", device="cpu", dtype="float32")


@pytest.fixture
def settings(text_pair: tuple[str, str]) -> GeneratorSettings:
    models = replace(PAIR, tokenizer=text_pair[0])
    return GeneratorSettings(models=models, engine=EngineSettings(drafter="model"))


def under(settings: GeneratorSettings, **options: object) -> GeneratorSettings:
    return replace(settings, engine=replace(settings.engine, **options))  # type: ignore[arg-type]


def test_drafts_are_in_the_identity_where_the_text_depends_on_them_and_nowhere_else(settings, monkeypatch):
    monkeypatch.setattr(EngineSettings, "drafts_with_a_head", lambda *_: False)
    monkeypatch.setattr(EngineSettings, "pick_drafter", lambda self, _: self.drafter)

    def identity(given: GeneratorSettings) -> dict[str, object]:
        return backend_of(given).identity(str)

    mapped = replace(settings, models=replace(settings.models, draft_vocabulary="map"))
    for changed in (under(settings, draft_length="fixed"), under(settings, num_speculative_tokens=3), mapped):
        assert identity(changed) == identity(settings)
        rejection = identity(under(changed, verification="rejection"))
        assert rejection != identity(under(settings, verification="rejection"))


def test_a_run_that_was_begun_without_a_draft_length_goes_on(settings):
    now = {"drafter": {"name": "model", "draft_length": "fixed"}, "moment": None, "seed": 0}
    begun = {"drafter": {"name": "model"}, "seed": 0}
    assert as_begun(now, begun) == begun
    assert as_begun(now, now) == now
