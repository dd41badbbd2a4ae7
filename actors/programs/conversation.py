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
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from actors.engine.answer_grammar import with_answer_grammar
from actors.engine.loop import EngineLoop
from actors.engine.translation import answer_parts, row_params, sequence_text
from actors.programs.program_tasks import outside_program
from actors.programs.tool_calls import ToolRecord, ToolResult, as_json, result_of
from decoding.sampling_params import SamplingParams
from decoding.sequence import Sequence
from pipeline.errors import RowError, wrong_type
from pipeline.text.answer_parts import shown_call
from pipeline.text.chat import Chat, ChatPrompt
from pipeline.text.codec import TextCodec
from pipeline.text.text_behind import StopStrings
from pipeline.text.tools.asked import read_tools


@dataclass(kw_only=True)
class RunningSample:
    """One sample of a row, whose program runs."""

    loop: EngineLoop
    codec: TextCodec
    params: SamplingParams  # of the row
    record: ToolRecord
    seed: int
    ordinal: int  # of the row in the whole input
    max_turns: int
    records_rounds: bool = False
    fault: Exception | None = None  # of the engine or the storage: not the program's
    was_cut: bool = False  # whether a generation was cancelled
    limit: asyncio.Timeout | None = None  # the time that is left for the program
    num_in_flight: int = 0  # generations
    returned: Any = None
    error: RowError | None = None  # why its row is an error row
    _num_turns: int = 0
    _seconds_left: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.conversation = Conversation(self)  # of the program itself, without branches

    def count_turn(self) -> None:
        """Count a generation. Raises RowError beyond the most that are allowed."""
        if self._num_turns >= self.max_turns:
            raise RowError(
                "program", f"the program asked for more than {self.max_turns} generations, program.max_turns"
            )
        self._num_turns += 1

    @contextmanager
    def engine_at_work(self) -> Iterator[None]:
        """Stop the program's clock while the engine works, and remember what it fails with."""
        self._stop_clock()
        self.num_in_flight += 1
        try:
            with outside_program():
                yield
        except asyncio.CancelledError:
            self.was_cut = True
            raise
        except Exception as error:
            self.fault = error
            raise
        finally:
            self.num_in_flight -= 1
            self._go_on()

    @contextmanager
    def storage_at_work(self) -> Iterator[None]:
        """Remember what the storage fails with."""
        try:
            yield
        except OSError as error:
            self.fault = error
            raise

    def _stop_clock(self) -> None:
        if self.limit is not None and not self.num_in_flight and (ends := self.limit.when()) is not None:
            self._seconds_left = ends - asyncio.get_running_loop().time()
            self.limit.reschedule(None)

    def _go_on(self) -> None:
        if self.limit is not None and not self.num_in_flight:
            with suppress(RuntimeError):  # the program has ended
                self.limit.reschedule(asyncio.get_running_loop().time() + self._seconds_left)


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
        calls = [shown_call(**call) for call in self.tool_calls]
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
        self.random = random.Random(self._noise_key(running.record.sample if not path else self._number("random")))

    @property
    def sample(self) -> int:
        """Number of the sample, 0 to n - 1."""
        return self._running.record.sample

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

    def events(self) -> Iterator[tuple[Sequence, ChatPrompt] | ToolResult]:
        """Yield generations and results of tools in the order of the program: those of a branch where it was made."""
        for event in self._events:
            if isinstance(event, Conversation):
                yield from event.events()
            else:
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
        params = SamplingParams(seed=self._running.params.seed)  # what decides the noise besides the place of a turn
        return Sequence.create([0], params, run_seed=seed, row=row, sample=number).noise_key
