"""The examples of requests in README and docs/serving.md work."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.endpoint.in_process import MODEL, Server
from tests.endpoint.web import ask

ROOT = Path(__file__).parents[2]
DOCUMENTS = ["README.md", "docs/serving.md"]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_example_of_the_official_client_writes_something(
    server: Server, document: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (example,) = re.findall(r"```python\n(from openai.*?)```", (ROOT / document).read_text(), flags=re.DOTALL)
    example = example.replace("http://127.0.0.1:8000", server.url).replace("dray/tiny-pair", MODEL)
    exec(example, {"KEY": "any", "MODEL": MODEL})
    assert capsys.readouterr().out


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_curl_example_is_a_valid_request(server: Server, document: str) -> None:
    (body,) = re.findall(r"/v1/completions.*?-d '(.*?)'", (ROOT / document).read_text(), flags=re.DOTALL)
    answer = ask(server.port, "/v1/completions", {**json.loads(body), "model": MODEL})
    assert answer.status == 200
    assert json.loads(answer.body)["choices"][0]["text"]
