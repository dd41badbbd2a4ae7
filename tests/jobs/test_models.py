"""`jobs.models` decides for a class of models whether it is exact, from a tiny random model of it."""

import pytest

from jobs import models
from jobs.proving import family as family_module
from jobs.proving.family import Family, model_types, names_of, published, try_family

# Latent attention, ALiBi, sinusoids, chunks with experts: `make models` tries all types.
EXACT = ("deepseek_v3", "mpt", "xglm", "llama4_text", "jamba")
# One that two implementations of attention compute otherwise, one whose factors are few, one without a state, and some
# with states.
PUBLISHED = ("falcon, alibi", "phi3, longrope, three quarters turned, window", "granitemoehybrid, all attention")
PUBLISHED += ("kimi_linear, published", "zamba2, published", "bamba, published")
REFUSED = {
    "bart": "the model is an encoder-decoder model (bart)",
    "recurrent_gemma": "keeps outside of the cache",
    "doge": "does not compute the same on the slot cache",
    "deepseek_v4": "layers of type compressed_sparse_attention, heavily_compressed_attention",
}


@pytest.mark.parametrize("name", [*EXACT, *PUBLISHED])
def test_every_drafter_writes_what_transformers_writes(name):
    family = try_family(name)
    assert (family.verdict, family.reason) == ("exact", "")
    assert family.num_tokens == 4 * 20 * (5 + 1 + 5)
    assert 0 < family.num_accepted_tokens < family.num_tokens, "drafts are accepted, and rejected"


@pytest.mark.parametrize("model_type", REFUSED)
def test_a_model_that_cannot_be_exact_is_refused_with_the_reason(model_type):
    family = try_family(model_type)
    assert family.verdict == "refused"
    assert REFUSED[model_type] in family.reason
    assert "/" not in family.reason.partition("(")[0], "no folder of this machine is named"


def test_a_type_is_tried_with_its_published_options_too():
    assert names_of(["falcon", "bart"])[:3] == ["bart", "falcon", "falcon, alibi"]
    assert set(names_of(model_types())) == {*model_types(), *published()}


@pytest.mark.usefixtures("lenient_verifier")
def test_a_verifier_that_accepts_what_it_must_not_is_found_out():
    family = try_family("llama")
    assert family.verdict == "wrong"
    assert "another token at " in family.reason


@pytest.mark.slow
def test_the_command_prints_a_line_for_each_type_and_writes_the_page(tmp_path, capsys):
    page = tmp_path / "models.md"
    assert models.main(["recurrent_gemma", "bart", "--write", str(page)]) == 0
    printed = capsys.readouterr().out
    assert "refused   recurrent_gemma " in printed
    assert ": 2 refused, 0 wrong, 0 crash; 0 tokens compared" in printed
    assert "| `bart` | the model is an encoder-decoder model (bart)" in page.read_text()


@pytest.mark.parametrize(
    ("verdict", "code"), [("exact", 0), ("refused", 0), ("not tried", 0), ("wrong", 1), ("crash", 1)]
)
def test_a_wrong_token_and_a_crash_fail_the_command(verdict, code, monkeypatch):
    monkeypatch.setattr(family_module, "_tried", lambda *_: iter([Family("llama", "Llama", verdict, "why")]))
    assert models.main(["llama"]) == code


def test_a_type_that_transformers_does_not_know_is_named(capsys):
    assert models.main(["lama"]) == 2
    assert "has no causal model 'lama'" in capsys.readouterr().err
    assert len(model_types()) > 150
