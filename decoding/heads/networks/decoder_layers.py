"""The modules of a head's own layers: those of Llama or Qwen 3, by the configuration that its folder has."""

from typing import Any

from torch import nn
from transformers import AutoConfig
from transformers.models.llama import modeling_llama as llama
from transformers.models.qwen3 import modeling_qwen3 as qwen3

from decoding.heads.format.head_config import HeadConfig

RMSNorm = llama.LlamaRMSNorm
_CLASSES: dict[str, tuple[type[nn.Module], type[nn.Module]]] = {
    "llama": (llama.LlamaDecoderLayer, llama.LlamaRotaryEmbedding),
    "qwen3": (qwen3.Qwen3DecoderLayer, qwen3.Qwen3RotaryEmbedding),
}


class HeadNetwork(nn.Module):
    """What every head has: its own layers and what is around them. Its layers are run over slots by a `SlotHead`."""

    lent: tuple[str, ...] = ()  # its tensors that are its target's

    def __init__(self, config: HeadConfig) -> None:
        """Make the modules, with weights of no meaning."""
        super().__init__()
        layer_config: Any = AutoConfig.for_model(**config.layer_config)
        layer_class, rotary_class = _CLASSES[layer_config.model_type]
        hidden_size = config.hidden_size
        self.config, self.layer_config = config, layer_config
        self.fc = nn.Linear(config.num_features * config.target_hidden_size, hidden_size, bias=False)
        self.layers = nn.ModuleList(layer_class(layer_config, index) for index in range(layer_config.num_hidden_layers))
        self.norm = RMSNorm(hidden_size, layer_config.rms_norm_eps)
        self.lm_head = nn.Linear(hidden_size, config.draft_vocab_size, bias=False)
        self.embed_tokens = nn.Embedding(config.vocab_size, hidden_size)
        self.rotary_emb = rotary_class(layer_config)
