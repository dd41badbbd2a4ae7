"""Asks an endpoint as instructor does, in its modes; prints what came back as JSON.

python ask_instructor.py URL KEY MODEL
"""

import asyncio
import sys
from typing import Any

import instructor
import litellm
import openai
from forms import MESSAGES, Animal, AnyObject, shown, tell

# In the first two modes a grammar holds the schema; in JSON mode only the prompt has it.
MODES = {"TOOLS": Animal, "JSON_SCHEMA": Animal, "JSON": AnyObject, "TOOLS_STRICT": Animal, "RESPONSES_TOOLS": Animal}


def main() -> None:
    """Ask in every mode."""
    url, key, model = sys.argv[1:]
    server = {"base_url": f"{url}/v1", "api_key": key, "max_retries": 0}
    found: dict[str, Any] = {}
    for name, form in MODES.items():
        mode = getattr(instructor.Mode, name)
        asked = {"model": model, "response_model": form, "messages": MESSAGES, "temperature": 0, "max_retries": 0}
        with openai.OpenAI(**server) as client:
            found[name] = shown(instructor.from_openai(client, mode=mode).chat.completions.create(**asked))
        found[f"{name} async"] = asyncio.run(ask_async(openai.AsyncOpenAI(**server), mode, asked))
    found |= of_a_provider(server, model)
    through_litellm = instructor.from_litellm(litellm.completion)
    asked = {"response_model": Animal, "messages": MESSAGES, "max_retries": 0}
    answer = through_litellm.chat.completions.create(
        **asked, model=f"openai/{model}", api_base=server["base_url"], api_key=key
    )
    tell({**found, "litellm": shown(answer)})


async def ask_async(client: openai.AsyncOpenAI, mode: Any, asked: dict[str, Any]) -> Any:
    """Return what the asynchronous client makes of an answer."""
    async with client:
        return shown(await instructor.from_openai(client, mode=mode).chat.completions.create(**asked))


def of_a_provider(server: dict[str, Any], model: str) -> dict[str, Any]:
    """Return what the short way to a client finds, whole, in parts and several at once."""
    client = instructor.from_provider(f"openai/{model}", base_url=server["base_url"], api_key=server["api_key"])
    asked = {"response_model": Animal, "messages": MESSAGES, "max_retries": 0}
    answer, completion = client.create_with_completion(**asked, seed=3)
    return {
        "provider": shown(answer),
        "provider_reason": completion.choices[0].finish_reason,
        "partial": shown(list(client.create_partial(**asked, seed=3))[-1]),
    }


main()
