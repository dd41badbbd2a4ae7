"""Work: what the stages of a target are told. Plain data, the same for all stages, but the last one gets a Finish.

Shapes: B rows, J positions whose logits are wanted, V vocabulary.
"""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from typing import Any, NamedTuple, cast

import torch

from decoding.cache.kv_cache import KVCache
from decoding.network.stage import Stage
from decoding.sampling.judging import ScoreRequest, decide, judge
from decoding.sampling.logprobs import Stretch, asked_logprobs
from decoding.sampling.masks import TokenMasks
from decoding.sampling.rows import Rows
from decoding.sampling.verdicts import RowVerdict
from decoding.sequence import Sequence, TokenLogprobs

_CPU = torch.device("cpu")
Change = Callable[[KVCache], None]  # of slots; it is pickled, as a Finish is
Finish = Callable[[torch.Tensor], Any]  # takes the last stage's logits, and returns its answer


@dataclass(frozen=True)
class Work:
    """Changes of slots, and then a forward over some rows of a session; over one row without slots if there is none."""

    session: int | None
    changes: tuple[Change, ...] = ()
    slots: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()
    lengths: tuple[int, ...] = ()  # tokens of each row; no rows: no forward
    num_logits: int = 0  # positions of each row whose logits are wanted: its first ones; without slots its last ones
    is_prompt: bool = False  # no row is rolled back to one of these tokens but the last
    by_default: bool = False  # without slots: by transformers' default attention
    layer_ids: tuple[int, ...] = ()  # in order; the streams that enter these layers are wanted of all tokens


class Done(NamedTuple):
    """What comes of work on a stage."""

    out: Any  # hidden states; on the last stage what a Finish makes of the logits
    # The streams that were read so far [N, A * E], of all stages up to this one; None if none was wanted.
    streams_NX: torch.Tensor | None = None


def judged(request: ScoreRequest, logits_BJV: torch.Tensor) -> list[RowVerdict]:
    """Return the verdict on each row's draft."""
    return judge(_moved(request, logits_BJV.device), logits_BJV).result()


def decided(rows: Rows, num_logprobs: int | None, logits: torch.Tensor) -> RowVerdict:
    """Return the verdict on a single row's next token."""
    return decide(_moved(rows, logits.device), logits.flatten(0, -2)[0], num_logprobs)


def scored(stretches: Seq[Stretch], logits_BJV: torch.Tensor) -> list[list[TokenLogprobs]]:
    """Return what each row's stretch asks for behind its tokens, of which the first J have logits."""
    vocab_size = logits_BJV.shape[-1]
    return [
        asked_logprobs([stretch], partial(_behind, logits_JV, stretch.places), vocab_size)[0]
        for stretch, logits_JV in zip(stretches, logits_BJV, strict=True)
    ]


def _behind(logits_JV: torch.Tensor, places: Seq[int], part: slice) -> torch.Tensor:
    return logits_JV[places[part]]


def do(
    stage: Stage, work: Work, fed: torch.Tensor, finish: Finish | None, streams_NX: torch.Tensor | None = None
) -> Done:
    """Do the work on this stage. `streams_NX` were read in those before it."""
    for change in work.changes:
        assert work.session is not None, "without a session there are no slots"
        change(stage.cache(work.session))
    if not work.lengths:
        return Done(None)
    features = stage.reader(work.layer_ids)
    if work.session is None:
        out = (stage.plain_by_default if work.by_default else stage.plain)(fed, work.num_logits)
    else:
        every_BJ = torch.arange(work.num_logits).expand(len(work.lengths), -1)
        of_rows = work.starts, work.lengths, every_BJ, work.slots, work.session, features
        out = stage.forward(fed, *of_rows, is_prompt=work.is_prompt)
    if features is not None:
        own_NX = features.take().cpu()
        streams_NX = own_NX if streams_NX is None else torch.cat((streams_NX, own_NX), dim=1)
    if not stage.layers.has_head:
        return Done(out.cpu(), streams_NX)
    return Done(None if finish is None else finish(out), streams_NX)


class _Tokens:
    """A sequence as verification needs it: its tokens, or only how many there are."""

    def __init__(self, sequence: Sequence, needs_tokens: bool) -> None:
        self._length, num_prompt = len(sequence), len(sequence.prompt_token_ids)
        self.prompt_token_ids: Seq[int] = range(num_prompt)
        self.token_ids: Seq[int] = list(sequence.token_ids) if needs_tokens else ()
        self.matcher = None  # masks are sent

    def __len__(self) -> int:
        return self._length


def to_send(rows: Rows, masks: TokenMasks | None = None) -> Rows:
    """Copy rows to the CPU, with no more of their sequences than verification needs, and the masks of what is asked."""
    needs_tokens = rows.sampling.reads_tokens
    tokens = tuple(cast(Sequence, _Tokens(sequence, needs_tokens)) for sequence in rows.sequences)
    sampling = _moved(rows.sampling, _CPU)
    return Rows(tokens, sampling, rows.num_draft_tokens, rows.rule, known_masks=masks)


def request_to_send(request: ScoreRequest) -> ScoreRequest:
    """Copy a request to the CPU, with no more of its sequences than verification needs."""
    rows = to_send(request.rows, request.masks())
    return ScoreRequest(rows, _moved(request.draft, _CPU), request.num_logprobs, request.close_call)


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, tuple):
        return tuple(_moved(item, device) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value) if field.init]
        return replace(value, **{name: _moved(getattr(value, name), device) for name in names})
    return value
