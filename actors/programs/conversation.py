"""Conversation: what a program gets as `generate`. It asks for generations and calls tools, one after the other.

A program that wants several at once gives each of its tasks a branch of its own. So what a turn is, its noise and its
place in the output follow from the program's code, never from which of two tasks came first.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any

from actors.engine.answer_grammar import with_answer_grammar
from actors.engine.translation import row_params
from actors.programs.running_sample import RunningSample
from actors.programs.tool_calls import ToolResult, as_json, result_of
from actors.programs.turn import Turn, turn_of
from decoding.sampling_params import SamplingParams
from decoding.sequence import Sequence
from pipeline.errors import RowError, wrong_type
from pipeline.text.chat import Chat, ChatPrompt
from pipeline.text.text_behind import StopStrings
from pipeline.text.tools.asked import read_tools

_FIXED = ("n", "logprobs")  # one value for all turns of a row


class Conversation:
    """Generations and tool calls of one task of a program."""

    def __init__(self, running: RunningSample, path: tuple[int, ...] = ()) -> None:
        """Begin a conversation. `path` says which branch of which branch it is."""
        self._running, self._path = running, path
        self._task: asyncio.Task[Any] | None = None  # the one that uses it
        self._num_turns = self._num_branches = 0
        self._events: list[tuple[Sequence, ChatPrompt] | ToolResult | Conversation] = []
        # The same numbers each time that the row runs.
        self.random = random.Random(self._noise_key(running.sample if not path else self._number("random")))

    @property
    def sample(self) -> int:
        """Number of the sample, 0 to n - 1."""
        return self._running.sample

    def branch(self) -> Conversation:
        """Return a conversation for another task, so that both may generate at once."""
        self._num_branches += 1
        branch = Conversation(self._running, (*self._path, self._num_branches))
        self._events.append(branch)
        return branch

    async def __call__(
        self,
        prompt: str | Seq[Mapping[str, Any]],
        sampling: Mapping[str, Any] | None = None,
        *,
        tools: Seq[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
    ) -> Turn:
        """Generate behind messages, or behind a text, and return the turn.

        `sampling` has sampling parameters for this turn, in place of the row's own. `tools` and `tool_choice` are as in
        the OpenAI API. Raises RowError for what cannot be run; a program that lets it pass makes an error row.
        """
        self._check_task()
        self._running.count_turn()
        params = self._turn_params(sampling or {})
        read = self._prompt(prompt, tools, tool_choice)
        params, read = with_answer_grammar(params, read, self._running.codec)
        stop = StopStrings(self._running.codec, params.stop, read.token_ids).find if params.stop else None
        is_first = not self._path and not self._num_turns
        number = self.sample if is_first else self._number(f"turn {self._num_turns}")
        self._num_turns += 1
        seed, row = self._running.seed, self._running.ordinal
        sequence = Sequence.create(read.token_ids, params, run_seed=seed, row=row, sample=number, stop_condition=stop)
        sequence.rounds = [] if self._running.records_rounds else None
        with self._running.engine_at_work():
            await self._running.loop.finish([sequence])
        if sequence.finish_reason == "error":
            raise RowError("generate", str(sequence.error))
        self._events.append((sequence, read))
        return turn_of(sequence, read, self._running.codec)

    async def call(self, tool: Callable[..., Any], /, **arguments: Any) -> Any:
        """Call a tool, a function that may be async, and record its result with the row.

        Arguments and result are values that JSON can hold. A unit that is repeated after a crash meets the recorded
        result, and does not call the tool again. Raises what the tool raises, which is not recorded.
        """
        self._check_task()
        name, record = getattr(tool, "__name__", type(tool).__name__), self._running.record
        place = record.place(self._path, name, as_json(f"arguments of the tool {name!r}", arguments))
        with self._running.storage_at_work():
            recorded = await asyncio.to_thread(record.read, place)
        if recorded:
            (result,) = recorded
        else:
            result = as_json(f"result of the tool {name!r}", await result_of(tool, arguments))
            with self._running.storage_at_work():
                result = await asyncio.to_thread(record.write, place, result)
        self._events.append(ToolResult(name, json.dumps(arguments), json.dumps(result)))
        return result

    def generations(self) -> Iterator[tuple[Sequence, ChatPrompt]]:
        """Yield the generations in the order of the program: those of a branch stand where it was made."""
        for event in self._events:
            if isinstance(event, Conversation):
                yield from event.generations()
            elif not isinstance(event, ToolResult):
                yield event

    def tool_results(self) -> Iterator[ToolResult]:
        """Yield the results of tools in the same order."""
        for event in self._events:
            if isinstance(event, Conversation):
                yield from event.tool_results()
            elif isinstance(event, ToolResult):
                yield event

    def _check_task(self) -> None:
        task = asyncio.current_task()
        if self._task is None:
            self._task = task
        if self._task is not task:
            raise RowError(
                "program", "generate is used in two tasks; give each task a conversation of its own, generate.branch()"
            )

    def _turn_params(self, sampling: Mapping[str, Any]) -> SamplingParams:
        if not isinstance(sampling, Mapping):
            raise wrong_type("params", "generate: sampling", "an object", sampling)
        if fixed := [name for name in _FIXED if name in sampling]:
            raise RowError("params", f"generate: {fixed[0]} is one for all turns; set it in the run or the row")
        return row_params(replace(self._running.params, n=1), dict(sampling), self._running.codec)

    def _prompt(self, prompt: Any, tools: Any, tool_choice: Any) -> ChatPrompt:
        if isinstance(prompt, str):
            if tools:
                raise RowError("params", "generate: tools are for messages, and the prompt is a text")
            return ChatPrompt(prompt, self._running.codec.encode(prompt, is_chat=False))
        messages = list(prompt) if isinstance(prompt, list | tuple) else prompt
        return self._running.codec.chat(Chat(messages, read_tools(tools, tool_choice, None)))

    def _number(self, what: str) -> int:
        """Return a number that only this place of this sample's program has."""
        said = f"{self.sample} {self._path} {what}"
        return int.from_bytes(hashlib.sha256(said.encode()).digest()[:8], "little")

    def _noise_key(self, number: int) -> int:
        seed, row = self._running.seed, self._running.ordinal
        return Sequence.create([0], self._running.params_of_noise, run_seed=seed, row=row, sample=number).noise_key
