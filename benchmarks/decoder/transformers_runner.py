"""TransformersRunner: `generate` as transformers has it, looped, batched, assisted and with prompt lookup."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from benchmarks.decoder.runners import Repeat, Runner, WarmUp
from benchmarks.harness import seconds_of
from decoding import SamplingParams

_DEFAULT_ASSISTANT = {
    "num_assistant_tokens": 20,
    "num_assistant_tokens_schedule": "constant",
    "assistant_confidence_threshold": 0.4,
}


@dataclass
class TransformersModels:
    """A target and a draft as transformers loads them, shared by all its configurations."""

    pair: Path
    device: str
    dtype: str

    @cached_property
    def target(self) -> PreTrainedModel:
        """Without an end token, so that every row has the same length."""
        return self._load("target")

    @cached_property
    def draft(self) -> PreTrainedModel:
        return self._load("draft")

    def _load(self, name: str) -> PreTrainedModel:
        model = AutoModelForCausalLM.from_pretrained(self.pair / name, dtype=getattr(torch, self.dtype))
        model.generation_config.eos_token_id = None
        model.generation_config.pad_token_id = 0
        return model.eval().to(self.device)

    def greedy(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> list[list[int]]:
        """Return the text of each prompt alone, which the other ways are compared with."""
        params = SamplingParams(temperature=0.0, max_tokens=new_tokens)
        return [_generate(self.target, [prompt], params)[0] for prompt in prompts]


@dataclass
class TransformersRunner(Runner):
    """One way to call `generate`."""

    models: TransformersModels

    @property
    def rows_at_once(self) -> int:
        """Rows of one call."""
        return self.batch if self.configuration.mode == "batched" else 1

    def warm_up(self) -> WarmUp:
        """Count forwards of the target; transformers does not tell how many tokens it drafted."""
        forwards: list[object] = []
        handle = self.models.target.register_forward_hook(lambda *_: forwards.append(None))
        try:
            outputs = self._run()
        finally:
            handle.remove()
        return self.shown(outputs, num_rounds=len(forwards) * self.rows_at_once)

    def repeat(self) -> Repeat:
        return Repeat(seconds=seconds_of(self._run, self.models.target.device))

    def _run(self) -> list[list[int]]:
        target, prompts = self.models.target, self.corpus.rows(self.num_rows)
        outputs: list[list[int]] = []
        for first in range(0, len(prompts), self.rows_at_once):
            some = prompts[first : first + self.rows_at_once]
            outputs += _generate(target, some, self.corpus.params, **self._arguments())
        return outputs

    def _arguments(self) -> dict[str, Any]:
        match self.configuration.mode:
            case "lookup":
                return {"prompt_lookup_num_tokens": self.configuration.num_draft_tokens}
            case "assisted" | "assisted-defaults":
                draft = self.models.draft
                settings: dict[str, Any] = dict(_DEFAULT_ASSISTANT)
                if self.configuration.mode == "assisted":
                    settings["num_assistant_tokens"] = self.configuration.num_draft_tokens
                    settings["assistant_confidence_threshold"] = 0.0
                for name, value in settings.items():  # generate reads them from the assistant's own configuration
                    setattr(draft.generation_config, name, value)
                return {"assistant_model": draft}
            case _:
                return {}


@torch.inference_mode()
def _generate(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], params: SamplingParams, **arguments: Any
) -> list[list[int]]:
    """Return the new tokens of prompts that are padded on the left to the longest."""
    width = max(map(len, prompts))
    tokens_BT = torch.tensor([[0] * (width - len(p)) + list(p) for p in prompts], device=model.device)
    mask_BT = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=model.device)
    output_BT = model.generate(
        tokens_BT, attention_mask=mask_BT, max_new_tokens=params.max_tokens, **_sampling(params), **arguments
    )
    new: list[list[int]] = output_BT[:, width:].tolist()
    return new


def _sampling(params: SamplingParams) -> dict[str, Any]:
    if params.temperature == 0:
        return {"do_sample": False}
    cuts = {"top_k": params.top_k, "top_p": params.top_p, "min_p": params.min_p or None}
    return {"do_sample": True, "temperature": params.temperature, **cuts}
