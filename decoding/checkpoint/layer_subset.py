"""A transformers network with a range of its layers, through the same load path; `Stage` runs it.

The model file is not changed. While the network is built, before any weight is read, the other layers are replaced by
stand-ins without weights, so that the loader never reads theirs; layers keep their numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_SHARED_STATE = ("num_kv_shared_layers", "hidden_size_per_layer_input", "altup_num_inputs")


@dataclass(frozen=True)
class LayerRange:
    """Layers `first` up to `end` (not included) of `num_layers`."""

    first: int
    end: int
    num_layers: int

    def __post_init__(self) -> None:
        if not 0 <= self.first < self.end <= self.num_layers:
            raise ValueError(f"no layers {self.first} up to {self.end} in a model of {self.num_layers}")

    @classmethod
    def whole(cls, num_layers: int) -> LayerRange:
        return cls(0, num_layers, num_layers)

    @property
    def has_embedding(self) -> bool:
        """Whether the input is tokens, not hidden states."""
        return self.first == 0

    @property
    def has_head(self) -> bool:
        """Whether the output is logits, not hidden states."""
        return self.end == self.num_layers

    def __contains__(self, layer: int) -> bool:
        return self.first <= layer < self.end


def cut(num_layers: int, num_stages: int) -> list[LayerRange]:
    """Cut a model into stages of equal size; a remainder goes to the middle, away from embedding and head.

    Raises ValueError if there are fewer layers than stages.
    """
    if not 1 <= num_stages <= num_layers:
        raise ValueError(
            f"a model of {num_layers} layers cannot be cut into {num_stages} stages; use at most that many"
        )
    size, num_larger = divmod(num_layers, num_stages)
    first_larger = (num_stages - num_larger) // 2
    sizes = [size + (first_larger <= stage < first_larger + num_larger) for stage in range(num_stages)]
    return [LayerRange(first, end, num_layers) for first, end in pairwise(accumulate(sizes, initial=0))]


class CannotCutError(ValueError):
    """The model's layers share more than hidden states."""


class _Absent(torch.nn.Module):
    """A stand-in for a module that is on another stage, with its plain attributes.

    Models choose the mask by a layer's attention_type; transformers' tensor parallelism reads a head's out_features.
    A stand-in for a layer passes its input on. It returns a tuple, because some models unpack one; in others the next
    stand-in gets it. Nothing computes with it.
    """

    def __init__(self, module: torch.nn.Module, *, is_layer: bool = False) -> None:
        super().__init__()
        for name, value in vars(module).items():
            if not name.startswith("_") and isinstance(value, str | int | float | bool | None):
                setattr(self, name, value)
        self._is_layer = is_layer

    def forward(self, hidden_states: Any, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        assert self._is_layer, "only the first stage embeds, and only the last one has a head"
        return hidden_states if isinstance(hidden_states, tuple) else (hidden_states,)


def num_layers(config: PretrainedConfig) -> int:
    """Return how many layers a model of this configuration has."""
    return int(config.get_text_config().num_hidden_layers)


def check_can_be_cut(config: PretrainedConfig, name: str) -> None:
    """Raise CannotCutError for a model whose configuration says that its layers share state."""
    text_config = config.get_text_config()
    for field in _SHARED_STATE:
        value = getattr(text_config, field, None)
        if isinstance(value, int) and value > 0:
            raise CannotCutError(
                f"{name!r} ({config.model_type}) cannot be cut into stages: its layers share more than hidden states "
                f"({field} is {value}); run it whole (stages.count 1, stages.tensor_parallel 1)"
            )


def whole_class(config: PretrainedConfig) -> type[PreTrainedModel]:
    """Return the model class of this configuration, as transformers chooses it."""
    whole: Any = AutoModelForCausalLM._model_mapping[type(config)]
    if isinstance(whole, tuple | list):
        named = {each.__name__: each for each in whole}
        whole = next((named[name] for name in config.architectures or () if name in named), whole[0])
    return whole  # type: ignore[no-any-return]


def stage_class(config: PretrainedConfig, layers: LayerRange) -> type[PreTrainedModel]:
    """Return the model class of this configuration with only these layers; `from_pretrained` works as usual."""
    own = range(layers.first, layers.end)
    drop = partial(_drop_the_rest, own=own, has_embedding=layers.has_embedding, has_head=layers.has_head)
    return changed_class(whole_class(config), drop)


def ends_class(config: PretrainedConfig) -> type[PreTrainedModel]:
    """Return the model class of this configuration with none of its layers: embedding, final norm and output layer."""
    drop = partial(_drop_the_rest, own=(), has_embedding=True, has_head=True)
    return changed_class(whole_class(config), drop)


def layers_class(config: PretrainedConfig) -> type[PreTrainedModel]:
    """Return the model class of this configuration with all of its layers, and neither embedding nor output layer."""
    drop = partial(_drop_the_rest, own=range(num_layers(config)), has_embedding=False, has_head=False)
    return changed_class(whole_class(config), drop)


def changed_class(whole: type[PreTrainedModel], change: Callable[[PreTrainedModel], None]) -> type[PreTrainedModel]:
    """Return a model class whose networks are changed before any weight is read; `from_pretrained` works as usual."""

    def __init__(self: Any, config: PretrainedConfig, *args: Any, **kwargs: Any) -> None:
        whole.__init__(self, config, *args, **kwargs)
        change(self)

    return type(whole.__name__, (whole,), {"__init__": __init__, "__module__": whole.__module__})


def layer_list(network: PreTrainedModel, num_layers: int) -> torch.nn.ModuleList:
    """Return the list of all decoder layers of a network, stand-ins included."""
    lists = [
        module
        for name, module in network.named_modules()
        if isinstance(module, torch.nn.ModuleList)
        and len(module) == num_layers
        and not any(part.isdigit() for part in name.split("."))  # inside another list
    ]
    if len(lists) != 1:
        raise CannotCutError(
            f"{type(network).__name__} cannot be cut into stages: it has {len(lists)} lists of {num_layers} layers; "
            "run it whole (stages.count 1, stages.tensor_parallel 1)"
        )
    return lists[0]


def _drop_the_rest(network: PreTrainedModel, *, own: Container[int], has_embedding: bool, has_head: bool) -> None:
    modules = layer_list(network, num_layers(network.config))
    embedding, head = network.get_input_embeddings(), network.get_output_embeddings()
    names = {id(module): name.rpartition(".")[2] for name, module in network.named_modules()}
    dropped = [rf"\b{names[id(modules)]}\.{index}\." for index in range(len(modules)) if index not in own]
    dropped += [] if has_embedding else [rf"\b{names[id(embedding)]}\."]
    dropped += [] if has_head else [rf"\b{names[id(head)]}\."]
    # The other stages' weights. Any other surplus weight, and any missing one, is an error.
    network._keys_to_ignore_on_load_unexpected = {*(network._keys_to_ignore_on_load_unexpected or ()), *dropped}
    for index, layer in enumerate(modules):
        if index not in own:
            modules[index] = _Absent(layer, is_layer=True)
    is_tied = bool(network.all_tied_weights_keys)
    if not has_head:
        _replace(network, head, _Absent(head))
        network.all_tied_weights_keys = {}  # nothing is left to be tied, and the loader would look for it
    if not has_embedding and not (has_head and is_tied):  # then it is the head's own weight
        _replace(network, embedding, _Absent(embedding))


def _replace(network: torch.nn.Module, old: torch.nn.Module, new: torch.nn.Module) -> None:
    for module in list(network.modules()):
        for name, child in list(module.named_children()):
            if child is old:
                setattr(module, name, new)
