"""The endpoint over a backend that writes given texts, with a chat template in the manner of Qwen's."""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

from actors.engine.deltas import Delta, Ending
from actors.engine.requests import EngineFacts, Generation, Scoring
from decoding.sequence import TokenLogprobs
from endpoint.app import create_app
from endpoint.edge.install import EdgeSettings, install
from endpoint.service.metrics import ServingMetrics
from endpoint.service.service import Models, Service, ServiceSettings
from pipeline.text.codec import TextCodec
from tests.endpoint.in_process import BUNDLED, Running, settings_of
from tests.endpoint.web import served

TEMPLATE = (
    "{% if tools %}<|system|>{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    "Write <tool_call>\n</tool_call>.<|end|>{% endif %}"
    "{% for m in messages %}<|{{ 'user' if m.role == 'tool' else m.role }}|>"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% if enable_thinking is defined and enable_thinking %}"
    "<think>\n{% endif %}{% if reasoning_effort is defined %}{{ reasoning_effort }}{% endif %}{% endif %}"
)


@dataclass
class ScriptedBackend:
    """A backend whose every sample is `text`, a few tokens at a time. It keeps the requests that it got.

    With `cuts` it comes in rounds that end there, whose tokens but the last were drafted; the last one has the ending.
    """

    codec: TextCodec
    text: str = ""
    finish_reason: str = "stop"
    num_at_once: int = 2
    cuts: tuple[int, ...] | None = None
    is_repeatable: bool = True
    generations: list[Generation] = field(default_factory=list)

    async def facts(self) -> EngineFacts:
        return EngineFacts(512, 3072, 4)

    async def generate(self, generation: Generation) -> AsyncIterator[list[Delta]]:
        self.generations.append(generation)
        token_ids = tuple(self.codec.encode(self.text, is_chat=True))
        ending = Ending(self.finish_reason, None, None, 0)  # type: ignore[arg-type]
        for index in range(generation.num_sequences):
            if self.cuts is not None:
                for start, end in pairwise((0, *self.cuts, len(token_ids))):
                    last = ending if end == len(token_ids) else None
                    yield [Delta(index, token_ids[start:end], end - start - 1, end - start, ending=last)]
                continue
            for start in range(0, len(token_ids), self.num_at_once):
                yield [Delta(index, token_ids[start : start + self.num_at_once])]
            yield [Delta(index, (), ending=ending)]

    async def score(self, scoring: Scoring) -> list[list[TokenLogprobs]]:
        raise AssertionError("nothing is scored here")

    async def check_health(self) -> None:
        return None

    @property
    def prompt(self) -> str:
        """The text of the newest request's prompt."""
        ids = self.generations[-1].prompts[0]
        return str(self.codec.tokenizer.decode(list(ids)))


@dataclass(frozen=True)
class ScriptedServer(Running):
    """The endpoint over a scripted backend."""

    backend: ScriptedBackend


@contextmanager
def scripted_server(template: str = TEMPLATE, model: str = "m") -> Iterator[ScriptedServer]:
    """Run it until the block ends."""
    codec = TextCodec.load(str(BUNDLED / "target"), chat_template=template)
    backend = ScriptedBackend(codec)
    app = create_app(Models(Service(ServiceSettings(model=model), codec, backend, ServingMetrics(model))))
    install(app, EdgeSettings(keys=None), ServingMetrics(model))
    with served(app) as port:
        yield ScriptedServer(port, settings_of((str(BUNDLED / "target"), str(BUNDLED / "draft"))), backend)
