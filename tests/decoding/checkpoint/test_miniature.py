"""A miniature of a configuration is one whose sizes fit together."""

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from decoding.checkpoint.miniature import SHORT, VOCAB_SIZE, miniature


@pytest.mark.parametrize("model_type", ["zamba2", "mamba2", "nemotron_h", "jamba"])
def test_a_miniature_reads_a_text_with_states(model_type):
    network = AutoModelForCausalLM.from_config(miniature(CONFIG_MAPPING[model_type]())).float().eval()
    with torch.inference_mode():
        logits = network(input_ids=torch.zeros(1, 2 * SHORT, dtype=torch.long), use_cache=True).logits
    assert logits.shape == (1, 2 * SHORT, VOCAB_SIZE)
