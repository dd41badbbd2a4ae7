"""Writes a corpus of two steps by NeMo Data Designer: a text on a topic, then a summary of that text.

python chain_data_designer.py URL KEY MODEL FOLDER
"""

import sys

import data_designer.config as dd
import pandas
from data_designer.interface import DataDesigner
from forms import STEPS, TOPICS, tell


def main() -> None:
    """Write the corpus into a folder, and tell its rows."""
    url, key, model, folder = sys.argv[1:]
    provider = dd.ModelProvider(name="dray", endpoint=f"{url}/v1", api_key=key)
    parameters = dd.ChatCompletionInferenceParams(temperature=0.8, max_tokens=24, extra_body={"seed": 7})
    models = [dd.ModelConfig(alias="writer", model=model, provider="dray", inference_parameters=parameters)]
    builder = dd.DataDesignerConfigBuilder(model_configs=models)
    builder.with_seed_dataset(dd.DataFrameSeedSource(df=pandas.DataFrame({"topic": TOPICS})))
    for name, prompt in STEPS.items():
        builder.add_column(dd.LLMTextColumnConfig(name=name, prompt=prompt, model_alias="writer"))
    designer = DataDesigner(artifact_path=folder, model_providers=[provider])
    rows = designer.create(builder, num_records=len(TOPICS)).load_dataset()
    tell({"rows": rows[["topic", *STEPS]].to_dict("records")})


main()
