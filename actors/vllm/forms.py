"""Forms: outputs that have a form (`sampling.structured`), as vLLM takes them and as they are checked behind it.

vLLM's backend "guidance" is llguidance, as in Dray's own engine (docs/adr/0038). It gets the same definition, so that a
form allows the same texts with both engines, white space included.
"""

import json
import re
from collections.abc import Sequence as Seq
from functools import partial
from typing import Any

from vllm import SamplingParams as VllmParams
from vllm.config import VllmConfig
from vllm.exceptions import VLLMClientError
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.structured_output.backend_guidance import GuidanceBackend

from decoding.checkpoint.supported import in_one_line
from decoding.grammar.definition import definition_of
from decoding.grammar.grammars import Grammars
from decoding.grammar.structured import Structured
from decoding.grammar.token_table import TokenTable

# The mark of a Lark grammar; a text without it may be taken for one in another dialect.
_MARK = "%llguidance"
_IS_MARKED = re.compile(rf"(?m)^\s*{_MARK}\b")


def structured_outputs(structured: Structured) -> StructuredOutputsParams:
    """Return a form in vLLM's words. Raises ValueError for what llguidance cannot even read."""
    if structured.is_json:
        (definition,) = json.loads(definition_of(structured))["grammars"]
        return StructuredOutputsParams(json=json.dumps(definition["json_schema"]))  # it names the white space
    if structured.regex is not None:
        return StructuredOutputsParams(regex=structured.regex)
    lark = definition_of(structured)
    return StructuredOutputsParams(grammar=lark if _IS_MARKED.search(lark) else f"{_MARK} {{}}\n{lark}")


class Forms:
    """What one vLLM engine makes of forms. Any thread may ask."""

    def __init__(self, engine: LLMEngine, vocab_size: int, eos_token_ids: frozenset[int]) -> None:
        """Take an engine that has a tokenizer, and the tokens that end its texts."""
        self._config, self._eos_token_ids = engine.vllm_config, eos_token_ids
        self._manager: Any = engine.engine_core.engine_core.structured_output_manager
        self._grammars = Grammars(partial(_prepared, self._manager, self._config, vocab_size, eos_token_ids))

    def problem_with(self, structured: Structured) -> str | None:
        """Return why vLLM cannot hold an output to this form, in one line; None if it can.

        What has no problem may be given to vLLM: its masks are prepared then.
        """
        try:
            params = VllmParams(structured_outputs=structured_outputs(structured))
            config = self._config
            params.verify(config.model_config, None, config.structured_outputs_config, self._manager.tokenizer)
        except (ValueError, VLLMClientError) as error:
            said = in_one_line(error).rstrip(".")
            return f"vLLM does not take this sampling.structured.{structured.kind}: {said}; engine.backend 'dray' may"
        return self._grammars.problem_with(structured)

    def problem_with_end(self, structured: Structured, output_token_ids: Seq[int]) -> str | None:
        """Return what is wrong with a text that has ended; None if it has its form, or a stop has ended it.

        Where a grammar meets a limit of the library, vLLM's mask allows the end, and vLLM takes the text for whole.
        """
        if output_token_ids[-1] not in self._eos_token_ids or self._grammars.is_whole(structured, output_token_ids):
            return None
        return f"vLLM ended the output before it had the form of its sampling.structured.{structured.kind}"


def _prepared(manager: Any, config: VllmConfig, vocab_size: int, eos_token_ids: frozenset[int]) -> TokenTable:
    """Return the target's tokens, and let vLLM's manager of forms make its masks of them.

    By itself vLLM ends a form with the tokenizer's end token alone, which need not be one of the target's.
    """
    table = TokenTable.of_tokenizer(manager.tokenizer, vocab_size, eos_token_ids)
    backend = GuidanceBackend(config, manager.tokenizer, vocab_size)
    backend.ll_tokenizer = table.tokenizer
    manager.backend = backend
    return table
