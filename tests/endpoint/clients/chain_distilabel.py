"""Writes a corpus of two steps by distilabel: a text on a topic, then a summary of that text.

python chain_distilabel.py URL KEY MODEL FOLDER
"""

import re
import sys
from typing import Any

from distilabel.models import OpenAILLM
from distilabel.pipeline import Pipeline
from distilabel.steps import LoadDataFromDicts
from distilabel.steps.tasks import TextGeneration
from forms import STEPS, TOPICS, tell


def main() -> None:
    """Write the corpus, and tell its rows."""
    url, key, model, folder = sys.argv[1:]
    asked = {"temperature": 0.8, "max_new_tokens": 24, "extra_body": {"seed": 7}}
    with Pipeline(cache_dir=folder) as pipeline:
        last: Any = LoadDataFromDicts(data=[{"topic": topic} for topic in TOPICS], batch_size=10)
        for name, prompt in STEPS.items():
            (column,) = re.findall(r"{{ (\w+) }}", prompt)
            writer = OpenAILLM(base_url=f"{url}/v1", api_key=key, model=model, generation_kwargs=asked)
            step = TextGeneration(
                name=name,
                llm=writer,
                template=prompt,
                columns=column,
                input_batch_size=10,
                output_mappings={"generation": name, "model_name": f"{name}_model"},
            )
            last = last >> step
    rows = pipeline.run(use_cache=False)["default"]["train"]
    tell({"rows": rows.select_columns(["topic", *STEPS]).to_list()})


if __name__ == "__main__":  # its steps are processes that import this module
    main()
