"""The grammar of an answer that calls tools, or that has a form and a thought before it, as sampling parameters."""

import json
from dataclasses import replace

from decoding.grammar.definition import problem_with
from decoding.grammar.structured import Structured
from decoding.sampling_params import SamplingParams
from pipeline.errors import FieldError
from pipeline.text.chat import ChatPrompt
from pipeline.text.codec import TextCodec
from pipeline.text.reasoning import Thought
from pipeline.text.tools.asked import ToolsAsked


def with_answer_grammar(params: SamplingParams, prompt: ChatPrompt, codec: TextCodec) -> SamplingParams:
    """Return the parameters with the grammar that the answer to this prompt needs. Raises FieldError.

    A form (`params.structured`) is that of the text behind the thought that a prompt has opened. An answer of nothing
    but calls has no such text, so there the form says nothing.
    """
    form, asked = prompt.form, prompt.asked
    if asked is not None and asked.callable:
        if params.structured is not None and not asked.is_forced:
            reason = "the output has a form already (response_format), and a call would break it; force a call by "
            raise FieldError("tools", f"{reason}tool_choice, or leave one of them out")
        if not asked.needs_grammar:
            return params
        _check_schemas(asked)
        family = codec.template.family_of_calls
        return _held(params, codec.grammars.of_tools(asked, family, form.tags, form.thought), asked)
    if params.structured is None or form.tags is None or form.thought is not Thought.OPEN:
        return params
    grammar = codec.grammars.of_structured(params.structured.as_dict(), form.tags, form.thought)
    if grammar is None:
        reason = "it cannot hold an output that begins within a thought; use a JSON schema, a regex or a choice"
        raise FieldError("sampling.structured.grammar", reason)
    return replace(params, structured=Structured(grammar=grammar))


def _held(params: SamplingParams, grammar: str, asked: ToolsAsked) -> SamplingParams:
    try:
        return replace(params, structured=Structured(grammar=grammar))
    except ValueError as error:
        what = "tool_choice" if asked.is_forced else "parallel_tool_calls" if not asked.is_parallel else "tools"
        reason = str(error).removeprefix("sampling.").replace("sampling.structured", "the calls")
        raise FieldError(what, f"calls are held to a grammar here: {reason}") from error


def _check_schemas(asked: ToolsAsked) -> None:
    """Raise FieldError for the first schema that a grammar cannot hold arguments to."""
    for index, tool in enumerate(asked.tools):
        if tool not in asked.callable or not (asked.is_forced or tool.strict):
            continue
        where = f"tools[{index}].function.parameters"
        try:
            problem = problem_with(Structured(json_schema=json.dumps(tool.schema, allow_nan=False)))
        except ValueError as error:
            raise FieldError(where, f"expected a JSON Schema: {error}") from error
        if problem is not None:
            raise FieldError(where, f"it {problem.removeprefix('sampling.structured.json_schema ')}")
