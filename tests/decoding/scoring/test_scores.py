"""The scores of texts are transformers' own, whatever is scored beside them."""

from collections.abc import Sequence as Seq

import pytest
import torch
from transformers import AutoModelForCausalLM

import decoding.sampling.logprobs
from decoding import Engine, EngineOptions, SamplingParams, ScoredText
from decoding.network.language_model import LanguageModel
from decoding.sampling.logprobs import Stretch
from decoding.scope import Scope
from decoding.sequence import Sequence
from tests.decoding.families import FAMILIES, FUSED, family_network
from tests.decoding.tiny import POISON, engine_over, loaded, outputs, poisoned_models, random_prompts, save

PROMPTS = random_prompts([9, 1, 17, 30, 2, 45], seed=2)
CONTINUATIONS = random_prompts([1, 5, 1, 12, 3], seed=3)
SHARED = random_prompts([40], seed=4)[0]
TEXTS = [
    ScoredText.whole,
    lambda prompt: ScoredText(tuple(prompt), tuple(map(tuple, CONTINUATIONS))),
    lambda prompt: ScoredText((*SHARED, *prompt[:9]), tuple(map(tuple, CONTINUATIONS[:3]))),
]


def make_texts() -> list[ScoredText]:
    return [make(prompt) for prompt in PROMPTS for make in TEXTS]


def expected_scores(path: str, texts: Seq[ScoredText]) -> list[list[list[float]]]:
    """Each text by itself, in transformers' own float32 forward."""
    network = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    found = []
    for text in texts:
        of_text = []
        for continuation in text.continuations:
            tokens = [*text.prompt_token_ids, *continuation]
            with torch.no_grad():
                logprobs_TV = network(torch.tensor([tokens])).logits[0].float().log_softmax(-1)
            first = len(text.prompt_token_ids) - 1
            of_text.append([logprobs_TV[first + k, token].item() for k, token in enumerate(continuation)])
        found.append(of_text)
    return found


def values(texts: Seq[ScoredText]) -> list[list[list[float]]]:
    assert [text.error for text in texts] == [None] * len(texts)
    return [[[entry.logprob for entry in scores] for scores in text.scores] for text in texts]


def assert_close(found: list, expected: list, within: float = 1e-4) -> None:
    assert [[len(c) for c in text] for text in found] == [[len(c) for c in text] for text in expected]
    flat = [torch.tensor([v for text in scores for c in text for v in c]) for scores in (found, expected)]
    torch.testing.assert_close(*flat, rtol=0, atol=within)


@pytest.mark.parametrize(("name", "table"), [*((name, FAMILIES) for name in FAMILIES), ("qwen3", FUSED)])
def test_scores_are_those_of_transformers_for_every_family(name: str, table: dict, tmp_path) -> None:
    network = family_network(name, table)
    path = save(network, tmp_path / "model")
    model = loaded(network, tmp_path / "model")
    if table is FUSED:
        model.speed_up()
        assert model.fused is not None
    engine, texts = engine_over(model, max_model_len=90, max_prefill_tokens=64), make_texts()
    engine.score(texts)
    assert_close(values(texts), expected_scores(path, texts))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save(family_network("llama", FUSED), tmp_path_factory.mktemp("model") / "target")


def load(path: str, **options: object) -> Engine:
    return Engine.load(path, None, EngineOptions(drafter="none", **options), device="cpu", dtype="float32")


@pytest.mark.parametrize("logits_at_once", [1, 7 * 48, 1 << 24])
@pytest.mark.parametrize("num_tokens", [1, 7, 512])
def test_scores_and_likely_tokens_are_the_same_bit_for_bit_whatever_is_beside_them(
    path: str, num_tokens: int, logits_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = []
    engine = load(path, max_model_len=96)
    if not engine.target.is_batch_invariant:
        pytest.skip("the products of this processor's library depend on the batch")
    for text in make_texts():
        text.num_top = 3
        load_like = [text]
        engine.score(load_like)
        alone.append(text.scores)
    monkeypatch.setattr(decoding.sampling.logprobs, "LOGITS_AT_ONCE", logits_at_once)
    texts = make_texts()
    for text in texts:
        text.num_top = 3
    load(path, max_model_len=96, max_prefill_tokens=num_tokens).score(reversed(texts))
    assert [text.scores for text in texts] == alone
    assert any(text.num_cached_tokens > 30 for text in texts), "no prompt was shared"
    assert all(len(entry.top) == 3 for scores in alone[1] for entry in scores)


def test_texts_of_two_scopes_are_read_apart_and_have_equal_scores(path: str) -> None:
    texts = [ScoredText.whole(SHARED, scope=Scope(prefixes=scope)) for scope in ("one", "other", "one", "other")]
    engine = load(path)
    engine.score(texts)
    assert [text.num_cached_tokens for text in texts] == [0, 0, 39, 39]
    assert [text.scores for text in texts[1:]] == [texts[0].scores] * 3


def test_scoring_changes_nothing_that_is_written_meanwhile(path: str) -> None:
    engine, params = load(path, num_slots=2), SamplingParams(max_tokens=20, ignore_eos=True)
    expected = outputs(engine.generate([[5, 6], [7]], params))
    texts = make_texts()
    engine.submit(engine.rows_of(texts))
    engine.step()
    assert outputs(engine.generate([[5, 6], [7]], params)) == expected
    for text in texts:
        text.collect()
    assert_close(values(texts), expected_scores(path, texts))


def test_a_text_with_nothing_to_score_has_no_scores(path: str) -> None:
    texts = [ScoredText.whole([5]), ScoredText((5, 6), ((), (7,), ()))]
    load(path).score(texts)
    assert texts[0].scores == [[]]
    assert [len(scores) for scores in texts[1].scores] == [0, 1, 0]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (ScoredText.whole([]), "no tokens"),
        (ScoredText.whole([5] * 97), "the text has 97 tokens and the context is 96;"),
        (ScoredText((5,) * 50, ((6,), (7,) * 47)), r"97 tokens \(50 of the prompt and 47 behind it\)"),
        (ScoredText((5, 999), ((6,),)), "id 999"),
        (ScoredText((5,), ((6,), (7, 48))), "id 48"),
    ],
)
def test_a_text_that_cannot_be_read_fails_alone(path: str, text: ScoredText, problem: str) -> None:
    text = ScoredText(text.prompt_token_ids, text.continuations)
    beside = make_texts()
    load(path).score([*beside, text])
    with pytest.raises(AssertionError, match=problem):
        raise AssertionError(text.error)
    assert_close(values(beside), expected_scores(path, beside))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_text_whose_logits_are_not_finite_fails_alone_and_leaves_no_trace(value: float, tmp_path) -> None:
    models = poisoned_models(tmp_path, value)
    engine = engine_over(models.target, max_model_len=90, max_prefill_tokens=64)
    poisoned = [ScoredText((POISON, 1, 2), ((3, 4), (5, 6))), ScoredText.whole([1, 2, POISON, 3])]
    sound = [text for text in make_texts() if POISON not in {*text.prompt_token_ids, *sum(text.continuations, ())}]
    expected = expected_scores(str(tmp_path / "target"), sound)
    for texts in ([*sound[:3], *poisoned, *sound[3:]], sound):
        texts = [ScoredText(text.prompt_token_ids, text.continuations) for text in texts]
        engine.score(texts)
        failed = [text for text in texts if POISON in {*text.prompt_token_ids, *sum(text.continuations, ())}]
        assert all("not finite" in str(text.error) for text in failed)
        assert_close(values([text for text in texts if text not in failed]), expected)


def test_texts_that_are_dropped_do_not_come_back_and_spoil_nothing(path: str) -> None:
    engine, texts, unwanted = load(path, max_prefill_tokens=16), make_texts(), make_texts()
    dropped, rows = engine.rows_of(unwanted), engine.rows_of(texts)
    engine.submit([*dropped, *rows])
    early = engine.step()
    engine.drop(dropped)
    assert {row.error for row in dropped} == {None, "it was dropped"}
    assert set(engine.stream([])) == {*dropped, *rows} - set(early)
    for text in texts:
        text.collect()
    assert_close(values(texts), expected_scores(path, texts))


def test_while_its_last_row_is_dropped_an_engine_says_that_it_has_work(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = load(path, num_slots=1, max_prefill_tokens=8)
    rows = engine.rows_of([ScoredText.whole(SHARED)])
    engine.submit(rows)
    engine.step()
    assert engine.in_flight == rows
    fail, has_work = Sequence.fail, []

    def failed(self: Sequence, message: str) -> None:
        fail(self, message)
        has_work.append(engine.has_work)  # as another thread may ask

    monkeypatch.setattr(Sequence, "fail", failed)
    engine.drop(rows)
    assert has_work == [True]
    assert engine.step() == rows


def test_rows_that_end_beside_texts_come_back_though_scoring_fails(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = load(path, num_slots=2, max_prefill_tokens=8)
    row = Sequence.create([5], SamplingParams(max_tokens=1))
    engine.submit([row])
    with monkeypatch.context() as patched:
        logprobs = LanguageModel.logprobs

        def failing(self: LanguageModel, stretches: Seq[Stretch]) -> list:
            if row.is_finished:
                raise RuntimeError("it fails")
            return logprobs(self, stretches)

        patched.setattr(LanguageModel, "logprobs", failing)
        with pytest.raises(RuntimeError, match="it fails"):
            engine.score([ScoredText.whole([*SHARED, *SHARED])])
    assert row in engine.step()


def test_a_text_whose_scoring_failed_is_scored_anew(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, (text,) = load(path, max_prefill_tokens=2), make_texts()[1:2]
    with monkeypatch.context() as patched:
        patched.setattr(LanguageModel, "logprobs", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            engine.score([text])
    engine.clear()
    engine.score([text, text])
    assert_close(values([text]), expected_scores(path, [text]))


def test_what_texts_share_is_read_once_though_all_of_it_is_scored(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> list[ScoredText]:
        asked = [*CONTINUATIONS, *CONTINUATIONS[:2]]  # two of them twice
        return [ScoredText.whole([*SHARED, *continuation], num_top=2) for continuation in asked]

    num_read, logprobs = [0], LanguageModel.logprobs

    def counted(self: LanguageModel, stretches: Seq[Stretch]) -> list:
        num_read[0] += sum(len(stretch.token_ids) for stretch in stretches)
        return logprobs(self, stretches)

    monkeypatch.setattr(LanguageModel, "logprobs", counted)
    texts, alone = make(), make()
    load(path).score(texts)
    assert num_read[0] <= len(SHARED) + sum(map(len, CONTINUATIONS)) + len(CONTINUATIONS)
    for text in alone:
        load(path).score([text])
    assert_close(values(texts), values(alone), 1e-5)
    tops = [[[token for token, _ in entry.top] for entry in text.scores[0]] for text in texts]
    assert tops == [[[token for token, _ in entry.top] for entry in text.scores[0]] for text in alone]


def test_answers_with_other_likely_tokens_are_not_taken_over(path: str) -> None:
    few, many = ScoredText.whole([*SHARED, 5], num_top=1), ScoredText.whole([*SHARED, 6], num_top=4)
    load(path).score([few, many])
    assert {len(entry.top) for entry in few.scores[0]} == {1}
    assert {len(entry.top) for entry in many.scores[0]} == {4}
