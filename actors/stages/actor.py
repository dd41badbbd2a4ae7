"""StageActor: one stage of a target in a process of its own, driven by a `StagePipeline`."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from actors.stages.work import Done, Finish, Work, do
from decoding.checkpoint.loading import DType
from decoding.checkpoint.rank import meet, open_rank_store
from decoding.device import Device, give_back_freed_memory, is_device_fault, name_of
from decoding.network.stage import Stage


@dataclass(frozen=True)
class StageFacts:
    """What is true of a stage now: it may be made faster, or slower again."""

    eos_token_ids: frozenset[int]
    dtype: torch.dtype
    device_name: str  # "cpu", or the GPU's name
    max_positions: int | None
    vocab_size: int | None  # None where there is no head
    hidden_size: int
    num_layers: int  # of the whole target
    num_weight_bytes: int  # of this process, where ranks share the stage out
    packs_rows: bool  # or the model sees a rectangle
    is_fused: bool  # our own layers run
    is_recorded: bool  # and their forwards are recorded
    fallback: str  # as `Target.fallback`
    has_exact_products: bool  # as `SlotNetwork.has_exact_products`
    attends_in_place: bool  # and our own attention in them, which needs no rectangle
    is_batch_invariant: bool
    has_states: bool  # some of its layers keep states
    num_coded_layers: int  # that multiply codes of 4 or 8 bits

    @classmethod
    def of_ranks(cls, ranks: list["StageFacts"]) -> "StageFacts":
        """Return those of the first rank of a stage, which is fused, recorded and exact only if all of them are."""
        names = ("is_fused", "is_recorded", "has_exact_products", "is_batch_invariant")
        of_all: dict[str, Any] = {name: all(getattr(facts, name) for facts in ranks) for name in names}
        return replace(ranks[0], fallback=next((facts.fallback for facts in ranks if facts.fallback), ""), **of_all)


class RankFailedError(RuntimeError):
    """This process has failed where the others of its stage went on: their sums lack its part."""


class StageActor:
    """A stage, or one rank of it, that does work in the order in which it comes."""

    def __init__(
        self,
        path: str,
        index: int,
        num_stages: int,
        device: Device,
        dtype: DType,
        rank: int = 0,
        num_ranks: int = 1,
        timeout_s: float = 0.0,
        port: int | None = None,
    ) -> None:
        """Become stage `index` of the model at `path`, not loaded yet: Ray garbles what an actor's constructor raises.

        It is one of `num_ranks` processes that share the stage, and meet at `port`; rank 0 opens it. In a forward they
        wait `timeout_s` for each other.
        """
        self._arguments = (path, index, num_stages, device, dtype)
        self._device: Device = device
        self._rank, self._num_ranks, self._timeout_s, self._port = rank, num_ranks, timeout_s, port
        self._meeting_place: Any = None
        self._has_failed = False  # where others went on without it: it must join no forward of theirs any more
        self._loaded: Stage | None = None

    def open_meeting_place(self) -> int:
        """Open the port where the ranks of this stage meet, and return it."""
        self._meeting_place = open_rank_store(self._num_ranks)
        self._port = self._meeting_place.port
        return self._port

    def load(self) -> StageFacts:
        """Load the stage, once. Raises ValueError if it cannot run."""
        if self._loaded is None:
            with self._together():
                if self._num_ranks > 1:
                    assert self._port is not None, "rank 0 opens the place where ranks meet"
                    meet(self._port, self._rank, self._num_ranks, self._device, self._timeout_s)
                self._loaded = Stage.load(*self._arguments, self._num_ranks)
        return self.facts()

    @property
    def _stage(self) -> Stage:
        assert self._loaded is not None, "load() comes first"
        return self._loaded

    def facts(self) -> StageFacts:
        stage = self._stage
        return StageFacts(
            eos_token_ids=stage.eos_token_ids,
            dtype=stage.dtype,
            device_name=name_of(stage.device),
            max_positions=stage.max_positions,
            vocab_size=stage.vocab_size,
            hidden_size=stage.hidden_size,
            num_layers=stage.layers.num_layers,
            num_weight_bytes=stage.num_weight_bytes,
            packs_rows=stage.packs_rows,
            is_fused=stage.fused is not None,
            is_recorded=stage.is_recorded,
            fallback=stage.fallback,
            has_exact_products=stage.has_exact_products,
            attends_in_place=stage.fused is not None and stage.fused.attends_in_place,
            is_batch_invariant=stage.is_batch_invariant,
            has_states=stage.has_states,
            num_coded_layers=stage.num_coded_layers,
        )

    def pid(self) -> int:
        """Return the id of this process. Raises RankFailedError once it has failed."""
        with self._together():
            return os.getpid()

    def speed_up(self) -> None:
        self._stage.speed_up()
        give_back_freed_memory()

    def call(self, method: str, *args: Any) -> None:
        """Call a method of the Stage that returns nothing."""
        with self._together(is_joint=False):
            getattr(self._stage, method)(*args)

    def change(self, attribute: str, value: int | str) -> None:
        """Set an attribute of the Stage that says how it runs."""
        setattr(self._stage, attribute, value)

    def is_finite(self, session: int, slot: int, length: int) -> bool:
        with self._together(is_joint=False):
            return self._stage.cache(session).is_finite(slot, length)

    def do(self, work: Work, fed: Any, finish: Finish | None = None) -> Any:
        """Do the work on these tokens, or on what the stage before has done, and return what comes of it.

        That is a Done with arrays in place of tensors. Ranks but the first return nothing.
        """
        streams = None
        if isinstance(fed, Done):
            fed, streams = fed
        with self._together():
            read_before = None if streams is None or self._rank > 0 else unpacked(streams)
            answer = do(self._stage, work, unpacked(fed), finish, read_before)  # ranks read, to run the same layers
        if self._rank > 0:
            return None  # the first one's is the same
        out = answer.out if self._stage.layers.has_head else packed(answer.out)
        return Done(out, packed(answer.streams_NX))

    @contextmanager
    def _together(self, *, is_joint: bool = True) -> Iterator[None]:
        """Hold what all ranks of the stage do, or none. A rank that fails may be anywhere in it, and never goes on.

        Nor does a process whose device failed, whether it shares its stage or not, or that `is_joint` work or its own.
        """
        if self._has_failed:
            raise RankFailedError(f"rank {self._rank} of a stage has failed, and must be replaced")
        try:
            yield
        except BaseException as error:
            self._has_failed = (is_joint and self._num_ranks > 1) or is_device_fault(error)
            raise


def packed(hidden: torch.Tensor | None) -> Any:
    """Turn hidden states, or streams, into an array, which Ray sends without a copy, and the type of its numbers."""
    if hidden is None:
        return None
    plain = hidden.contiguous()
    if plain.dtype is torch.bfloat16:
        return plain.view(torch.int16).numpy(), torch.bfloat16
    return plain.numpy(), plain.dtype


def unpacked(fed: Any) -> torch.Tensor:
    """Turn tokens, or what `packed` left, into a tensor, which must not be written."""
    if fed is None:
        return torch.empty(0, dtype=torch.int64)
    if isinstance(fed, tuple):
        array, dtype = fed
        tensor = torch.from_numpy(np.array(array))  # a copy: what comes out of Ray's store cannot be written
        return tensor.view(dtype) if tensor.dtype is not dtype else tensor
    return torch.tensor(fed, dtype=torch.int64)
