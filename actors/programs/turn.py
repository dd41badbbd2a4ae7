"""Turn: one generation of a program that has finished, as the program gets it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from actors.engine.translation import answer_parts, sequence_text
from decoding.sequence import Sequence
from pipeline.text.chat import ChatPrompt
from pipeline.text.codec import TextCodec


@dataclass(frozen=True)
class Turn:
    """One generation that has finished."""

    prompt: str  # as the model read it
    text: str
    finish_reason: str  # "stop" or "length"
    stop_reason: str | int | None  # the stop string or stop token id that ended it, if one did
    token_ids: tuple[int, ...]
    content: str | None  # the text without thought and calls
    reasoning: str | None  # the thought before the answer
    tool_calls: tuple[dict[str, str], ...]  # calls of tools, each with id, name and arguments (JSON text)

    @property
    def message(self) -> dict[str, Any]:
        """The answer as the message of the assistant, to be appended to the messages of the next turn."""
        calls = [
            {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}}
            for call in self.tool_calls
        ]
        return {"role": "assistant", "content": self.content or "", **({"tool_calls": calls} if calls else {})}


def turn_of(sequence: Sequence, prompt: ChatPrompt, codec: TextCodec) -> Turn:
    """Return the turn that a finished sequence is."""
    parts = answer_parts(prompt, sequence, str(sequence.noise_key), codec)
    return Turn(
        prompt.text,
        sequence_text(codec, sequence),
        str(sequence.finish_reason),
        sequence.stop_reason,
        tuple(sequence.output_token_ids),
        parts["content"],
        parts["reasoning"],
        tuple(parts["tool_calls"] or ()),
    )
