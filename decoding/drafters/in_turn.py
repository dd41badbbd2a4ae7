"""InTurn: several drafters for the same rows, of which one drafts in a round (`decoding/pace/trials.py` says which).

They are made of parts, some of which they share: a lookup and a draft model, each alone and both together. The parts of
the drafter whose turn it is hear of everything, and so do lookups, which read texts only when they draft. The others
hear of nothing, which costs nothing, and so do all in a rest that goes on: when their turn comes, every slot begins
anew for them. A model then reads the rows that run. A head reads features of the target, and drafts for the rows that
have begun since they were handed out to it.

Shapes: N tokens, X streams of the target side by side, E the target's hidden size, H features of a projected token.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Seq

import torch

from decoding.cache.features import FeatureTap
from decoding.drafters.base import Drafter, NoDrafter
from decoding.sampling.rows import Rows
from decoding.sampling.verdicts import Draft
from decoding.sequence import Sequence


class InTurn(Drafter):
    """Drafts with one of several drafters, which work in this process."""

    def __init__(self, drafters: Seq[Drafter], num_slots: int) -> None:
        """Begin with the first drafter."""
        self.drafters, self._num_slots, self._turn = drafters, num_slots, 0
        self._parts = [*dict.fromkeys(part for drafter in drafters for part in drafter.parts)]
        self._told = 0, frozenset([0])  # as `turn_to` was told
        self._always = [part for part in self._parts if part.reads_late]
        self._awake = self._with_always(drafters[0].parts)
        # By part: the slots of whose rows it has missed something.
        self._missed = {part: set(range(num_slots)) for part in self._parts if part not in self._awake}
        self._missed.update((part, set()) for part in self._awake)
        self._tap = _all_of(self._awake)

    @property
    def own(self) -> Drafter:
        """The drafter whose turn it is."""
        return self.drafters[self._turn]

    def turn_to(self, turn: int, awake: frozenset[int], rows: Seq[Sequence]) -> bool:
        """Let another drafter draft, and the parts of those that are `awake` hear of everything; `rows` run now.

        Return whether anything has changed: the target must then hand out its features to the present `tap`.
        """
        return (turn, awake) != self._told and self._change(turn, awake, rows)  # as in most rounds nothing has

    @torch.inference_mode()
    def _change(self, turn: int, drafters: frozenset[int], rows: Seq[Sequence]) -> bool:
        awake = self._with_always(part for each in sorted(drafters) for part in self.drafters[each].parts)
        for part in awake:
            if part not in self._awake:
                self._wake(part, rows)  # which may find no page, and comes again then
        self._told, self._turn = (turn, drafters), turn
        if awake == self._awake:
            return False
        for part in self._awake:
            if part not in awake:
                self._missed[part] = set(range(self._num_slots))
        self._awake, self._tap = awake, _all_of(awake)
        return True

    def _with_always(self, parts: Iterable[Drafter]) -> list[Drafter]:
        return [*dict.fromkeys((*self._always, *parts))]

    def _wake(self, part: Drafter, rows: Seq[Sequence]) -> None:
        for slot in range(self._num_slots):
            part.begin(slot, None, 0)
        part.admit(range(len(rows)), rows)
        if part.tap is None:
            self._missed[part].clear()

    def is_prepared(self, turn: int, rows: Seq[Sequence]) -> bool:
        """Tell whether most of these rows can draft with another drafter once it is its turn."""
        readers = [part for part in self.drafters[turn].parts if part.tap is not None]
        missed = set[int]().union(*(self._missed[part] for part in readers))
        return 2 * len(missed & set(range(len(rows)))) <= len(rows)

    @property
    def tap(self) -> FeatureTap | None:
        return self._tap

    @property
    def num_read_again(self) -> int:
        return max((part.num_read_again for part in self._awake), default=0)

    @property
    def has_model(self) -> bool:
        return self.own.has_model

    def begin(self, slot: int, donor: int | None, num_shared: int) -> None:
        for part in self._awake:
            part.begin(slot, donor, num_shared)
            self._missed[part].discard(slot)

    @property
    def is_paged(self) -> bool:
        return any(part.is_paged for part in self._parts)

    def reserve(self, slot: int, first: int, end: int) -> bool:
        return all(part.reserve(slot, first, end) for part in self._parts)

    def num_copyable(self, slot: int, num_shared: int) -> int:
        return min((part.num_copyable(slot, num_shared) for part in self._awake), default=num_shared)

    def prefill(self, slots: Seq[int], prompts: Seq[Seq[int]]) -> None:
        for part in self._awake:
            part.prefill(slots, prompts)

    def admit(self, slots: Seq[int], sequences: Seq[Sequence]) -> None:
        for part in self._awake:
            part.admit(slots, sequences)

    def lookup_survival(self, rows: Rows) -> Seq[Seq[float]] | None:
        return self.own.lookup_survival(rows)

    def propose(self, rows: Rows) -> Draft:
        own = self.own if self._turn in self._told[1] else NoDrafter()  # in a rest
        for part in self._awake:
            # It reads features now and then: else it would hold all of them.
            if part not in own.parts and not part.reads_late:
                part.propose(rows.limited([False] * len(rows.sequences)))
        return own.propose(rows)

    def observe(self, rows: Rows, num_drafted: Seq[int], num_accepted: Seq[int]) -> None:
        self.own.observe(rows, num_drafted, num_accepted)

    def rest(self) -> None:
        self.own.rest()

    def swap(self, first: int, second: int) -> None:
        for part in self._awake:
            part.swap(first, second)
            missed = self._missed[part]
            moved = {second if slot == first else first for slot in missed & {first, second}}
            self._missed[part] = missed - {first, second} | moved

    def reset(self, slot: int) -> None:
        for part in self._parts:
            part.reset(slot)


def _all_of(parts: Iterable[Drafter]) -> FeatureTap | None:
    """Return a tap that gives each of these parts the features that it reads."""
    taps = [tap for part in parts if (tap := part.tap) is not None]
    if len(taps) < 2:
        return taps[0] if taps else None
    layer_ids = tuple(dict.fromkeys(layer for tap in taps for layer in tap.layer_ids))
    widths = list[int]()

    def project(stream_NX: torch.Tensor) -> torch.Tensor:
        by_layer = dict(zip(layer_ids, stream_NX.chunk(len(layer_ids), dim=1), strict=True))
        found = [tap.project(torch.cat([by_layer[layer] for layer in tap.layer_ids], dim=1)) for tap in taps]
        widths[:] = [each.shape[1] for each in found]
        return torch.cat(found, dim=1)

    def receive(
        slots: Seq[int], starts: Seq[int], lengths: Seq[int], tokens_N: torch.Tensor, features_NH: torch.Tensor
    ) -> None:
        for tap, own_NH in zip(taps, torch.split(features_NH, widths, dim=1), strict=True):
            tap.receive(slots, starts, lengths, tokens_N, own_NH)

    return FeatureTap(layer_ids, project, receive, any(tap.is_dear for tap in taps))
