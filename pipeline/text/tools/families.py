"""The families of formats for calls, and which of them a chat template belongs to."""

from __future__ import annotations

from typing import Literal, get_args

from pipeline.text.tools.family import Family
from pipeline.text.tools.hermes import Hermes
from pipeline.text.tools.llama3 import Llama3
from pipeline.text.tools.mistral import Mistral, MistralNamed

FamilyName = Literal["auto", "none", "hermes", "llama3", "mistral", "mistral_named"]
FAMILIES: dict[str, Family] = {family.name: family for family in (Hermes(), Llama3(), Mistral(), MistralNamed())}
# Tags of formats with arguments that are not JSON, which share <tool_call> with Hermes (Qwen3-Coder, GLM).
_NOT_JSON = ("<function=", "<arg_key>")


def family_of(name: str, chat_template: str | None) -> Family | None:
    """Return the family of this name, or the one whose format the template has, for "auto"; None if there is none.

    Raises ValueError for an unknown name.
    """
    if name == "auto":
        return _of_template(chat_template or "")
    if name not in get_args(FamilyName):
        raise ValueError(f"chat.tool_calls must be one of {', '.join(get_args(FamilyName))}, got {name!r}")
    return FAMILIES.get(name)


def _of_template(template: str) -> Family | None:
    if "[TOOL_CALLS]" in template:
        return FAMILIES["mistral_named" if "[ARGS]" in template else "mistral"]
    if "<tool_call>" in template:
        return None if any(tag in template for tag in _NOT_JSON) else FAMILIES["hermes"]
    is_llama = "<|start_header_id|>" in template and '"parameters"' in template
    return FAMILIES["llama3"] if is_llama or "<|python_tag|>" in template else None
