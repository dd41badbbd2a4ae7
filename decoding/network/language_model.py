"""LanguageModel: an unmodified transformers model over slots, from which the engine gets its logits.

Shapes: B rows, T tokens, J positions whose logits are wanted, V vocabulary.
"""

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from copy import copy
from functools import partial
from itertools import accumulate, chain
from math import prod
from typing import Any

import torch
from transformers import PreTrainedModel

from decoding.cache.features import Features, FeatureTap, check_layer_ids
from decoding.cache.kv_cache import KVCache
from decoding.cache.paged_cache import PagedCache
from decoding.cache.plan import Packing, Plan
from decoding.cache.prefill import Piece, batches, may_join_batch
from decoding.checkpoint.loading import DType, load_network
from decoding.codes.left_weight import identity_of
from decoding.device import Device, seconds_of, to_device
from decoding.fused.graphs import ForwardGraphs, graphs_on
from decoding.fused.live_weights import LiveWeights
from decoding.fused.packed_linear import coded_layers
from decoding.fused.recordings import CudaRecorder
from decoding.network.slot_network import Exact, SlotNetwork, layers_to_read
from decoding.network.target import LocalTarget, timed_start
from decoding.sampling.logprobs import Stretch, asked_logprobs
from decoding.sampling.rules import close_call_margin
from decoding.sequence import TokenLogprobs
from decoding.vocabulary.vocabulary_map import VocabularyMap


class LanguageModel(SlotNetwork, LocalTarget):
    """A causal LM with a slot cache."""

    vocab_size: int
    block_tokens = 0  # as a draft: each token takes a forward
    vocabulary_map: VocabularyMap | None = None  # as a draft with another tokenizer: its tokens as the target has them

    def __init__(self, model: PreTrainedModel, eos_token_ids: frozenset[int]) -> None:
        """Take over `model`; it must have no other user (its head carries our hook)."""
        super().__init__(model, eos_token_ids)
        self.cache: KVCache | None = None
        self.tokens_per_slot: int | None = None  # of rows on average, where they have pages; None: whole ones
        self.tap: FeatureTap | None = None
        self.close_call = close_call_margin(self.dtype)  # of a model that deviates little; the probe measures it
        # A forward reads each weight once, but only a few rows of an input embedding.
        self.num_bytes_read: int = self.num_weight_bytes
        if not self.is_kept:
            embedding = identity_of(model.get_input_embeddings())
            if embedding is not identity_of(model.get_output_embeddings()):
                self.num_bytes_read -= prod(embedding.shape) * self.dtype.itemsize

    @classmethod
    def load(cls, path: str, device: Device = "auto", dtype: DType = "auto", exact: Exact = "off") -> "LanguageModel":
        """Load the model at `path` (a folder, or a hub name), as `load_network` says; `exact` as in EngineOptions."""
        model = cls(*load_network(path, device, dtype, in_codes=True))
        model.exact = exact
        return model

    @property
    def weights(self) -> LiveWeights:
        """The weights, which all that share the network have."""
        return LiveWeights(self.network, follow=None if self.fused is None else self.fused.follow_weights)

    def facts(self) -> dict[str, bool | int]:
        is_recorded = self.graphs is not None and self.graphs.recordings.record is not None
        return {"fused": self.fused is not None, "graphs": is_recorded, "coded_layers": self.num_coded_layers}

    def share(self) -> "LanguageModel":
        twin = copy(self)
        twin.cache, twin.tap = None, None
        if self.graphs is not None:  # recordings contain the addresses of one cache
            twin.graphs = ForwardGraphs(self._run_fused, CudaRecorder())
        return twin

    def hand_out(self, tap: FeatureTap | None) -> None:
        if tap is not None:
            check_layer_ids(tap.layer_ids, len(layers_to_read(self.network)))
        if self.graphs is not None:  # recordings project for the earlier tap, or for none
            self.graphs.forget()
        self.tap = tap

    @property
    def has_pages(self) -> bool:
        """Whether its rows have pages of keys and values: our GPU kernels, or their interpreter, run its layers."""
        return self.fused is not None and self.fused.is_on_gpu

    def allocate(self, num_slots: int, num_positions: int, num_draft_tokens: int = 0) -> None:
        if self.graphs is not None:  # recordings have the addresses of the earlier cache
            self.graphs.forget()
        if self.has_pages:
            self.cache = PagedCache(num_slots, num_positions, self.device, self.tokens_per_slot)
        else:
            self.cache = self.new_cache(num_slots, num_positions, num_draft_tokens)

    def release(self) -> None:
        self.cache = None
        if self.graphs is not None:  # their private memory would stay
            self.graphs.forget()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def speed_up(self) -> None:
        """Lay the weights out for this device, and fuse the layers of a network that fits; the cache is lost.

        The network stays complete and callable. `decoding/network/probe.py` measures that it computes the same.
        """
        self.cache = None
        if self.is_sped_up:
            return
        self._lay_out()
        self.num_bytes_read -= sum(layer.num_bytes_saved for layer in coded_layers(self.network))
        if self.fused is not None:
            self.graphs = graphs_on(self.device, self._run_fused)

    def prefill(self, slots: Seq[int], token_ids: Seq[Seq[int]], starts: Seq[int] | None = None) -> None:
        """Write the keys and values of each row's tokens, as `Target.prefill` says, in the forwards of `batches`."""
        for batch in self._batches(slots, token_ids, starts):
            width = len(batch[0].tokens)
            tokens_BT = to_device([row + [0] * (width - len(row)) for row, _, _ in batch], self.device)
            self.forward(
                [first for _, _, first in batch],
                tokens_BT,
                tokens_BT.new_zeros(len(batch), 0),
                slots=[slot for _, slot, _ in batch],
                lengths=[len(row) for row, _, _ in batch],
                is_prompt=True,
            )

    def _batches(
        self, slots: Seq[int], token_ids: Seq[Seq[int]], starts: Seq[int] | None = None
    ) -> Iterator[list[Piece]]:
        attends_in_place = self.fused is not None and self.fused.attends_in_place
        may_join = partial(may_join_batch, packs_rows=self.packs_rows, attends_in_place=attends_in_place)
        is_on_cpu = self.device.type == "cpu" and not self.has_pages  # Triton's interpreter reads as a GPU does
        return batches(slots, token_ids, starts, may_join, is_on_cpu=is_on_cpu)

    def logprobs(self, stretches: Seq[Stretch]) -> list[list[TokenLogprobs]]:
        """Return what stretches ask for, as `Target.logprobs` says, in the forwards of `batches`.

        Our own layers hand out hidden states, from which logits are computed for some positions at a time. What other
        networks do behind their head is their own affair, so their forwards return logits, and have fewer positions.
        """
        slots, starts = [each.slot for each in stretches], [each.start for each in stretches]
        assert len(set(slots)) == len(slots), "each slot has one stretch at most"
        rest = dict(zip(slots, enumerate(stretches), strict=True))
        found: list[list[TokenLogprobs]] = [[] for _ in stretches]
        for batch in self._batches(slots, [each.token_ids for each in stretches], starts):
            numbers, here = [], []
            for piece in batch:
                number, stretch = rest[piece.slot]
                first, later = stretch.cut(len(piece.tokens))
                rest[piece.slot] = number, later
                numbers.append(number)
                here.append(first)
            is_ours = self.fused is not None and self.tap is None
            scores = self._logprobs_of_hidden(here) if is_ours else super().logprobs(here)
            for number, logprobs in zip(numbers, scores, strict=True):
                found[number] += logprobs
        return found

    @torch.inference_mode()
    def _logprobs_of_hidden(self, stretches: Seq[Stretch]) -> list[list[TokenLogprobs]]:
        assert self.cache is not None, "allocate() comes first"
        assert self.fused is not None
        fused, lengths = self.fused, [len(each.token_ids) for each in stretches]
        fed_N = to_device([token for each in stretches for token in each.token_ids], self.device)
        packing = Packing.of(lengths, self.device, is_read_back=not fused.attends_in_place)
        starts, slots = [each.start for each in stretches], [each.slot for each in stretches]
        self.cache.hold(slots, starts, lengths)
        plan, positions_BT = self._planned(starts, max(lengths), packing, slots, self.cache)
        positions_N = positions_BT.flatten() if packing is None else positions_BT.flatten()[packing.packed_N]
        firsts = accumulate(lengths, initial=0)
        wanted = [first + place for first, each in zip(firsts, stretches, strict=False) for place in each.places]
        wanted_M = to_device(wanted, self.device, torch.int64)
        hidden_ME = fused.hidden(fed_N, positions_N, len(wanted), self.cache, plan)[wanted_M]
        return asked_logprobs(stretches, lambda part: fused.logits(hidden_ME[part]), self.vocab_size)

    @torch.inference_mode()
    def forward(
        self,
        starts: Seq[int],
        token_ids_BT: torch.Tensor,
        logits_at_BJ: torch.Tensor,
        slots: Seq[int] | None = None,
        lengths: Seq[int] | None = None,
        *,
        is_prompt: bool = False,
    ) -> torch.Tensor:
        """Return logits [B, J, V] at the given token indexes of each row (0..T-1); keys and values are written first.

        Row b's tokens have positions starts[b], starts[b] + 1, ... of its slot (by default slot b) and see everything
        before them there. Row b has `lengths[b]` of the T tokens (by default all): ragged rows are packed end to end,
        so that padding costs nothing; logits beyond a row's tokens are those of its last one. The features of
        the rows' own tokens are handed out before this returns. The next forward of a row may start behind any of these
        tokens, or with `is_prompt` behind the last one alone.
        """
        features = self._features()
        fed = starts, token_ids_BT, logits_at_BJ, slots, lengths, features
        logits_BJV, tokens_N = self._read(*fed, is_prompt=is_prompt)
        if features is not None:
            own = [token_ids_BT.shape[1]] * len(starts) if lengths is None else list(lengths)
            features_NH = features.take()
            if len(tokens_N) > sum(own):  # a rectangle was fed, with padding
                width = len(tokens_N) // len(own)
                places = [range(row * width, row * width + length) for row, length in enumerate(own)]
                own_N = to_device(list(chain.from_iterable(places)), self.device)
                tokens_N, features_NH = tokens_N[own_N], features_NH[own_N]
            of_rows = list(range(len(own)) if slots is None else slots), list(starts), own
            features.tap.receive(*of_rows, tokens_N, features_NH)
        return logits_BJV

    def _features(self) -> Features | None:
        return None if self.tap is None else Features(self.tap)

    def _read(
        self,
        starts: Seq[int],
        token_ids_BT: torch.Tensor,
        logits_at_BJ: torch.Tensor,
        slots: Seq[int] | None,
        lengths: Seq[int] | None,
        features: Features | None,
        *,
        is_prompt: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the logits of `forward`, and the N tokens that were fed; theirs are the features."""
        assert self.cache is not None, "allocate() comes first"
        if self.runs_rows_apart and lengths is not None:  # no row is fed more than its own tokens
            token_ids_BT, logits_at_BJ = token_ids_BT[:, : max(lengths)], logits_at_BJ.clamp(max=max(lengths) - 1)
        width = token_ids_BT.shape[1]
        written = [width] * len(starts) if lengths is None else lengths
        self.cache.hold(range(len(starts)) if slots is None else slots, starts, written)
        is_ragged = lengths is not None and (self.packs_rows or self.runs_rows_apart)
        attends_in_place = self.fused is not None and self.fused.attends_in_place
        is_read_back = not attends_in_place or logits_at_BJ.shape[1] > 0
        packing = None
        if lengths is not None and is_ragged:
            packing = Packing.of(lengths, self.device, width, is_read_back=is_read_back)
        tokens_N = token_ids_BT.flatten() if packing is None else token_ids_BT.flatten()[packing.packed_N]
        of_rows = starts, width, packing, logits_at_BJ, slots, self.cache, features, lengths
        return self._forward(tokens_N, *of_rows, is_prompt=is_prompt), tokens_N

    @torch.inference_mode()
    def run_planned(
        self, token_ids_N: torch.Tensor, wanted_M: torch.Tensor, plan: Plan, features: Features | None = None
    ) -> torch.Tensor:
        """Return logits [M, V] after the wanted tokens of a forward that is planned on the device.

        Only for a model whose layers our GPU kernels run; nothing here waits for the device. Only the device knows the
        rows, so nothing is handed out: what the N tokens have, padding included, is left in `features`, whose `take`
        returns a line for each in the plan's order and may be part of the same recording.
        """
        assert self.tap is None or features is not None, "a drafter would miss the features of these tokens"
        assert self.cache is not None, "allocate() comes first"
        assert self.fused is not None, "only fused layers take a plan"
        self.cache.use(plan)
        return self.fused.forward(token_ids_N, plan.positions_N, wanted_M, self.cache, plan, features)

    def when_busy(self, begin: Callable[[], None]) -> None:
        if self.fused is None or not self.fused.before_kernels(begin):
            begin()

    def plain_logits(self, token_ids: Seq[int]) -> torch.Tensor:
        return self.plain(to_device(list(token_ids), self.device))[0]

    @torch.inference_mode()
    def seconds(self, num_rows: int, num_tokens: int) -> float:
        assert self.cache is not None
        start = timed_start(self.cache.num_positions, num_tokens)
        tokens_BT = torch.zeros(num_rows, num_tokens, dtype=torch.int64, device=self.device)
        every_BT = torch.arange(num_tokens, device=self.device).expand(num_rows, -1)
        if self.cache.states is not None:  # of any numbers: the time is asked for
            self.prefill(range(num_rows), [[0]] * num_rows)
            for slot in range(num_rows):
                self.cache.pretend(slot, start)
        fed = [start] * num_rows, tokens_BT, every_BT, None, None, self._features()
        return seconds_of(lambda: self._read(*fed), self.device)

    def _call(self, fed_BT: torch.Tensor, positions_BT: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        logits_BJV: torch.Tensor = self.network(input_ids=fed_BT, position_ids=positions_BT, **kwargs).logits
        return logits_BJV
