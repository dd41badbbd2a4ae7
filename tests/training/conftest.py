"""What the bundled target writes alone, once for all tests."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from decoding.sampling_params import SamplingParams
from decoding.sequence import Sequence
from tests.training.pair import EXAMPLES, TARGET, Prompt, prompts, written
from training.learners.packing import Document

PARAMS = SamplingParams(temperature=0.8, max_tokens=60)
_NUM_PROMPTS, _NUM_TOKENS, _TEMPERATURE = 96, 40, 0.8


@pytest.fixture(scope="session")
def some_prompts() -> list[Prompt]:
    return prompts(40)


@pytest.fixture(scope="session")
def some_texts(some_prompts: list[Prompt]) -> list[Sequence]:
    """Rows of temperature 0.8 without a draft; tests only read them."""
    return written(some_prompts, [PARAMS])


@pytest.fixture(scope="session")
def documents() -> list[Document]:
    """Prompts of the demo, and what the bundled target writes after them at temperature 0.8."""
    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    target = AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32).eval()
    lines = (EXAMPLES / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    texts = [row["prompt"] for row in map(json.loads, lines) if "prompt" in row][:_NUM_PROMPTS]
    tokenizer.padding_side = "left"
    batch = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
    torch.manual_seed(0)
    with torch.inference_mode():
        written = target.generate(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            do_sample=True,
            temperature=_TEMPERATURE,
            max_new_tokens=_NUM_TOKENS,
        )
    found = []
    for text, tokens in zip(texts, written[:, batch["input_ids"].shape[1] :].tolist(), strict=True):
        end = tokens.index(0) + 1 if 0 in tokens else len(tokens)
        found.append(
            Document(tuple(tokenizer.encode(text, add_special_tokens=False)), tuple(tokens[:end]), _TEMPERATURE)
        )
    return found


@pytest.fixture(scope="session")
def texts(documents: list[Document], tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Parquet file with these texts, in two row groups."""
    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    table = pa.table(
        {
            "prompt": [tokenizer.decode(document.prompt_token_ids) for document in documents],
            "token_ids": [list(document.output_token_ids) for document in documents],
        }
    )
    path = tmp_path_factory.mktemp("texts") / "texts.parquet"
    pq.write_table(table, path, row_group_size=len(documents) // 2)
    return str(path)
