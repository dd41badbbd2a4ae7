"""Clients as they are, in an environment of their own (`make test-clients`), against what they should get.

The openai client, LangChain, instructor and litellm ask the endpoint that `make serve-demo` starts. A text of the
bundled pair says little, but its form is forced. The numbers that lm-eval reports are those of transformers with the
same weights.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.endpoint.in_process import BUNDLED_MODEL as MODEL
from tests.endpoint.on_serve.command import free_port, ready
from tests.endpoint.toy_app import KEY

ROOT = Path(__file__).parents[2]
TARGET, FOLDER = ROOT / "examples/tiny_pair/target", ROOT / "tests/endpoint/clients"
Samples = dict[str, list[dict[str, Any]]]  # by task
PYTHON = ROOT / ".venv-clients/bin/python"
DEMO = "dray/tiny-pair"  # the model of `make serve-demo`
ANIMAL = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["cat", "dog", "raven"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 30},
        "is_black": {"type": "boolean"},
    },
    "required": ["kind", "age", "is_black"],
    "additionalProperties": False,
}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not PYTHON.exists(), reason="make test-clients makes the environment of the clients"),
]


class Target:
    """The target in transformers."""

    def __init__(self) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(TARGET)
        self.model = AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32)

    def score(self, before: list[int], token_ids: list[int]) -> tuple[float, bool]:
        """The log-probability of these tokens behind others, and whether each is the likeliest."""
        with torch.inference_mode():
            logits_TV = self.model(torch.tensor([before + token_ids])).logits[0, len(before) - 1 : -1]
        logprobs_TV, wanted_T = logits_TV.log_softmax(-1), torch.tensor(token_ids)
        logprob = logprobs_TV.gather(1, wanted_T[:, None]).sum()
        return float(logprob), bool((logits_TV.argmax(-1) == wanted_T).all())

    def write(self, token_ids: list[int], num_tokens: int) -> str:
        """Return the greedy text."""
        with torch.inference_mode():
            output = self.model.generate(torch.tensor([token_ids]), max_new_tokens=num_tokens, do_sample=False)
        return str(self.tokenizer.decode(output[0, len(token_ids) :], skip_special_tokens=True))


@pytest.fixture(scope="module")
def target() -> Target:
    return Target()


@pytest.fixture(scope="module")
def samples(whole: int, tmp_path_factory: pytest.TempPathFactory) -> Samples:
    """The requests and answers of lm-eval."""
    folder = tmp_path_factory.mktemp("lm_eval")
    server = f"base_url=http://127.0.0.1:{whole}/v1/completions,num_concurrent=4,max_retries=1"
    arguments = ["-m", "lm_eval", "run", "--model", "local-completions"]
    arguments += ["--model_args", f"model={MODEL},tokenizer={TARGET},tokenizer_backend=huggingface,{server}"]
    arguments += ["--tasks", "local_sums,local_sums_written,local_stories", "--include_path", str(FOLDER / "tasks")]
    arguments += ["--batch_size", "4", "--output_path", str(folder), "--log_samples"]
    _run(arguments, folder, OPENAI_API_KEY=KEY)
    found = {}
    for file in folder.rglob("samples_*.jsonl"):
        task = file.name.removeprefix("samples_").rsplit("_", 1)[0]
        found[task] = [json.loads(line) for line in file.read_text().splitlines()]
    return found


def test_lm_eval_scores_continuations_as_transformers_does(samples, target):
    asked = samples["local_sums"]
    assert len(asked) == 16
    num_right = 0
    for sample in asked:
        scores = []
        for index, choice in enumerate(sample["doc"]["choices"]):
            before = target.tokenizer.encode(sample["doc"]["question"])
            whole = target.tokenizer.encode(sample["doc"]["question"] + choice)
            expected, is_greedy = target.score(before, whole[len(before) :])
            ((logprob, said_greedy),) = sample["resps"][index]
            assert float(logprob) == pytest.approx(expected, abs=1e-3)
            assert str(said_greedy) == str(is_greedy)
            scores.append(expected)
        is_right = scores.index(max(scores)) == sample["doc"]["answer"]
        assert sample["acc"] == float(is_right)
        num_right += is_right
    assert num_right > 8  # the bundled pair has learned to multiply a little


def test_lm_eval_gets_the_text_that_transformers_writes(samples, target):
    asked = samples["local_sums_written"]
    assert len(asked) == 16
    for sample in asked:
        text = target.write(target.tokenizer.encode(sample["doc"]["question"]), 12)
        for stop in (",", "\n"):
            text = text.split(stop)[0]
        assert sample["resps"] == [[text]]


def test_lm_eval_scores_whole_texts_as_transformers_does(samples, target):
    asked = samples["local_stories"]
    assert len(asked) == 4
    for sample in asked:
        expected, _ = target.score([target.tokenizer.eos_token_id], target.tokenizer.encode(sample["doc"]["text"]))
        (logprob,) = sample["resps"][0]
        assert float(logprob) == pytest.approx(expected, abs=1e-2)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of the endpoint that `make serve-demo` starts, at a free port and with a folder of its own."""
    port, batches = free_port(), tmp_path_factory.mktemp("batches")
    command = [sys.executable, "-m", "jobs.serve", "--config=examples/configs/serve.yaml"]
    with ready([*command, f"--serve.port={port}", f"--serve.batches_path={batches}"]):
        yield f"http://127.0.0.1:{port}"


@pytest.mark.ray
def test_the_openai_client_gets_forms_calls_responses_files_and_batches(demo, tmp_path):
    found = _asked("ask_openai.py", demo, tmp_path)
    for name in ("parse", "beta_parse", "parsed_call", "parsed_stream", "async_parse"):
        jsonschema.validate(found[name], ANIMAL)
    assert found["beta_parse"] == found["parsed_stream"] == found["async_parse"], "they have one seed"
    assert found["streamed_usage"] > 0
    assert found["num_choices"] == 2
    assert found["request_id"]
    assert found["models"] == [DEMO]

    assert found["response"] == found["response_streamed"] != ""
    assert found["response_status"] == "incomplete"
    assert found["response_events"] == ["response.created", "response.incomplete"]
    assert found["async_event"] == "response.incomplete"
    for name in ("response_parsed", "response_parsed_stream", "response_call"):
        jsonschema.validate(found[name], ANIMAL)
    assert found["response_parsed"] == found["response_parsed_stream"]

    assert found["file"] == [True, "processed", True]
    assert found["batch"] == ["completed", 3, 1, {"team": "a"}]
    assert found["output"].keys() == {"good-0", "good-1", "good-2"}
    for content in found["output"].values():
        jsonschema.validate(json.loads(content), ANIMAL)
    assert found["errors"] == {"bad": 400}
    assert found["cancelled"] in (["cancelling", "cancelled"], ["completed", "completed"])
    assert found["is_listed"]
    assert found["deleted"]


@pytest.mark.ray
def test_langchain_gets_structured_output_by_its_three_methods_and_tools(demo, tmp_path):
    found = _asked("ask_langchain.py", demo, tmp_path)
    for method in ("json_schema", "function_calling"):
        names = [method, *(f"{method} {how}" for how in ("async", "stream", "strict", "of a dict"))]
        for value in [*(found[name] for name in names), *found[f"{method} batch"]]:
            jsonschema.validate(value, ANIMAL)
        assert found[method] == found[f"{method} async"] == found[f"{method} stream"] == found[f"{method} batch"][0]
    for name in ("responses", "responses call"):
        jsonschema.validate(found[name], ANIMAL)
    of_json_mode = [found[f"json_mode{how}"] for how in ("", " async", " stream")]
    assert of_json_mode == [found["json_mode batch"][0]] * 3
    assert all(isinstance(value, dict) for value in of_json_mode)

    name, arguments, result = found["called"]
    assert [name, arguments] == found["called stream"]
    assert (name, result) == ("weather", f"rain in {arguments['city']}")
    assert found["reason"] == "tool_calls"
    assert found["usage"] == found["streamed usage"] > 0
    assert found["text"]


@pytest.mark.ray
def test_instructor_gets_its_models_in_each_of_its_modes(demo, tmp_path):
    found = _asked("ask_instructor.py", demo, tmp_path)
    for mode in ("TOOLS", "JSON_SCHEMA", "TOOLS_STRICT", "RESPONSES_TOOLS"):
        jsonschema.validate(found[mode], ANIMAL)
        assert found[f"{mode} async"] == found[mode], "at temperature 0"
    assert isinstance(found["JSON"], dict)
    assert found["JSON async"] == found["JSON"]
    for name in ("provider", "partial", "litellm"):
        jsonschema.validate(found[name], ANIMAL)
    assert found["provider_reason"] == "tool_calls"


@pytest.mark.ray
def test_litellm_gets_chats_texts_streams_usage_forms_calls_and_errors(demo, tmp_path, target):
    found = _asked("ask_litellm.py", demo, tmp_path)
    assert found["chat"] == found["streamed"] == found["asynchronous"]
    assert found["text"] == found["text_streamed"]
    assert found["chat"]
    assert found["finish_reason"] == "length"
    messages = [{"role": "user", "content": "Tell me a story about a raven."}]
    prompt = target.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    num_prompt = len(target.tokenizer.encode(prompt))
    assert found["chat_usage"] == [num_prompt, 24, num_prompt + 24]
    assert found["streamed_usage"][-1] == found["chat_usage"]
    assert found["bad_request"] == 400
    for name in ("form", "form_async", "call", "call_streamed"):
        jsonschema.validate(found[name], ANIMAL)
    assert (found["form_async"], found["call_streamed"]) == (found["form"], found["call"])
    assert isinstance(found["object"], dict)
    assert found["response"] in ("completed", "incomplete")


def _asked(program: str, url: str, folder: Path) -> dict[str, Any]:
    """Return what a program of `clients/` found."""
    said = _run([str(FOLDER / program), url, KEY, DEMO], folder, LITELLM_LOCAL_MODEL_COST_MAP="True")
    (line,) = [line for line in said.splitlines() if line.startswith("found ")]
    found: dict[str, Any] = json.loads(line.removeprefix("found "))
    return found


def _run(arguments: list[str], folder: Path, **variables: str) -> str:
    """Return what a program of the clients' environment prints; it cannot reach the hub."""
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hub"), "HF_DATASETS_CACHE": str(folder / "datasets")}
    ended = subprocess.run(
        [str(PYTHON), *arguments],
        cwd=ROOT,
        env={**os.environ, **offline, **variables},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    return ended.stdout
