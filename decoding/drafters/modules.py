"""ModulesDrafter: drafts with an MTP head of several modules, each of which reads the states of the one before.

Module k reads pairs of the token k places further on, so its last k pairs of a row contain tokens that are only drafted
yet. Therefore the last pairs are read again in the next round, by all modules alike: a position counts as read where
every module has read it with the row's own tokens, and the features of later ones stay held.

Behind the last module the first one goes on: what the modules have computed behind the row's last pair stands in for
the features of the tokens that they drafted. With one module this is what `Eagle3Drafter` does.

Shapes: N rows of a step, R pairs of a row that are read at once, V vocabulary, H hidden size.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import torch

from decoding.device import to_device
from decoding.drafters.head_drafters import Eagle3Drafter
from decoding.heads.mtp.head import MtpHead
from decoding.sampling.rows import Rows


@dataclass
class _Pass:
    """The pairs of a row that all modules read one after another."""

    start: int
    tokens: torch.Tensor  # behind positions `start`, `start` + 1, ..., those of the draft with them
    states_RH: torch.Tensor  # that the next module reads
    settles: int = 0  # positions that count as read once every module has read these pairs; 0: those of before
    behind: list[torch.Tensor] = field(default_factory=list)  # [1, H]: what each module has computed at the last pair


class ModulesDrafter(Eagle3Drafter):
    """Drafts with a head of several modules, in a slot cache that mirrors the target's."""

    def __init__(self, head: MtpHead, num_slots: int, max_model_len: int) -> None:
        super().__init__(head, num_slots, max_model_len)
        self._mtp, self.depth = head, len(head.modules)
        self._passes: dict[int, _Pass] = {}  # of this round, by slot
        self._stepped: list[int] = []  # the slots of the last step

    def _first_logits(self, part: Rows, slots: list[int], drafting: set[int]) -> torch.Tensor:
        self._passes = {}
        return self._module_logits(0, slots)

    def _next_logits(self, step: int, slots: list[int], drafting: set[int], newest_N: torch.Tensor) -> torch.Tensor:
        module = step % self.depth
        # A row that comes back between others drafts no more, and has missed a token.
        self._passes = {slot: each for slot, each in self._passes.items() if slot in self._stepped}
        for slot, newest_1 in zip(slots, torch.split(newest_N, 1), strict=True):
            here = self._pass_of(slot, step)
            here.tokens = torch.cat([here.tokens, newest_1])
            if module == 0 and here.behind:
                num_read = len(here.states_RH)
                self._passes[slot] = _Pass(here.start + num_read, here.tokens[num_read:], torch.cat(here.behind))
        return self._module_logits(module, slots)

    def _pass_of(self, slot: int, step: int = 0) -> _Pass:
        """Return the pass of a row; one that does not draft may join later, and its logits have no meaning."""
        if slot not in self._passes:
            row = self._rows[slot]
            start, end = self._next_pairs(slot, len(row) - 1)
            settles = max(start, min(end, len(row) - self.depth)) if start < end and not step else 0
            if start >= end:  # nothing is known of it: it writes where the next true pair will be, and has read none
                start, end = max(len(row) - 2, 0), max(len(row) - 1, 1)
            tokens = [*[*row.token_ids[start + 1 : end + 1], 0][: end - start], *[0] * step]
            states_RH = self._features([(slot, start, end)])
            self._passes[slot] = _Pass(start, to_device(tokens, self.head.device), states_RH, settles)
        return self._passes[slot]

    def _module_logits(self, module: int, slots: list[int]) -> torch.Tensor:
        """Read the pairs of these rows' passes with a module; return logits [N, 1, V] behind the last one of each."""
        here, self._stepped = [self._pass_of(slot) for slot in slots], slots
        lengths = [len(each.states_RH) for each in here]
        tokens_N = torch.cat([each.tokens[module : module + n] for each, n in zip(here, lengths, strict=True)])
        states_NH = torch.cat([each.states_RH for each in here])
        starts = [each.start for each in here]
        streams = torch.split(self._mtp.read(tokens_N, states_NH, (starts, lengths, slots), module=module), lengths)
        logits_N1V, last_NH = self._mtp.logits(torch.cat([stream_RH[-1:] for stream_RH in streams]), module)
        for slot, each, stream_RH, last_1H in zip(slots, here, streams, torch.split(last_NH, 1), strict=True):
            each.states_RH = self._mtp.states(stream_RH, module)
            each.behind.append(last_1H)
            if module == self.depth - 1 and each.settles:
                self._forget(slot, each.settles)
                each.settles = 0
        return logits_N1V

    def _read(self, ends: dict[int, int], tokens: dict[int, Seq[int]] | None = None) -> None:
        for slot, wanted in ends.items():
            start, end = self._next_pairs(slot, wanted)
            if start >= end:
                continue
            row = self._rows[slot].token_ids if tokens is None else tokens[slot]
            states_RH = self._features([(slot, start, end)])
            for module in range(self.depth):
                behind = to_device(row[start + 1 + module : end + 1 + module], self.head.device)
                stream_RH = self._mtp.read(behind, states_RH, ([start], [end - start], [slot]), module=module)
                states_RH = self._mtp.states(stream_RH, module)
            self._forget(slot, end)
