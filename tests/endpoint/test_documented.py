"""The examples of requests in docs/serving.md work."""

import json
import re
from pathlib import Path

from tests.endpoint.in_process import MODEL
from tests.endpoint.web import ask

SERVING = (Path(__file__).parents[2] / "docs/serving.md").read_text()


def test_the_example_of_the_official_client_writes_something(server, capsys):
    (example,) = re.findall(r"```python\n(from openai.*?)```", SERVING, flags=re.DOTALL)
    example = example.replace("http://127.0.0.1:8000", server.url).replace("dray/tiny-pair", MODEL)
    exec(example, {"KEY": "any", "MODEL": MODEL})
    assert capsys.readouterr().out


def test_the_curl_example_is_a_valid_request(server):
    (body,) = re.findall(r"/v1/completions.*?-d '(.*?)'", SERVING, flags=re.DOTALL)
    answer = ask(server.port, "/v1/completions", {**json.loads(body), "model": MODEL})
    assert answer.status == 200
    assert json.loads(answer.body)["choices"][0]["text"]
