"""HeadLearner: an EAGLE-3 head that learns to draft several tokens ahead from what its target computes.

At step k the head predicts token p + 2 + k from pair p (`decoding/heads/unrolled.py`); the target's own
prediction of that token stands at position p + 1 + k.

Shapes: B rows, T tokens, P pairs, N predictions that are taught, D vocabulary of the head, V of the target.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn
from transformers import AutoTokenizer, PretrainedConfig

from decoding.checkpoint.supported import model_folder, read_config
from decoding.heads.fit import fitting_config
from decoding.heads.format.folder import Head, read_head, save_head
from decoding.heads.format.head_config import HeadConfig, default_layer_inputs, normalized
from decoding.heads.format.networks import Eagle3Network
from decoding.heads.format.tensors import offsets, target_ids
from decoding.heads.target_parts import make_network
from decoding.heads.unrolled import unrolled
from training.learners.losses import LossName, TargetLaw, scaled, token_losses
from training.learners.packing import PackedRows, StepResult
from training.learners.teacher import Teacher

_OF_VOCABULARY = ("d2t", "t2d")


@dataclass(frozen=True)
class HeadLearner:
    """A head in float32, and the teacher that it learns from."""

    network: Eagle3Network
    teacher: Teacher
    config: HeadConfig
    marks: dict[str, torch.Tensor]  # the tensors of its folder that are no weights
    dtype: torch.dtype  # of its folder
    steps_ahead: int
    loss: LossName = "kl"
    borrowed: tuple[str, ...] = ("embed_tokens.weight",)  # weights that are the target's, and not saved

    @classmethod
    def load(cls, path: str, teacher: Teacher, steps_ahead: int, loss: LossName = "kl") -> HeadLearner:
        """Load a head to be trained further. Raises ValueError, in one line, for one that cannot learn here."""
        path = model_folder(path)
        config = trainable_config(path, teacher.network.config, teacher.path)
        head = read_head(path, config)
        embedding, output = teacher.network.get_input_embeddings(), teacher.network.get_output_embeddings()
        network = make_network(
            head,
            lambda: (embedding.weight.detach().clone(), output.weight.detach().clone()),
            teacher.device,
            torch.float32,
        )
        assert isinstance(network, Eagle3Network)
        borrowed = tuple(name for name, weight in network.named_parameters() if not weight.requires_grad)
        network.embed_tokens.requires_grad_(False)  # a table of all tokens: what the corpus lacks would not learn
        marks = {name: head.tensors[name] for name in _OF_VOCABULARY if name in head.tensors}
        config = replace(config, num_speculative_tokens=steps_ahead)
        return cls(network, teacher, config, marks, head.tensors["fc.weight"].dtype, steps_ahead, loss, borrowed)

    @classmethod
    def new(
        cls,
        teacher: Teacher,
        known_ids: Sequence[int] | None,
        steps_ahead: int,
        loss: LossName = "kl",
        *,
        seed: int = 0,
    ) -> HeadLearner:
        """Make a head of one layer in the target's own sizes, with weights drawn by the seed.

        `known_ids` are the target's ids of its tokens, ascending; None: all. Its embedding is the target's and stays as
        it is; its output layer begins with the target's rows.
        """
        config = head_config(teacher, len(known_ids) if known_ids is not None else teacher.vocab_size, steps_ahead)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = Eagle3Network(config)
        ids_D = None if known_ids is None else torch.tensor(known_ids, dtype=torch.int64)
        embedding, output = teacher.network.get_input_embeddings(), teacher.network.get_output_embeddings()
        with torch.no_grad():
            network.embed_tokens.weight.copy_(embedding.weight)
            rows = output.weight if ids_D is None else output.weight[ids_D.to(output.weight.device)]
            network.lm_head.weight.copy_(rows)
        network.embed_tokens.requires_grad_(False)
        marks = {} if ids_D is None else {"d2t": offsets(ids_D)}
        dtype = getattr(torch, config.layer_config.get("dtype") or "float32")
        return cls(network.to(teacher.device), teacher, config, marks, dtype, steps_ahead, loss)

    @property
    def module(self) -> nn.Module:
        """The network, of which all but the embedding is trained."""
        return self.network

    @property
    def max_len(self) -> int | None:
        """The longest document that both can read; None: any. Beyond a sliding window a head would see too much."""
        limits = [limit for limit in (self.teacher.max_len, self.config.sliding_window) if limit is not None]
        return min(limits, default=None)

    def num_predictions(self, rows: PackedRows) -> int:
        """Return how many predictions are taught, over all steps ahead."""
        return sum(int(is_taught_BP.sum()) for is_taught_BP in self._taught(rows))

    def step(self, rows: PackedRows, progress: float) -> StepResult:
        """Return the loss over all predictions of all steps ahead; what is agreed on is counted at the first one."""
        layer_ids = self.config.layer_ids
        assert layer_ids is not None, "they were settled when the head was loaded or made"
        logits_BTV, features_BTX = self.teacher.logits_and_features(rows, layer_ids)
        target_ids_D, head_ids_V = self._ids(logits_BTV.device)
        device_type = logits_BTV.device.type
        loss = agreed = outside = logits_BTV.new_zeros(())
        with torch.autocast(device_type, torch.bfloat16, enabled=device_type == "cuda"):
            steps = unrolled(self.network, rows.token_ids_BT, features_BTX.float(), self.steps_ahead, rows.documents_BT)
            for step, (drafted_BPD, is_taught_BP) in enumerate(zip(steps, self._taught(rows), strict=True)):
                first = 1 + step  # the target's prediction stands this far behind the pair
                temperatures_N = rows.temperatures_BT[:, first:][is_taught_BP]
                law = TargetLaw.of(logits_BTV[:, first:][is_taught_BP], temperatures_N, target_ids_D)
                token_ids_N = rows.token_ids_BT[:, first:].roll(-1, 1)[is_taught_BP]
                scaled_ND = scaled(drafted_BPD[is_taught_BP], temperatures_N)
                losses_N = token_losses(self.loss, scaled_ND, law, head_ids_V[token_ids_N], progress)
                loss = loss + losses_N.sum()
                if step == 0:
                    best_N = scaled_ND.argmax(-1)
                    agreed = ((best_N if target_ids_D is None else target_ids_D[best_N]) == law.best_N).sum()
                    outside = law.outside_N.sum()
        return StepResult(loss, agreed, outside)

    def save(self, folder: str) -> None:
        """Write the head in the speculators format, in the type of its folder; the target's weights are left out."""
        weights = {
            name: weight.detach().to("cpu", self.dtype)
            for name, weight in self.network.named_parameters()
            if name not in self.borrowed
        }
        config = replace(self.config, format="speculators", target_name=self.config.target_name or self.teacher.name)
        save_head(Head(config, {**weights, **self.marks}), folder, "speculators")

    def _taught(self, rows: PackedRows) -> Iterator[torch.Tensor]:
        """Yield for each step ahead which pairs [B, P - k] predict an output token of their own document."""
        for step in range(min(self.steps_ahead, rows.token_ids_BT.shape[1] - 1)):
            is_own_BP = rows.documents_BT[:, : -1 - step] == rows.documents_BT[:, 1 + step :]
            yield is_own_BP & rows.is_taught_BT[:, 1 + step :]

    def _ids(self, device: torch.device) -> tuple[torch.Tensor | None, torch.Tensor]:
        """Return the target's ids of the head's tokens (None: all), and for each target id the head's, or -1."""
        all_V = torch.arange(self.config.vocab_size, device=device)
        if "d2t" not in self.marks:
            return None, all_V
        ids_D = target_ids(self.marks["d2t"], self.config.vocab_size).to(device)
        return ids_D, torch.full_like(all_V, -1).index_copy(0, ids_D, torch.arange(len(ids_D), device=device))


def trainable_config(path: str, target_config: PretrainedConfig, target_path: str) -> HeadConfig:
    """Return the configuration of the head in a folder, with the layers of this target whose input it reads.

    Raises ValueError, in one line that names the folder, for a head of another target and for one that is not trained
    here.
    """
    config = fitting_config(path, target_config, target_path)
    if config.kind != "eagle3" or config.num_layers != 1:
        raise ValueError(
            f"{path!r} is a head of kind {config.kind} with {config.num_layers} layers, and only eagle3 heads of one "
            "layer are trained here; use such a head, or leave models.draft out for a new one"
        )
    try:
        return replace(config, layer_ids=config.layer_ids_as("inputs"), layer_ids_are="inputs")
    except ValueError as error:
        raise ValueError(f"{path!r} {error} by dray convert-draft") from error


def head_config(teacher: Teacher, num_known: int, steps_ahead: int) -> HeadConfig:
    """Return the configuration of a head that reads low, middle and high layers, with the norms of EAGLE 3.1."""
    whole = teacher.network.config
    text = whole.get_text_config()
    said = read_config(teacher.path).get_text_config().dtype  # what was loaded may be in another type
    num_layers, num_heads = int(text.num_hidden_layers), int(text.num_attention_heads)
    hidden_size = int(text.hidden_size)
    layer = {
        "model_type": "llama",
        "vocab_size": teacher.vocab_size,
        "hidden_size": hidden_size,
        "intermediate_size": int(getattr(text, "intermediate_size", None) or 4 * hidden_size),
        "num_hidden_layers": 1,
        "num_attention_heads": num_heads,
        "num_key_value_heads": int(getattr(text, "num_key_value_heads", None) or num_heads),
        "head_dim": int(getattr(text, "head_dim", None) or hidden_size // num_heads),
        "rms_norm_eps": float(getattr(text, "rms_norm_eps", None) or 1e-6),
        "max_position_embeddings": int(getattr(text, "max_position_embeddings", None) or 2048),
        "dtype": str(said or torch.float32).removeprefix("torch."),
    }
    return HeadConfig(
        kind="eagle3",
        format="speculators",
        layer_config=normalized(layer),
        draft_vocab_size=num_known,
        target_hidden_size=hidden_size,
        layer_ids=layers_to_read(num_layers),
        layer_ids_are="inputs",
        num_speculative_tokens=steps_ahead,
        num_target_layers=num_layers,
        target_name=teacher.name,
        target_architectures=tuple(whole.architectures or ()),
        norm_before_residual=True,
        norm_before_fc=True,
        norm_output=True,
    )


def layers_to_read(num_layers: int) -> tuple[int, ...]:
    """Return the layers whose input a new head reads: a low one, a middle one and a high one, or as many as there are.

    For targets of 8 layers and more these are the ids that training software takes, of which vLLM knows, too.
    """
    ids = default_layer_inputs(num_layers)
    if list(ids) == sorted(set(ids)) and ids[0] >= 0:
        return ids
    return tuple(sorted({num_layers // 4, num_layers // 2, num_layers - 1}))


def tokens_to_know(counts: Sequence[int], num_known: int, forced: Iterable[int]) -> list[int]:
    """Return the ids of the most frequent tokens, ascending, of which those that are `forced` are some.

    `counts` has the occurrences of each of the target's tokens. Between equal counts the lower id is taken. Raises
    ValueError if not even the forced ones fit.
    """
    first = {token for token in forced if token < len(counts)}
    if len(first) > num_known:
        raise ValueError(
            f"train.draft_vocab is {num_known}, fewer than the target's {len(first)} end tokens and special tokens, "
            "which a head has to know; raise it"
        )
    ranked = sorted((token for token in range(len(counts)) if token not in first), key=lambda token: -counts[token])
    return sorted([*first, *ranked[: num_known - len(first)]])


def special_tokens(path: str) -> set[int]:
    """Return the ids of the special tokens and those added to the tokenizer in a model's folder; none without one."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except (OSError, ValueError, KeyError):
        return set()
    return {int(token) for token in (*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder)}


def coverage(counts: Sequence[int], known_ids: Sequence[int]) -> float:
    """Return the share of the counted tokens that a head with these ids knows."""
    return sum(counts[token] for token in known_ids) / max(sum(counts), 1)
