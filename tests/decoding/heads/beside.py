"""Random heads of every kind beside any target: the tables of tests that run over all drafters have these.

What is drafted is seldom right, and depends on all that a head may read: tokens, states and keys of the target.
"""

from functools import partial
from pathlib import Path

import torch
from transformers import Gemma4AssistantConfig, Gemma4TextConfig

from decoding.checkpoint.layer_subset import layers_class
from decoding.drafters.base import Drafter
from decoding.drafters.making import make_drafter
from decoding.heads.assistant_folder import Assistant
from decoding.heads.assistant_head import AssistantHead, AssistantNetwork
from decoding.heads.eagle3_head import Eagle3Head
from decoding.heads.mtp.head import MtpHead
from decoding.heads.mtp.network import MtpModule, MtpNetwork
from decoding.network.language_model import LanguageModel
from decoding.network.slot_network import layers_to_read
from tests.decoding.heads.tiny_assistants import COMMON, OWN
from tests.decoding.heads.tiny_heads import HesitantDrafter, block_config, head_for, mask_config, random_head
from tests.decoding.tiny import OPTION_OF, llama_config

_WITHOUT_KEYS = {"linear_attention", "conv", "mamba", "mlp"}


def drafter_beside(name: str, target: LanguageModel, num_slots: int, max_model_len: int) -> Drafter:
    """Return a drafter of this name with a random head; `target` is the one in whose slots an assistant reads."""
    if name == "dflash":
        head, _ = random_head(head_for(target, block_config, kind="dspark"))
        return HesitantDrafter(head, num_slots, max_model_len)
    make = {
        "eagle3": _of_pairs,
        "peagle": partial(_of_pairs, make=mask_config),
        "mtp": own_head,
        "assistant": assistant,
    }
    option = OPTION_OF.get(name, name)
    return make_drafter(option, make[name](target), target.vocab_size, num_slots, max_model_len, target=target)


def _of_pairs(target: LanguageModel, **more) -> Eagle3Head:
    return random_head(head_for(target, **more))[0]


@torch.no_grad()
def _filled(network: torch.nn.Module, seed: int) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in network.state_dict().items():
        if name.endswith("token_ordering"):
            tensor.copy_(torch.randperm(len(tensor), generator=generator))
        else:
            tensor.copy_(0.3 * torch.randn(tensor.shape, generator=generator) + (tensor.dim() == 1))
    return network


def own_head(target: LanguageModel, num_modules: int = 3) -> MtpHead:
    """An MTP head whose modules have a layer of Llama each, whatever the target's layers are."""
    size, modules = target.hidden_size, []
    for number in range(num_modules):
        config = llama_config(target.vocab_size, hidden_size=size, num_hidden_layers=1)
        network = MtpNetwork(layers_class(config)(config), "norm")
        network.projection.to_empty(device="cpu")
        modules.append(MtpModule(_filled(network, seed=number), number))
    embedding, output = target.network.get_input_embeddings(), target.network.get_output_embeddings()
    head = MtpHead(modules, embedding.weight, torch.nn.Identity(), output, len(layers_to_read(target.network)))
    head.reads = "stream"
    return head


def assistant(target: LanguageModel) -> AssistantHead:
    """An assistant whose layers all read the target's last layer that has keys, some of them in a window."""
    text = target.network.config.get_text_config()
    kinds = getattr(text, "layer_types", None) or getattr(text, "layers_block_type", None)
    kinds = kinds or ["full_attention"] * len(layers_to_read(target.network))
    (*_, layer_id) = (index for index, kind in enumerate(kinds) if kind not in _WITHOUT_KEYS)
    heads = text.num_key_value_heads
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    like_target = {"vocab_size": target.vocab_size, "num_key_value_heads": heads, "num_attention_heads": 2 * heads}
    own = {"head_dim": size, "global_head_dim": size, "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}
    own |= {"num_kv_shared_layers": OWN["num_hidden_layers"]}
    centroids = {"use_ordered_embeddings": True, "num_centroids": 8, "centroid_intermediate_top_k": 3}
    config = Gemma4AssistantConfig(
        text_config=Gemma4TextConfig(**{**COMMON, **OWN, **like_target, **own}),
        backbone_hidden_size=target.hidden_size,
        **(centroids if target.vocab_size % 8 == 0 else {}),
    )
    read = Assistant(Path(), config, (layer_id,) * OWN["num_hidden_layers"])
    return AssistantHead(read, _filled(AssistantNetwork(config), seed=2), target)
