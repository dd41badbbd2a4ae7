"""Requests to a replica, and what it says of them: plain data that travels between processes."""

from dataclasses import dataclass
from enum import Enum
from math import inf

from actors.engine.deltas import Delta
from decoding.sampling_params import SamplingParams


@dataclass(frozen=True, kw_only=True)
class Generation:
    """Prompts whose samples are wanted: sample j of prompt i is sequence i * n + j.

    `seeds` has one for each prompt, which takes the place of `params.seed`: a sample is then what the offline job
    writes for a row with that seed.
    """

    request_id: str
    prompts: tuple[tuple[int, ...], ...]
    seeds: tuple[int, ...]
    params: SamplingParams
    owner: str = ""  # the key that it came with, by a name that does not tell it; empty outside of endpoints
    send_every_s: float = 0.0  # at most one batch of deltas in this time; an ending is sent at once
    fingerprint: str = ""  # of the engine that must write it; empty: any engine
    shows_special: bool = False  # whether special tokens belong to the text in which stop strings are looked for
    num_speculative_tokens: int | None = None  # most tokens that a sample drafts in a round; None: as the engine may
    call: str = ""  # a name of the request that all attempts at it have, and no client knows; empty: it has one attempt
    attempt: int = 1
    left_s: float = inf  # until the request's time is over
    is_streamed: bool = True  # to the client; of a whole answer the client has nothing before its end

    @property
    def num_sequences(self) -> int:
        """Samples of all prompts."""
        return len(self.prompts) * self.params.n


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """Prompts whose own tokens are scored, and nothing is generated."""

    request_id: str
    prompts: tuple[tuple[int, ...], ...]
    num_top: int
    owner: str = ""  # as of a Generation
    fingerprint: str = ""  # as of a Generation
    has_ranks: bool = False  # whether each token's rank among all is wanted
    has_next: bool = False  # whether the likeliest token behind each prompt is wanted, too


@dataclass(frozen=True)
class EngineFacts:
    """The limits and the fingerprint of a replica's engine."""

    max_model_len: int
    vocab_size: int
    num_speculative_tokens: int
    fingerprint: str = ""  # equal ones write equal tokens
    controls_drafts: bool = True  # whether a request may limit its drafts, and learn what was rejected of them
    eos_token_ids: frozenset[int] = frozenset()  # that end a text
    drafter: str = ""  # by its name in engine.drafter


class Standing(Enum):
    """The state of a request before its first token. A queued request cannot have brought an engine down."""

    WAITS = "waits"  # for a slot
    BEGINS = "begins"  # its prompt is read from now on


class NotDoneError(Exception):
    """Why a request is not done. A replica says it in place of tokens or scores, and raises nothing.

    Ray Serve takes an exception for a fault and logs its traceback, which takes longer than to refuse.
    """


class RefusedError(NotDoneError):
    """The request can never be run; its message says why. It is for the client."""


class OtherModelError(NotDoneError):
    """The replica has another fingerprint, as while an update is rolled out; nothing has been done."""


class BusyError(NotDoneError):
    """The queue is full; nothing has been done."""


class FailedError(NotDoneError):
    """The engine failed over this request, not over those beside it. Its message is for the log."""


Outcome = list[Delta] | Standing | NotDoneError  # what a replica says of a generation, again and again
