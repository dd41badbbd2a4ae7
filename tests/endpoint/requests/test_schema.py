"""Thousands of requests that the OpenAPI document allows, or just does not: none may make the server fail."""

import json
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import Case, GenerationMode

from endpoint.app import create_app
from endpoint.batches.batch import BatchSettings
from endpoint.service.service import Models, ServiceSettings
from tests.endpoint.in_process import BUNDLED_MODEL, closed_server
from tests.endpoint.toy_app import BEARER
from tests.endpoint.web import Answer, ask

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

_NO_SERVICE: Any = SimpleNamespace(settings=ServiceSettings(model="m"))  # the document is of the routes alone
SCHEMA = schemathesis.openapi.from_dict(create_app(Models(_NO_SERVICE)).openapi())
UPLOAD = "post /v1/files"  # a form, not JSON: tests/endpoint/batches
OPERATIONS = {f"{each.method} {each.path}": each for each in (found.ok() for found in SCHEMA.get_all_operations())}
del OPERATIONS[UPLOAD]
WRITING = ("post /v1/completions", "post /v1/chat/completions")
TOKENS = ("post /tokenize", "post /detokenize")
_HI = {"role": "user", "content": "a"}
EXAMPLES = dict.fromkeys(OPERATIONS, 40) | dict.fromkeys(WRITING, 500) | dict.fromkeys(TOKENS, 150)


@pytest.fixture(scope="module")
def port(text_pair: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    batches = BatchSettings(path=str(tmp_path_factory.mktemp("batches")))
    with closed_server(text_pair, BUNDLED_MODEL, 96, batches) as server:
        yield server.port


@pytest.fixture(scope="module")
def statuses() -> Counter[tuple[str, int]]:
    return Counter()


def send(port: int, case: Case, mode: GenerationMode) -> Answer:
    """Send it; of what is allowed, mend what the document cannot say, so that much of it comes as far as the engine."""
    body: Any = case.body if case.method.upper() == "POST" else None
    if isinstance(body, dict) and mode is GenerationMode.POSITIVE:
        body = mended(body)
    elif body is not None and not isinstance(body, bytes):
        body = json.dumps(body, default=str).encode()
    return ask(port, case.formatted_path, body, method=case.method.upper(), headers=BEARER)


def mended(body: dict[str, Any]) -> dict[str, Any]:
    """The request for the model that is there, for few samples, of tokens that it has."""
    left_out = ("model", "logit_bias", "stop_token_ids", "allowed_token_ids", "bad_words", "prompt_logprobs")
    body = {name: value for name, value in body.items() if name not in left_out}
    for name in ("n", "best_of", "max_tokens", "max_completion_tokens", "min_tokens"):
        if type(body.get(name)) is int:
            body[name] = {"n": 1, "best_of": 2, "min_tokens": 3}.get(name, 7)
    if not body.get("stream"):
        body = {name: value for name, value in body.items() if name not in ("stream_options", "include_draft_spans")}
    if not body.get("include_draft_spans"):
        body.pop("include_rejected_drafts", None)
    if type(body.get("num_speculative_tokens")) is int:
        body["num_speculative_tokens"] %= 4
    if isinstance(body.get("stop"), list):
        body["stop"] = [text for text in body["stop"] if text][:4]
    if isinstance(body.get("prompt"), list):
        body["prompt"] = [_mended_prompt(prompt) for prompt in body["prompt"][:4]] or "a"
    if isinstance(body.get("messages"), list):
        body["messages"] = [_mended_message(message) for message in body["messages"][:4]] or [_HI]
    return body


def _mended_message(message: Any) -> Any:
    """The message with the fields that one of its role may have; the document has one shape for all roles."""
    if not isinstance(message, dict) or message.get("role") not in ("system", "user", "assistant"):
        return _HI
    return {"role": message["role"], "content": message.get("content") or "a"}


def _mended_prompt(prompt: Any) -> Any:
    if isinstance(prompt, list):
        return [_mended_prompt(token_id) for token_id in prompt] or [1]
    return prompt % 250 if type(prompt) is int else prompt or "a"


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("mode", GenerationMode, ids=str)
def test_no_request_of_the_document_makes_the_server_fail(port, statuses, name, mode):
    operation = OPERATIONS[name]
    if mode is GenerationMode.NEGATIVE and not operation.body:
        return  # there is nothing to get wrong

    @settings(
        max_examples=EXAMPLES[name],
        database=None,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(operation.as_strategy(generation_mode=mode))
    def check(case: Case) -> None:
        answer = send(port, case, mode)
        statuses[name, answer.status] += 1
        assert answer.status < 500, case.body
        if answer.status >= 400:
            assert answer.error["message"]
        elif answer.headers["content-type"].startswith("text/event-stream"):
            events = answer.body.decode().split("\n\n")
            last, end = events[-2:]
            is_whole = last.startswith(("event: response.completed", "event: response.incomplete"))
            assert not end
            assert last == "data: [DONE]" or is_whole, "a stream that fails is not ended well"

    check()


def test_there_were_thousands_of_requests_and_many_got_a_text(port, statuses):
    assert statuses.total() >= 2000
    assert all(statuses[name, 200] >= 100 for name in WRITING), statuses
    assert ask(port, "/health/ready").status == 200
