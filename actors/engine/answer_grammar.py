"""The grammar of an answer that calls tools, or that has a form and a thought before it, as sampling parameters."""

import json
from dataclasses import replace

from decoding.grammar.definition import problem_with
from decoding.grammar.grammars import first_possible
from decoding.grammar.structured import Structured
from decoding.sampling_params import SamplingParams
from pipeline.errors import FieldError
from pipeline.text.answer_parts import Thought
from pipeline.text.chat import ChatPrompt
from pipeline.text.codec import TextCodec
from pipeline.text.tools.asked import ToolsAsked


def with_answer_grammar(
    params: SamplingParams, prompt: ChatPrompt, codec: TextCodec
) -> tuple[SamplingParams, ChatPrompt]:
    """Return the parameters with the grammar that the answer to this prompt needs, and the prompt with its form.

    A form (`params.structured`) is that of the text behind the thought that a prompt has opened. Where tools may be
    called, the answer is nothing but calls, or it is text of the form. Where they must be, the form says nothing.
    Raises FieldError.
    """
    form, asked = prompt.form, prompt.asked
    if asked is not None and asked.callable:
        if params.structured is not None and not asked.is_forced:
            _check_schemas(asked)
            return _with_either(params, params.structured, prompt, asked, codec)
        if not asked.needs_grammar:
            return params, prompt
        _check_schemas(asked)
        family = form.family
        assert family is not None, "it has tools"
        grammar = codec.grammars.of_tools(asked, family, form.tags, form.thought)
        field = "tool_choice" if asked.is_forced else "tools" if asked.is_parallel else "parallel_tool_calls"
        return _held(params, grammar, field, "the calls"), prompt
    if params.structured is None or form.tags is None or form.thought is not Thought.OPEN:
        return params, prompt
    _check_form(params.structured)
    written = codec.grammars.of_structured(params.structured.as_dict(), form.tags, form.thought)
    if written is None:
        reason = "it cannot hold an output that begins within a thought; use a JSON schema, a regex or a choice"
        raise FieldError("sampling.structured.grammar", reason)
    where = f"sampling.structured.{params.structured.kind}"
    return _held(params, written, where, "the thought and the form"), prompt


def _with_either(
    params: SamplingParams, structured: Structured, prompt: ChatPrompt, asked: ToolsAsked, codec: TextCodec
) -> tuple[SamplingParams, ChatPrompt]:
    form, family = prompt.form, prompt.form.family
    assert family is not None, "it has tools"
    _check_form(structured)
    grammar = codec.grammars.of_either(asked, family, structured.as_dict(), form.tags, form.thought)
    if grammar is None:
        reason = "it cannot stand beside tools that may be called or not; use a JSON schema, a regex or a choice, or "
        raise FieldError("sampling.structured.grammar", f"{reason}leave the tools out")
    if family.begins_bare and "x-guidance" in structured.schema:
        reason = "JSON and calls of this model have one layout, so x-guidance cannot stand beside tools; leave it out"
        raise FieldError("sampling.structured.json_schema.x-guidance", reason)
    of_thought = [form.tags.open] if form.tags is not None and form.thought is Thought.FREE else []
    try:
        text = first_possible(structured, [*family.beginnings(form.names, structured.is_json), *of_thought])
    except ValueError as error:
        raise _wrong_form(structured, str(error)) from error
    if text is not None:
        reason = f"the text of the form (sampling.structured, response_format) may begin with {text}, as a call "
        remedy = "or a thought does; change the form, force a call by tool_choice, or leave one of them out"
        raise FieldError("tools", f"{reason}{remedy}")
    held = _held(params, grammar, "tools", "the calls and the form")
    return held, replace(prompt, form=replace(form, has_form=True))


def _held(params: SamplingParams, grammar: str, field: str, whose: str) -> SamplingParams:
    """Return the parameters with this grammar; what is wrong with it is an error of the field that asked for it."""
    try:
        return replace(params, structured=Structured(grammar=grammar))
    except ValueError as error:
        reason = str(error).replace("sampling.structured.grammar", "it").removeprefix("sampling.")
        reason = reason.replace("sampling.structured", whose)
        raise FieldError(field, f"{whose.removeprefix('the ')} are held to a grammar here: {reason}") from error


def _check_form(structured: Structured) -> None:
    """Raise FieldError for a form that cannot be compiled by itself, before anything is written around it."""
    if problem := problem_with(structured):
        raise _wrong_form(structured, problem)


def _wrong_form(structured: Structured, problem: str) -> FieldError:
    where = f"sampling.structured.{structured.kind}"
    return FieldError(where, f"it {problem.removeprefix(f'{where} ')}")


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
