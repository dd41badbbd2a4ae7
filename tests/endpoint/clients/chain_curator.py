"""Writes a corpus of two steps by Curator: a text on a topic, then a summary of that text.

python chain_curator.py URL KEY MODEL FOLDER
"""

import os
import sys
from typing import Any

from bespokelabs import curator
from datasets import Dataset
from forms import STEPS, TOPICS, tell


class Writer(curator.LLM):
    """Writes one column."""

    column = ""

    def prompt(self, row: dict[str, Any]) -> str:
        """Return what is asked for a row."""
        prompt = STEPS[self.column]
        for name, value in row.items():
            prompt = prompt.replace("{{ " + name + " }}", value)
        return prompt

    def parse(self, row: dict[str, Any], answer: str) -> dict[str, Any]:
        """Return the row with its new column."""
        return {**row, self.column: answer}


class Story(Writer):
    """Writes the first column."""

    column = "story"


class Summary(Writer):
    """Writes the second one."""

    column = "summary"


def main() -> None:
    """Write the corpus, and tell its rows."""
    url, key, model, folder = sys.argv[1:]
    os.environ |= {"OPENAI_API_KEY": key, "CURATOR_CACHE_DIR": folder}
    server = {
        "base_url": f"{url}/v1",
        "max_requests_per_minute": 10_000,  # it asks for no limits else
        "max_tokens_per_minute": 10_000_000,
        "invalid_finish_reasons": ["content_filter"],  # else it asks again for a text that max_tokens ended
    }
    asked = {"temperature": 0.8, "max_tokens": 24, "seed": 7}
    rows: Any = Dataset.from_list([{"topic": topic} for topic in TOPICS])
    for step in (Story, Summary):
        writer = step(model_name=model, backend="openai", backend_params=server, generation_params=asked)
        rows = writer(rows).dataset
    tell({"rows": rows.to_list()})


main()
