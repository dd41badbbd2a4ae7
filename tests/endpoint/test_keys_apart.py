"""What crosses between API keys, and what does not: the tests of the table in docs/serving.md, over real HTTP.

Most of them ask an endpoint by one key twice: where another key has asked before, and where none has. All that comes
back must be the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import openai
import pytest

from actors.workers.replica_settings import ReplicaSettings
from endpoint.edge.auth import Keys
from endpoint.edge.install import EdgeSettings
from endpoint.service.service import ServiceSettings
from tests.endpoint.in_process import MODEL, Server, running_server, settings_of
from tests.endpoint.toy_app import KEY, OTHER_KEY

DRAFTS = {"include_draft_spans": True, "include_rejected_drafts": True}
BEGINNING = "the quick brown fox jumps over the lazy dog and "
Pair = tuple[str, str]
Answers = list[dict[str, Any]]


@contextmanager
def endpoint(pair: Pair, drafter: str = "suffix", **shared: bool) -> Iterator[Server]:
    """Run an endpoint that two keys open."""
    settings = settings_of(pair if drafter == "model" else (pair[0], None), drafter=drafter, num_speculative_tokens=4)  # type: ignore[arg-type]
    edge = EdgeSettings(keys=Keys([KEY, OTHER_KEY]))
    with running_server(
        settings, ServiceSettings(model=MODEL), edge, replica_settings=ReplicaSettings(**shared)
    ) as run:
        yield run


def answers(server: Server, key: str) -> Answers:
    """Return all that a key's requests bring, but for times and ids."""
    with server.client() as client:
        api = client.with_options(api_key=key)
        return [*(streamed(api, seed) for seed in range(6)), whole(api)]


def streamed(api: openai.OpenAI, seed: int) -> dict[str, Any]:
    body = {"model": MODEL, "prompt": BEGINNING, "seed": seed, "max_tokens": 30, "temperature": 0.7}
    options = {"stream": True, "stream_options": {"include_usage": True}, "extra_body": DRAFTS}
    *chunks, last = api.completions.create(**body, **options)
    spans = [span for chunk in chunks for choice in chunk.choices for span in choice.draft_spans]
    return {
        "text": "".join(choice.text for chunk in chunks for choice in chunk.choices),
        "rejected": [span["rejected"] for span in spans if "rejected" in span],
        "drafted": "".join(span["text"] for span in spans if span["is_accepted"]),
        "usage": last.usage.to_dict(),
        "metrics": last.metrics,
    }


def whole(api: openai.OpenAI) -> dict[str, Any]:
    body = {"model": MODEL, "prompt": BEGINNING, "seed": 1, "max_tokens": 20, "n": 2}
    answer = api.completions.create(**body, extra_body={"prompt_logprobs": 1}).to_dict()
    return {name: value for name, value in answer.items() if name not in ("id", "created")}


@pytest.mark.parametrize("drafter", ["suffix", "ngram", "model", "none"])
def test_what_a_key_gets_does_not_depend_on_what_another_key_asked(text_pair: Pair, drafter: str) -> None:
    with endpoint(text_pair, drafter) as server:
        alone = answers(server, OTHER_KEY)
    with endpoint(text_pair, drafter) as server:
        assert answers(server, KEY) == alone, "the endpoint does not tell keys apart by their names"
        assert answers(server, OTHER_KEY) == alone
