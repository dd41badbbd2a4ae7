"""The families of formats for calls, and which of them a chat template belongs to."""

from __future__ import annotations

from typing import Literal, get_args

from pipeline.text.tools.format import MISTRALS, Format

FamilyName = Literal["auto", "none", "hermes", "llama3", "mistral", "mistral_named"]
FAMILIES: dict[str, Format] = {
    # Qwen's models write it, too: each call is an object between two tags, which are on lines of their own.
    "hermes": Format(
        marker="<tool_call>",
        open='\n{"name": "',
        middle='", "arguments": ',
        close="}\n</tool_call>",
        between="\n",
        special=("<tool_call>", "</tool_call>"),
    ),
    # The answer is one object, or several with "; " or white space between them; templates take one, so one is forced.
    "llama3": Format(
        marker="<|python_tag|>",
        open='{"name": "',
        middle='", "parameters": ',
        close="}",
        keys=("parameters", "arguments"),
        begins_bare=True,
        special=("<|python_tag|>",),
    ),
    # An array of objects, in older templates.
    "mistral": Format(
        marker="[TOOL_CALLS]",
        first=" [",
        open='{"name": "',
        middle='", "arguments": ',
        close="}",
        comma=", ",
        last="]",
        special=MISTRALS,
        is_mistrals=True,
    ),
    # [TOOL_CALLS]name[ARGS]{...}, once for each call. Some models write its id: [TOOL_CALLS]name[CALL_ID]id[ARGS]{...}.
    "mistral_named": Format(
        marker="[TOOL_CALLS]",
        open="",
        middle="[ARGS]",
        close="",
        between="",
        special=MISTRALS,
        is_mistrals=True,
    ),
}
# Tags of formats with arguments that are not JSON, which share <tool_call> with Hermes (Qwen3-Coder, GLM).
_NOT_JSON = ("<function=", "<arg_key>")


def family_of(name: str, chat_template: str | None) -> Format | None:
    """Return the family of this name, or the one whose format the template has, for "auto"; None if there is none.

    Raises ValueError for an unknown name.
    """
    if name == "auto":
        return _of_template(chat_template or "")
    if name not in get_args(FamilyName):
        raise ValueError(f"chat.tool_calls must be one of {', '.join(get_args(FamilyName))}, got {name!r}")
    return FAMILIES.get(name)


def _of_template(template: str) -> Format | None:
    if "[TOOL_CALLS]" in template:
        return FAMILIES["mistral_named" if "[ARGS]" in template else "mistral"]
    if "<tool_call>" in template:
        return None if any(tag in template for tag in _NOT_JSON) else FAMILIES["hermes"]
    is_llama = "<|start_header_id|>" in template and '"parameters"' in template
    return FAMILIES["llama3"] if is_llama or "<|python_tag|>" in template else None
