"""HeadConfig: all that the config.json of a draft head says, in one form for every kind and every format.

A head is a small network that reads the residual stream of its target before some layers, and drafts from it.

eagle3   one layer (or more) over pairs of a token and the features before it; arXiv 2503.01840
peagle   EAGLE-3 that drafts all tokens in one forward; arXiv 2602.01469
dflash   layers that fill in a block of masked tokens at once; arXiv 2602.06036
dflash2  DFlash with convolutions inside its layers, and a choice of tokens by the one before; inco.ai/blog/dflash2
dspark   DFlash with a bias by the token before (Markov head) and the chance of acceptance; arXiv 2607.05147

The configuration of the head's own layers is normalized: one spelling, every default of transformers filled in.
"""

from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args

from transformers import CONFIG_MAPPING

from decoding.checkpoint.supported import LOAD_FAILURES, in_one_line

Kind = Literal["eagle3", "peagle", "dflash", "dflash2", "dspark"]
Format = Literal["speculators", "eagle"]
LayerIdsAre = Literal["inputs", "outputs", "unknown"]

KINDS: tuple[Kind, ...] = get_args(Kind)
READ_PAIRS: tuple[Kind, ...] = ("eagle3", "peagle")  # of a feature and the token after it; the others fill in blocks
# The fields of a configuration that a folder says by their own names, by kind.
_NORMS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
_OF_BLOCKS = ("block_size", "sample_from_anchor", "sliding_window_non_causal")
OF_DSPARK = ("markov_rank", "markov_head_type", "enable_confidence_head", "confidence_head_with_markov")
OF_DFLASH2 = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
# Of DFlash and DFlash 2, and their values that change nothing; the speculators format cannot say others.
OF_SCALES = {"input_embedding_scale": 1.0, "output_multiplier": 1.0, "final_logit_softcapping": 0.0}
OWN_FIELDS: dict[Kind, tuple[str, ...]] = {
    "eagle3": _NORMS,
    "peagle": _NORMS,
    "dflash": _OF_BLOCKS,
    "dflash2": (*_OF_BLOCKS, *OF_DFLASH2),
    "dspark": (*_OF_BLOCKS, *OF_DSPARK),
}
_IN_WORDS = {"inputs": "the input of a layer", "outputs": "the output of a layer", "unknown": "input or output"}
NUM_DEFAULT_IDS = 3
_MARKOV_TYPES = ("vanilla", "gated", "rnn")


@dataclass(frozen=True)
class HeadConfig:
    """What a head's folder says. Messages of its ValueErrors begin with a verb: the caller puts the folder before it.

    `layer_config` is the configuration of the head's own layers as transformers has it (`normalized`).
    Its `vocab_size` is the target's. Where `draft_vocab_size` is smaller, the head drafts some of the target's tokens
    only (`tensors.py`).

    `layer_ids` names the layers of the target whose residual stream is read, under one of two conventions, which differ
    by one: as *inputs*, id k is the stream that enters layer k; as *outputs*, the stream that leaves it. Where the
    folder does not say which convention it follows, `layer_ids_are` is "unknown". None stands for the default, which
    depends on the target's number of layers.
    """

    kind: Kind
    format: Format
    layer_config: dict[str, Any]
    draft_vocab_size: int
    target_hidden_size: int
    layer_ids: tuple[int, ...] | None
    layer_ids_are: LayerIdsAre
    num_speculative_tokens: int  # that the head was trained to draft
    target_name: str | None = None
    target_architectures: tuple[str, ...] = ()
    num_target_layers: int | None = None

    # eagle3 and peagle
    norm_before_residual: bool = False  # the residual of the first layer is the normed hidden state
    norm_before_fc: bool = False  # one norm over all features together
    fc_norm: bool = False  # a norm for the features of each layer
    norm_output: bool = False  # the hidden state that is fed back is normed

    # all but eagle3
    mask_token_id: int | None = None

    # dflash, dflash2 and dspark
    block_size: int | None = None
    sample_from_anchor: bool = False  # the token before the masks predicts, too
    sliding_window_non_causal: bool = False

    # dflash and dflash2
    input_embedding_scale: float = 1.0
    output_multiplier: float = 1.0  # of logits, before they are capped
    final_logit_softcapping: float = 0.0  # 0: they are not

    # dflash2; 0: none
    conv_kernel_size: int = 0  # tokens of a block that a convolution reads
    conv_group_size: int = 0  # channels that share the part of its coefficients that follows from the token
    selector_rank: int = 0
    selector_top_k: int = 0  # likeliest tokens among which one is chosen

    # dspark
    markov_rank: int = 0
    markov_head_type: str = "vanilla"
    enable_confidence_head: bool = False
    confidence_head_with_markov: bool = False

    assumed: tuple[str, ...] = field(default=(), compare=False)  # a line for each default that the folder left open

    def __post_init__(self) -> None:
        """Raise a ValueError for values that contradict each other."""
        if not 0 < self.draft_vocab_size <= self.vocab_size:
            raise ValueError(
                f"has draft_vocab_size {self.draft_vocab_size}, expected 1 to the target's {self.vocab_size} tokens; "
                "correct its config.json"
            )
        if self.norm_before_fc and self.fc_norm:
            raise ValueError("has both norm_before_fc and fc_norm, of which a head has one; correct its config.json")
        if self.mask_token_id is not None and not 0 <= self.mask_token_id < self.vocab_size:
            raise ValueError(
                f"has mask_token_id {self.mask_token_id}, expected an id of the target's {self.vocab_size} tokens; "
                "correct its config.json"
            )
        if self.kind != "eagle3" and self.mask_token_id is None:
            raise ValueError(f"has no mask_token_id, from which the kind {self.kind} drafts; add it to its config.json")
        if self.kind not in READ_PAIRS and (self.block_size is None or self.block_size < 2):
            raise ValueError(f"has block_size {self.block_size}, expected 2 or more; correct its config.json")
        if self.kind == "dflash2":
            self._check_dflash2()
        if self.num_speculative_tokens < 1:
            raise ValueError(
                f"drafts {self.num_speculative_tokens} tokens, expected 1 or more; correct its config.json"
            )
        if self.markov_head_type not in _MARKOV_TYPES:
            raise ValueError(
                f"has markov_head_type {self.markov_head_type!r}, expected one of {', '.join(_MARKOV_TYPES)}; use "
                "another version of the head"
            )
        ids = self.layer_ids
        if ids is not None and (not ids or min(ids) < 0 or len(set(ids)) < len(ids)):
            raise ValueError(f"has layer ids {list(ids)}, expected distinct numbers from 0 on; correct them")

    def _check_dflash2(self) -> None:
        sizes = self.block_size or 0, self.hidden_size, self.vocab_size, self.draft_vocab_size
        for name, most in zip(OF_DFLASH2, sizes, strict=True):
            if not 1 <= (value := getattr(self, name)) <= most:
                raise ValueError(f"has {name} {value}, expected 1 to {most}; correct its config.json")
        if self.hidden_size % self.conv_group_size:
            divided = f"which does not divide its hidden size of {self.hidden_size}"
            raise ValueError(f"has conv_group_size {self.conv_group_size}, {divided}; correct its config.json")

    @property
    def vocab_size(self) -> int:
        """The number of tokens of the target."""
        return int(self.layer_config["vocab_size"])

    @property
    def hidden_size(self) -> int:
        """The width of the head's own layers."""
        return int(self.layer_config["hidden_size"])

    @property
    def num_layers(self) -> int:
        """The number of the head's own layers."""
        return int(self.layer_config["num_hidden_layers"])

    @property
    def num_features(self) -> int:
        """The number of the target's layers whose residual stream is read."""
        return NUM_DEFAULT_IDS if self.layer_ids is None else len(self.layer_ids)

    @property
    def sliding_window(self) -> int | None:
        """The number of positions that a layer with a sliding window sees; None if no layer has one."""
        kinds = self.layer_config.get("layer_types") or ()
        return self.layer_config.get("sliding_window") if "sliding_attention" in kinds else None

    @property
    def window_moves(self) -> bool:
        """Whether each token of a block has a window of its own, as z-lab trains; speculators gives a block one."""
        return self.format == "eagle" and self.kind in ("dflash", "dflash2")

    def settle_layer_ids(self, num_target_layers: int) -> "HeadConfig":
        """Return this configuration for a target of `num_target_layers`, with the default ids or with its own, checked.

        The default is what training software takes where it is not told: [2, n // 2, n - 3] as inputs.
        """
        settled = replace(self, num_target_layers=num_target_layers)
        if self.layer_ids is None:
            ids = default_layer_inputs(num_target_layers)
            if len(set(ids)) < len(ids) or min(ids) < 0:
                raise ValueError(
                    f"does not name the layers that it reads, and their default for a target with {num_target_layers} "
                    f"layers would be {list(ids)}, which are not {len(ids)} layers; name them (--layer-ids)"
                )
            said = f"layer ids: {list(ids)} as inputs, the default for a target with {num_target_layers} layers"
            return replace(settled, layer_ids=ids, layer_ids_are="inputs", assumed=(*self.assumed, said))
        last = num_target_layers - (self.layer_ids_are == "outputs")
        if foreign := [each for each in self.layer_ids if not 0 <= each <= last]:
            raise ValueError(
                f"reads layer {foreign[0]} (as {_IN_WORDS[self.layer_ids_are]}) of a target with {num_target_layers} "
                f"layers, expected 0 to {last}; it is a head for another target, or its layer ids are wrong"
            )
        return settled

    def layer_ids_as(self, convention: Literal["inputs", "outputs"]) -> tuple[int, ...] | None:
        """Return the layer ids under a convention, or None if they are the default.

        Raises ValueError if the ids follow an unknown convention, or if an id cannot be said under that one.
        """
        if self.layer_ids is None or self.layer_ids_are == convention:
            return self.layer_ids
        if self.layer_ids_are == "unknown":
            raise ValueError(
                f"does not say whether its layer ids {list(self.layer_ids)} are those of layers whose input is read or "
                "whose output; say it (--layer-ids-are inputs or outputs)"
            )
        shift = 1 if convention == "inputs" else -1
        if convention == "outputs" and 0 in self.layer_ids:
            raise ValueError(
                "reads what enters layer 0, which is the embedding and no layer's output; use the speculators format"
            )
        return tuple(each + shift for each in self.layer_ids)


def default_layer_inputs(num_target_layers: int) -> tuple[int, int, int]:
    """Return the ids of the layers whose input is read by default, for a target of `num_target_layers`."""
    return 2, num_target_layers // 2, num_target_layers - 3


def default_num_speculative_tokens(kind: Kind, block_size: int | None, sample_from_anchor: bool) -> int:
    """Return how many tokens a head drafts whose folder does not say it, as training software has it."""
    if kind in READ_PAIRS:
        return 3 if kind == "eagle3" else 8
    return (block_size or 0) - (not sample_from_anchor)


_MODEL_TYPES = ("llama", "qwen3")
_SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
_NOT_OF_LAYERS = ("transformers_version", "architectures")
# What transformers reads without a field of its own, and what speculators says of Llama's layers, too.
_BESIDE = ("model_type", "torch_dtype", "rope_theta", "rope_scaling")
_OF_WINDOWS = ("layer_types", "sliding_window", "use_sliding_window", "max_window_layers")


def layer_fields(model_type: str) -> frozenset[str]:
    """Return the names of the fields that describe layers of this type."""
    own = {each.name for each in fields(CONFIG_MAPPING[model_type])}
    return frozenset(own.union(_BESIDE, _OF_WINDOWS).difference(_NOT_OF_LAYERS))


def normalized(said: dict[str, Any], dtype: str | None = None) -> dict[str, Any]:
    """Return the configuration of layers as transformers writes it today, without what is not of layers.

    Older spellings are read: `rope_theta` and `rope_scaling` for `rope_parameters`, `torch_dtype` for `dtype`. `dtype`
    is taken where the layers say none. Raises ValueError, with a message that begins with a verb, for layers that no
    reader of heads has (llama and qwen3 alone), and for sizes that are missing or that transformers refuses.
    """
    model_type = said.get("model_type")
    if model_type not in _MODEL_TYPES:
        raise ValueError(
            f"has layers of type {model_type!r}, expected {' or '.join(_MODEL_TYPES)}; use a head with such layers"
        )
    for name in _SIZES:
        value = said.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(
                f"has {name} {value!r} for its layers, expected a number from 1 on; correct its config.json"
            )
    known = layer_fields(model_type)
    own = {name: value for name, value in said.items() if name in known}
    if dtype is not None and not (own.get("dtype") or own.get("torch_dtype")):
        own["dtype"] = dtype
    try:
        layers: dict[str, Any] = CONFIG_MAPPING[model_type](**own).to_diff_dict()
    except LOAD_FAILURES as error:
        raise ValueError(
            f"has layers that transformers refuses: {in_one_line(error)}; correct its config.json"
        ) from error
    return {name: value for name, value in layers.items() if name not in _NOT_OF_LAYERS}
