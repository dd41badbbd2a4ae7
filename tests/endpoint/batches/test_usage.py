"""Counts of texts that end inside a draft: the same and right in answers, streams, batches and rows."""

from collections.abc import Iterator
from typing import Any

import pytest

from decoding import Engine, EngineOptions
from endpoint.batches.batch import BatchSettings
from endpoint.edge.install import EdgeSettings
from endpoint.service.service import ServiceSettings
from pipeline.run.check import contradictions
from tests.endpoint.batches.asking import begin, ended, line, results
from tests.endpoint.in_process import CONTEXT, MODEL, Server, answered, running_server, settings_of, streamed

LENGTH, NUM_DRAFTED = 12, 3
SAMPLING: dict[str, Any] = {"prompt": "hello world", "temperature": 0, "max_tokens": LENGTH, "ignore_eos": True}


@pytest.fixture(scope="module")
def server(text_pair: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The application over a target that drafts for itself: all of a draft is accepted, and so ends lie inside."""
    settings = settings_of((text_pair[0], text_pair[0]), num_speculative_tokens=NUM_DRAFTED)
    batches = BatchSettings(path=str(tmp_path_factory.mktemp("batches")))
    with running_server(settings, ServiceSettings(model=MODEL), EdgeSettings(keys=None), batches) as running:
        yield running


def endings(server: Server) -> list[dict[str, Any]]:
    """A limit, a stop string and a stop token behind each number of tokens."""
    token_ids = server.offline(**SAMPLING)[0]["token_ids"]
    firsts = [place for place, token_id in enumerate(token_ids) if token_id not in token_ids[:place]]
    texts = [server.codec.decode([token_id]) for token_id in token_ids]
    limits = [{"max_tokens": number} for number in range(1, LENGTH)]
    stops = [{"stop": [texts[place]]} for place in firsts if texts[place].strip()]
    return [*limits, *stops, *({"stop_token_ids": [token_ids[place]]} for place in firsts)]


def rows_with_drafts(server: Server, requests: list[dict[str, Any]]) -> list[list[Any]]:
    options = EngineOptions(
        num_slots=4, num_speculative_tokens=NUM_DRAFTED, draft_length="fixed", max_model_len=CONTEXT
    )
    models = server.settings.models
    return server.rows_of(requests, Engine.load(models.target, models.draft, options, device="cpu", dtype="float32"))


@pytest.mark.parametrize("n", [1, 3])
def test_the_tokens_of_texts_that_end_inside_a_draft_are_counted_alike_and_right(server, n):
    requests = [{**SAMPLING, **more, "seed": 5, "n": n} for more in endings(server)]
    rows = rows_with_drafts(server, requests)
    for row in (row for samples in rows for row in samples):
        assert not list(contradictions(row))
        lost = row["num_accepted_tokens"] + row["num_rounds"] - row["num_output_tokens"]
        ends_inside = row["finish_reason"] == "stop" and row["num_output_tokens"] % (NUM_DRAFTED + 1) > 0
        assert lost == ends_inside
    with server.client() as client:
        batch = begin(client, [line(number, **request) for number, request in enumerate(requests)])
        for request, samples in zip(requests, rows, strict=True):
            number = sum(row["num_output_tokens"] for row in samples)
            extra = {name: request[name] for name in ("ignore_eos", "stop_token_ids") if name in request}
            fields = {name: value for name, value in request.items() if name not in extra}
            whole = answered(client.completions, **fields, extra_body=extra)
            fields |= {"stream_options": {"include_usage": True}}
            _, chunks = streamed(client.completions, **fields, extra_body={**extra, "include_draft_spans": True})
            for answer in (whole, chunks[-1]):
                assert answer.usage.completion_tokens == number
                if n == 1 and samples[0]["num_draft_tokens"]:
                    counts = answer.model_extra["metrics"]["speculative_decoding"]
                    assert counts["num_draft_tokens"] == samples[0]["num_draft_tokens"]
                    assert counts["num_accepted_draft_tokens"] == samples[0]["num_accepted_tokens"]
            for index, row in enumerate(samples):
                own = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
                rounds = [each.model_extra["draft_counts"] for each in own]
                for name in ("num_draft_tokens", "num_accepted_tokens"):
                    assert sum(each[name] for each in rounds) == row[name]
                assert sum(each["num_tokens"] for each in rounds) == row["num_output_tokens"]
        lines = results(client, ended(client, batch).output_file_id)
    for place, samples in enumerate(rows):
        usage = lines[f"row-{place}"]["response"]["body"]["usage"]
        assert usage["completion_tokens"] == sum(row["num_output_tokens"] for row in samples)
