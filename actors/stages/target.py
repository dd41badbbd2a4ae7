"""ShardedModel: a target whose layers are shared by stage actors. The engine sees a `Target` like any other.

Shapes: N tokens, A layers, E the target's hidden size, X = A * E, H features of a projected token.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Seq
from copy import copy
from functools import partial
from itertools import chain, count
from operator import methodcaller
from typing import Any, TypeVar

import torch

from actors.stages.actor import unpacked
from actors.stages.pipeline import StagePipeline, Step
from actors.stages.remote_slots import RemoteSlots
from actors.stages.work import Work, decided, judged, request_to_send, scored, to_send
from decoding.cache.features import FeatureTap, check_layer_ids
from decoding.cache.prefill import batches, may_join_batch
from decoding.device import to_device
from decoding.network.target import PendingVerdicts, timed_start
from decoding.sampling.judging import ScoreRequest, behind
from decoding.sampling.logprobs import Stretch, in_forwards
from decoding.sampling.masks import TokenMasks
from decoding.sampling.rows import Rows
from decoding.sampling.rules import close_call_margin
from decoding.sampling.verdicts import RowVerdict
from decoding.sequence import TokenLogprobs
from decoding.states.book import StateBook, num_recent_states

_T = TypeVar("_T")
_ON_HOST: Callable[[torch.Tensor], torch.Tensor] = methodcaller("cpu")


class ShardedModel:
    """A session on a pipeline of stages: slots of its own in each of them."""

    tap: FeatureTap | None = None

    def __init__(self, pipeline: StagePipeline, device: torch.device | None = None) -> None:
        """Use stages that are set up (`actors/stages/probe.py`); questions come on `device` (the CPU)."""
        self.pipeline = pipeline
        self.facts_of_stages = pipeline.repeat(pipeline.facts)
        first, last = self.facts_of_stages[0], self.facts_of_stages[-1]
        assert last.vocab_size is not None, "the last stage has the head"
        self.device = device or torch.device("cpu")
        self.dtype: torch.dtype = last.dtype
        self.vocab_size: int = last.vocab_size
        self.hidden_size: int = first.hidden_size
        self.max_positions: int | None = first.max_positions
        self.eos_token_ids: frozenset[int] = first.eos_token_ids
        self.close_call = close_call_margin(self.dtype)
        self.cache: RemoteSlots | None = None
        self._size = (0, 0, 0)  # slots, positions and drafted tokens
        self._sessions = count()
        self._session = next(self._sessions)

    @property
    def runs_on(self) -> str:
        """The devices of the stages, as `Target.runs_on`: `device`, where questions are put, may be another one."""
        return ", ".join(sorted({facts.device_name for facts in self.facts_of_stages}))

    @property
    def fallback(self) -> str:
        """Why some stage runs otherwise than it was to, as `Target.fallback`, when the stages were last asked."""
        return next((facts.fallback for facts in self.facts_of_stages if facts.fallback), "")

    @property
    def has_exact_products(self) -> bool:
        """Whether the products of every stage are our GPU kernels', as `SlotNetwork.has_exact_products`."""
        return all(facts.has_exact_products for facts in self.facts_of_stages)

    @property
    def is_batch_invariant(self) -> bool:
        """Whether every stage is: then a token's logits are the same, bit for bit, whatever runs beside it."""
        return all(facts.is_batch_invariant for facts in self.facts_of_stages)

    @property
    def num_lanes(self) -> int:
        """Enough lanes that every stage has work."""
        return len(self.facts_of_stages)

    def facts(self) -> dict[str, bool | int]:
        """Report whether our layers run, and on how many stages, and by how many processes each."""
        return {
            "fused": all(facts.is_fused for facts in self.facts_of_stages),
            "graphs": all(facts.is_recorded for facts in self.facts_of_stages),
            "coded_layers": sum(facts.num_coded_layers for facts in self.facts_of_stages),
            "stages": len(self.facts_of_stages),
            "ranks": self.pipeline.group.settings.tensor_parallel,
        }

    def share(self) -> ShardedModel:
        """Make another session on the same stages, with slots of its own."""
        twin = copy(self)  # asks the stages nothing: one of them may be lost
        twin.cache, twin.tap, twin._size, twin._session = None, None, (0, 0, 0), next(self._sessions)
        return twin

    def hand_out(self, tap: FeatureTap | None) -> None:
        """Give features to `tap`, as `Target.hand_out`; those of a score are there when its verdicts are."""
        if tap is not None:
            check_layer_ids(tap.layer_ids, self.facts_of_stages[0].num_layers)
        self.tap = tap

    def allocate(self, num_slots: int, num_positions: int, num_draft_tokens: int = 0) -> None:
        self._size = num_slots, num_positions, num_draft_tokens
        self.pipeline.allocate(self._session, *self._size)
        has_states = any(facts.has_states for facts in self.facts_of_stages)
        states = StateBook(num_slots, num_recent_states(num_draft_tokens)) if has_states else None
        self.cache = RemoteSlots(self.pipeline, self._session, states)

    def release(self) -> None:
        self.cache = None
        self.pipeline.release(self._session)

    def prefill(self, slots: Seq[int], token_ids: Seq[Seq[int]], starts: Seq[int] | None = None) -> None:
        """Write tokens into slots, as `Target.prefill`; that is under way when this returns, unless there is a tap."""
        may_join = partial(
            may_join_batch,
            packs_rows=all(facts.packs_rows for facts in self.facts_of_stages),
            attends_in_place=all(facts.attends_in_place for facts in self.facts_of_stages),
        )
        tapped: deque[Step[None]] = deque()
        for batch in batches(slots, token_ids, starts, may_join, is_on_cpu=self.runs_on == "cpu"):
            step: Step[None] = self._send(
                [piece.slot for piece in batch],
                [piece.start for piece in batch],
                [piece.tokens for piece in batch],
                is_prompt=True,
            )
            if self.tap is not None:
                tapped.append(step)
            if len(tapped) > len(self.facts_of_stages):  # each stage has one, and no more streams are held
                tapped.popleft().result()
        for step in tapped:
            step.result()

    def score(self, request: ScoreRequest) -> PendingVerdicts:
        tokens, num_positions = request.token_ids_BJ.tolist(), request.token_ids_BJ.shape[1]
        lengths = request.lengths or [num_positions] * len(tokens)
        return self._send(
            range(len(tokens)),
            request.starts,
            [row[:length] for row, length in zip(tokens, lengths, strict=True)],
            num_positions,
            partial(judged, request_to_send(request)),
        )

    def decide(
        self, rows: Rows, accepted: Seq[int], num_logprobs: int | None, in_slot: int | None = None
    ) -> RowVerdict:
        rows = behind(rows, accepted)
        (sequence,) = rows.sequences
        token_ids = sequence.token_ids
        finish = partial(decided, to_send(rows, TokenMasks.of(rows.sequences, [[]], 0, 1)), num_logprobs)
        if in_slot is None:
            work = Work(None, lengths=(len(token_ids),), num_logits=1)
            return self.pipeline.send(work, [token_ids], finish).result()
        *before, newest = token_ids
        self.prefill([in_slot], [before])
        return self._send([in_slot], [len(before)], [[newest]], 1, finish).result()

    def plain_logits(self, token_ids: Seq[int], num_logits: int) -> torch.Tensor:
        """Return the last logits [J, V] of a text, by a forward without slots, with transformers' default attention."""
        work = Work(None, lengths=(len(token_ids),), num_logits=num_logits, by_default=True)
        patience_s = self.pipeline.group.settings.start_timeout_s  # the first one starts much
        return self.pipeline.send(work, [token_ids], _ON_HOST, patience_s).result()

    def logprobs(self, stretches: Seq[Stretch]) -> list[list[TokenLogprobs]]:
        """Return what stretches ask for, as `Target.logprobs`.

        A stage computes the logits of a row's first tokens, so the tokens before the first asked one go ahead.
        """
        parts = [each.cut(each.asked[0][0] if each.asked else len(each.token_ids)) for each in stretches]
        behind, going = [rest for _, rest in parts], [first for first, _ in parts if first.token_ids]
        if going:
            self.prefill(
                [each.slot for each in going], [each.token_ids for each in going], [each.start for each in going]
            )
        found: list[list[TokenLogprobs]] = [[] for _ in stretches]
        asking = [number for number, each in enumerate(behind) if each.token_ids]
        for forward in in_forwards([behind[number] for number in asking], self.vocab_size):
            here = [stretch for _, stretch in forward]
            step = self._send(
                [stretch.slot for stretch in here],
                [stretch.start for stretch in here],
                [stretch.token_ids for stretch in here],
                1 + max(stretch.places[-1] for stretch in here),
                partial(scored, here),
                is_prompt=True,
            )
            for (number, _), logprobs in zip(forward, step.result(), strict=True):
                found[asking[number]] += logprobs
        return found

    def seconds(self, num_rows: int, num_tokens: int) -> float:
        """Time a forward through all stages, as `Target.seconds`; again in fresh slots if a stage is lost over it."""
        return self.seconds_of_several(num_rows, num_tokens, 1)

    def seconds_of_several(self, num_rows: int, num_tokens: int, num_forwards: int) -> float:
        return self.pipeline.repeat(partial(self._seconds, num_rows, num_tokens, num_forwards))

    def _seconds(self, num_rows: int, num_tokens: int, num_forwards: int) -> float:
        if not self.pipeline.has_slots(self._session):
            self.allocate(*self._size)
        start = timed_start(self._size[1], num_tokens)
        assert self.cache is not None
        if self.cache.has_states:
            self.prefill(range(num_rows), [[0]] * num_rows)
            for slot in range(num_rows):
                self.cache.pretend(slot, start)
        self.pipeline.drain()
        started = time.perf_counter()
        slots, starts, tokens = range(num_rows), [start] * num_rows, [[0] * num_tokens] * num_rows
        steps: list[Any] = [self._send(slots, starts, tokens, num_tokens) for _ in range(num_forwards)]
        self.pipeline.drain()
        if self.tap is not None:
            for step in steps:
                self._features(self.tap, step.streams)
        return time.perf_counter() - started

    def logits(
        self,
        slots: Seq[int],
        starts: Seq[int],
        token_ids: Seq[Seq[int]],
        finish: Callable[[torch.Tensor], torch.Tensor] = _ON_HOST,
    ) -> torch.Tensor:
        """Return logits [B, J, V] at the tokens of each row, at a shorter one's last again. Large: for measurements."""
        return self._send(slots, starts, token_ids, max(map(len, token_ids)), finish).result()

    def _send(
        self,
        slots: Seq[int],
        starts: Seq[int],
        token_ids: Seq[Seq[int]],
        num_logits: int = 0,
        finish: Callable[[torch.Tensor], _T] | None = None,
        *,
        is_prompt: bool = False,
    ) -> Step[_T]:
        assert self.cache is not None, "allocate() comes first"
        changes, lengths = self.cache.take_changes(), tuple(map(len, token_ids))
        tap, receive = self.tap, None
        layer_ids = () if tap is None else tuple(sorted(tap.layer_ids))
        if tap is not None:
            receive = partial(self._receive, tap, slots, starts, lengths, list(chain.from_iterable(token_ids)))
        of_rows = tuple(slots), tuple(starts), lengths, num_logits, is_prompt
        work = Work(self._session, changes, *of_rows, layer_ids=layer_ids)
        self.cache.extend(work)
        return self.pipeline.send(work, token_ids, finish, receive=receive)

    @torch.inference_mode()
    def _receive(
        self, tap: FeatureTap, slots: Seq[int], starts: Seq[int], lengths: Seq[int], token_ids: list[int], streams: Any
    ) -> None:
        """Give the tap the features of a step's tokens."""
        features_NH = self._features(tap, streams)
        tap.receive(list(slots), list(starts), list(lengths), to_device(token_ids, self.device), features_NH)

    @torch.inference_mode()
    def _features(self, tap: FeatureTap, streams: Any) -> torch.Tensor:
        """Return the features [N, H] of tokens whose streams the stages read, side by side in the order of layers."""
        layer_ids, streams_NX = sorted(tap.layer_ids), unpacked(streams)
        streams_NAE = streams_NX.view(len(streams_NX), len(layer_ids), -1)
        in_order = [layer_ids.index(layer_id) for layer_id in tap.layer_ids]
        return tap.project(streams_NAE[:, in_order].flatten(1).to(self.device))
