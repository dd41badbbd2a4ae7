"""Counts of texts that end inside a draft: the same and right in answers, streams, batches and rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from decoding import Engine, EngineOptions
from endpoint.batches.settings import BatchSettings
from endpoint.edge.install import EdgeSettings
from endpoint.service.service import ServiceSettings
from pipeline.run.check import contradictions
from tests.endpoint.batches.asking import begin, ended, line, results
from tests.endpoint.in_process import CONTEXT, MODEL, Server, answered, running_server, settings_of, streamed

PROMPT, LENGTH, NUM_DRAFTED = "hello world", 12, 3
SAMPLING: dict[str, Any] = {"prompt": PROMPT, "temperature": 0, "max_tokens": LENGTH, "ignore_eos": True}


@pytest.fixture(scope="module")
def server(text_pair: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The application over a target that drafts for itself: all of a draft is accepted, and so ends lie inside."""
    settings = settings_of((text_pair[0], text_pair[0]), num_speculative_tokens=NUM_DRAFTED)
    batches = BatchSettings(path=str(tmp_path_factory.mktemp("batches")))
    with running_server(settings, ServiceSettings(model=MODEL), EdgeSettings(keys=None), batches) as running:
        yield running


def endings(server: Server) -> list[dict[str, Any]]:
    """A limit, a stop string and a stop token behind each number of tokens."""
    (row,) = server.offline(**SAMPLING)
    token_ids = row["token_ids"]
    firsts = [place for place, token_id in enumerate(token_ids) if token_id not in token_ids[:place]]
    texts = [server.codec.decode([token_id]) for token_id in token_ids]
    return [
        *({"max_tokens": number} for number in range(1, LENGTH)),
        *({"stop_token_ids": [token_ids[place]]} for place in firsts),
        *({"stop": [texts[place]]} for place in firsts if texts[place].strip()),
        {"stop": ["".join(texts[2:7])]},
    ]


def own_draft(server: Server) -> Engine:
    """An engine that drafts as the server's does."""
    options = EngineOptions(
        num_slots=4, num_speculative_tokens=NUM_DRAFTED, draft_length="fixed", max_model_len=CONTEXT
    )
    return Engine.load(
        server.settings.models.target, server.settings.models.draft, options, device="cpu", dtype="float32"
    )


@pytest.mark.parametrize("n", [1, 3])
def test_the_tokens_of_texts_that_end_inside_a_draft_are_counted_alike_and_right(server: Server, n: int) -> None:
    requests = [{**SAMPLING, **more, "seed": 5, "n": n} for more in endings(server)]
    rows = server.rows_of(requests, own_draft(server))
    numbers = [sum(row["num_output_tokens"] for row in samples) for samples in rows]
    for row in (row for samples in rows for row in samples):
        assert not list(contradictions(row))
        full, rest = divmod(row["num_output_tokens"], NUM_DRAFTED + 1)
        assert row["num_rounds"] == full + (rest > 0)
        ends_in_draft = row["finish_reason"] == "stop" and rest
        assert row["num_accepted_tokens"] == row["num_output_tokens"] - row["num_rounds"] + bool(ends_in_draft)
    assert sum(row["num_accepted_tokens"] + row["num_rounds"] > row["num_output_tokens"] for row, *_ in rows) > 9
    with server.client() as client:
        batch = begin(client, [line(number, **request) for number, request in enumerate(requests)])
        for request, samples, number in zip(requests, rows, numbers, strict=True):
            extra = {name: request[name] for name in ("ignore_eos", "stop_token_ids") if name in request}
            fields = {name: value for name, value in request.items() if name not in extra}
            whole = answered(client.completions, **fields, extra_body={**extra, "return_token_ids": True})
            assert [choice.model_extra["token_ids"] for choice in whole.choices] == [
                row["token_ids"] for row in samples
            ]
            assert whole.usage.completion_tokens == number
            drafted = {**extra, "include_draft_spans": True}
            _, chunks = streamed(
                client.completions, **fields, extra_body=drafted, stream_options={"include_usage": True}
            )
            assert chunks[-1].usage.completion_tokens == number
            for index, row in enumerate(samples):
                own = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
                rounds = [each.model_extra["draft_counts"] for each in own]
                for name in ("num_draft_tokens", "num_accepted_tokens"):
                    assert sum(each[name] for each in rounds) == row[name]
                assert sum(each["num_tokens"] for each in rounds) == row["num_output_tokens"]
                assert sum(each["num_tokens"] > 0 for each in rounds) == row["num_rounds"]
            for answer in (whole, chunks[-1]):
                counts = answer.model_extra["metrics"]["speculative_decoding"]
                if n == 1 and samples[0]["num_draft_tokens"]:
                    found = counts["num_draft_tokens"], counts["num_accepted_draft_tokens"]
                    assert found == (samples[0]["num_draft_tokens"], samples[0]["num_accepted_tokens"])
        lines = results(client, ended(client, batch).output_file_id)
        usages = [lines[f"row-{place}"]["response"]["body"]["usage"] for place in range(len(requests))]
        assert [usage["completion_tokens"] for usage in usages] == numbers
