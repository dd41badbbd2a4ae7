"""What crosses between API keys, and what does not: the table in docs/serving.md, line by line and over real HTTP.

Most tests ask an endpoint by one key twice: where another key has asked before, and where none has. All that comes back
must be the same.
"""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pyarrow.parquet as pq
import pytest

from actors.settings import ReplicaSettings
from decoding import SamplingParams, Sequence
from decoding.pace.acceptance import Acceptance
from decoding.scope import Scope
from endpoint.batches.batch import BatchSettings
from endpoint.edge.headers import Keys
from endpoint.edge.install import EdgeSettings
from endpoint.http.origin import owner_of
from endpoint.service.service import ServiceSettings
from jobs.config.fields import all_fields
from jobs.config.serve import ServeConfig
from tests.endpoint.batches.asking import begin, ended, line, results, texts
from tests.endpoint.in_process import MODEL, Server, running_server, settings_of
from tests.endpoint.toy_app import KEY, OTHER_KEY
from tests.endpoint.web import ask

ROOT = Path(__file__).parents[2]
DRAFTS = {"include_draft_spans": True, "include_rejected_drafts": True}
BEGINNING = "the quick brown fox jumps over the lazy dog and "
MARKER = "what-only-one-key-knows"
Pair = tuple[str, str]
Answers = list[dict[str, Any]]


@contextmanager
def endpoint(
    pair: Pair, drafter: str = "suffix", folder: Path | None = None, *, is_open: bool = False, **shared: Any
) -> Iterator[Server]:
    """Run an endpoint that two keys open, or none."""
    models = (pair[0], pair[1] if drafter in ("model", "hybrid") else None)
    settings = settings_of(models, drafter=drafter, num_speculative_tokens=4)  # type: ignore[arg-type]
    edge = EdgeSettings(keys=None if is_open else Keys([KEY, OTHER_KEY]))
    batches = None if folder is None else BatchSettings(path=str(folder))
    replica = ReplicaSettings(**shared)
    with running_server(settings, ServiceSettings(model=MODEL), edge, batches, replica_settings=replica) as server:
        yield server


def api_of(server: Server, key: str) -> openai.OpenAI:
    return server.client().with_options(api_key=key)


def answers(server: Server, key: str) -> Answers:
    """Return all that a key's requests bring, but for times and ids."""
    api = api_of(server, key)
    return [*(streamed(api, seed) for seed in range(6)), whole(api)]


def streamed(api: openai.OpenAI, seed: int) -> dict[str, Any]:
    body = {"model": MODEL, "prompt": BEGINNING, "seed": seed, "max_tokens": 30, "temperature": 0.7}
    options = {"stream": True, "stream_options": {"include_usage": True}, "extra_body": DRAFTS}
    *chunks, last = api.completions.create(**body, **options)  # type: ignore[call-overload]
    spans = [span for chunk in chunks for choice in chunk.choices for span in choice.draft_spans]
    return {
        "text": "".join(choice.text for chunk in chunks for choice in chunk.choices),
        "rejected": [span["rejected"] for span in spans if "rejected" in span],
        "drafted": "".join(span["text"] for span in spans if span["is_accepted"]),
        "cached": last.usage.prompt_tokens_details.cached_tokens,
        "metrics": last.metrics,
    }


def whole(api: openai.OpenAI) -> dict[str, Any]:
    answer = api.completions.create(
        model=MODEL, prompt=BEGINNING, seed=1, max_tokens=20, n=2, extra_body={"prompt_logprobs": 1}
    )
    return {name: value for name, value in answer.to_dict().items() if name not in ("id", "created")}


@pytest.mark.parametrize("drafter", ["suffix", "hybrid", "ngram", "model", "none"])
def test_what_a_key_gets_does_not_depend_on_what_another_key_asked(text_pair, drafter):
    with endpoint(text_pair, drafter) as server:
        alone = answers(server, OTHER_KEY)
    assert alone[1]["cached"] > 0, "a key shares prefixes with itself"
    assert any(answer["rejected"] for answer in alone[:-1]) is (drafter not in ("ngram", "none"))
    with endpoint(text_pair, drafter) as server:
        assert answers(server, KEY) == alone, "the endpoint does not tell keys apart by their names"
        assert answers(server, OTHER_KEY) == alone


def test_a_key_is_shown_what_another_key_wrote_only_where_drafts_are_shared(text_pair):
    """A text that another key has, asked for by the same seed, is drafted to its end by a lookup that knows it."""
    for shared in (False, True):
        with endpoint(text_pair, share_drafts=shared) as server:
            first, second = (streamed(api_of(server, key), seed=3) for key in (KEY, OTHER_KEY))
        assert first["text"] == second["text"]
        assert (len(second["drafted"]) > max(20, 2 * len(first["drafted"]))) is shared


def test_a_key_is_told_of_another_keys_prompts_only_where_prefixes_are_shared(text_pair):
    for shared in (False, True):
        with endpoint(text_pair, share_prefixes=shared) as server:
            first, second = (streamed(api_of(server, key), seed=3) for key in (KEY, OTHER_KEY))
        assert first["cached"] == 0
        assert (second["cached"] > 0) is shared


def test_without_keys_all_clients_are_one(text_pair):
    with endpoint(text_pair, is_open=True) as server:
        first, second = (streamed(api_of(server, key), seed=3) for key in (KEY, OTHER_KEY))
    assert (first["cached"], second["cached"] > 0) == (0, True)
    assert len(second["drafted"]) > len(first["drafted"])


def test_rows_of_a_batch_serve_no_other_key_and_no_other_key_serves_them(text_pair, tmp_path):
    lines, found = [line(3, prompt=BEGINNING, max_tokens=30, temperature=0.7)], []
    for earlier in (None, KEY):
        with endpoint(text_pair, folder=tmp_path / str(earlier)) as server:
            for key in (earlier, OTHER_KEY) if earlier else (OTHER_KEY,):
                api = api_of(server, key)
                batch = ended(api, begin(api, lines)).to_dict()
                of_batch = batch["usage"], texts(results(api, batch["output_file_id"]))  # type: ignore[arg-type]
                answered = of_batch, streamed(api, seed=3), whole(api)
            found.append(answered)
    assert found[0] == found[1]


def test_runs_of_batches_record_no_rounds(text_pair, tmp_path):
    with endpoint(text_pair, folder=tmp_path) as server:
        api = api_of(server, KEY)
        assert ended(api, begin(api, [line(0)])).status == "completed"
    (part,) = tmp_path.glob("*/batches/*/run/data/*.parquet")
    assert "draft_rounds" not in pq.read_schema(part).names


def test_requests_of_two_keys_with_one_id_get_answers_of_their_own(text_pair):
    with endpoint(text_pair) as server, ThreadPoolExecutor() as pool:
        asked: dict[str, dict[str, Any]] = {
            key: {"prompt": f"to {key}", "seed": 1, "max_tokens": 40} for key in (KEY, OTHER_KEY)
        }

        def text(key: str) -> str:
            headers = {"x-request-id": "the-same"}
            answer = api_of(server, key).completions.create(model=MODEL, **asked[key], extra_headers=headers)  # type: ignore[call-overload]
            return str(answer.choices[0].text)

        found = dict(zip(asked, pool.map(text, asked), strict=True))
        assert found == {key: server.offline(**body)[0]["text"] for key, body in asked.items()}


def test_metrics_tell_every_key_the_counts_of_all_and_no_text_of_any(text_pair):
    with endpoint(text_pair) as server:
        body = {"model": MODEL, "prompt": MARKER, "user": MARKER, "max_tokens": 7, "ignore_eos": True}
        headers = {"authorization": f"Bearer {KEY}", "x-request-id": MARKER}
        assert ask(server.port, "/v1/completions", body, headers=headers).status == 200
        for path, asked in (
            (f"/v1/{MARKER}", None),
            ("/v1/completions", {**body, "model": MARKER}),
            (f"/?{MARKER}", None),
        ):
            assert ask(server.port, path, asked, headers=headers).status == 404
        page = ask(server.port, "/metrics", headers={"authorization": f"Bearer {OTHER_KEY}"}).body.decode()
    assert re.search(r"^dray_served_generation_tokens_total\{.*\} 7.0$", page, re.MULTILINE)
    assert not any(text in page for text in (MARKER, KEY, owner_of(KEY.encode())))


def test_a_form_that_another_key_asked_for_is_compiled_already(text_pair):
    """The time that this saves tells a key that another one asked for this very form."""
    with endpoint(text_pair) as server:
        for key in (KEY, OTHER_KEY):
            form = {"structured_outputs": {"choice": ["yes", "no"]}}
            api_of(server, key).completions.create(model=MODEL, prompt="a", max_tokens=9, extra_body=form)
            assert server.replica._loop.engine._grammars.num_compiled == 1


def test_how_often_drafts_are_accepted_is_estimated_over_all_keys():
    acceptance, row = Acceptance(2), Sequence.create([1], SamplingParams(), scope=Scope("one", "one"))
    before = acceptance.survival_BK([None])
    acceptance.observe([row], [2], [0])
    assert (acceptance.survival_BK([None]) < before).all()


def test_an_endpoint_trains_no_draft_and_publishes_nothing():
    fields = [each.name for each in all_fields(ServeConfig)]
    assert not [name for name in fields if name.startswith(("learn", "output", "report"))]


def test_the_table_names_the_tests_of_each_line():
    section = (ROOT / "docs/serving.md").read_text().split("## What keys learn of each other")[1].split("\n## ")[0]
    lines = [row for row in section.splitlines() if row.startswith("| ")][1:]
    named = [re.findall(r"`(\S+\.py)(?:::(test_\w+))?`", row.rpartition(" | ")[2]) for row in lines]
    assert len(lines) > 9
    assert all(named), "a line has no test"
    for file, test in (each for names in named for each in names):
        assert f"def {test}(" in (ROOT / file).read_text(), f"{file} has no {test}"
    own = set(re.findall(r"^def (test_\w+)", Path(__file__).read_text(), re.MULTILINE))
    told = {test for names in named for _, test in names}
    assert own - told == {"test_the_table_names_the_tests_of_each_line"}
