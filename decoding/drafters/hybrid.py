"""HybridDrafter: a row drafts either what a lookup offers, or what the draft model writes plus a looked-up extension.

The schedule chooses a row's source in each round (`rows.uses_lookup`) by expected tokens: the lookup states the chance
that its tokens are accepted (`SuffixDrafter`), the draft model has the row's running acceptance. A row that takes the
lookup costs no draft steps; the draft model reads the tokens it missed when the row returns to it.

Behind the model's tokens the lookup continues the text as if they were accepted (`rows.extension_limits`). The draft
becomes longer than the model could make it in the time, and the model has led it past the place where texts differ.
Under rejection these tokens are point masses that follow from the drafted ones before them. Whether one is proposed at
all depends on those, too, but not on itself; losslessness asks for no more.

Forced tokens, those that a row's grammar allows alone, or would without other white space, are drafted without a
forward, whatever the drafter. Where the mask leaves nothing else the target accepts them; where white space is free
they are guesses. Under rejection they are point masses that follow from the committed tokens. A row with forced tokens
has no draft by a model; a draft that was looked up stays if it begins with them, since it may be longer.
"""

from collections.abc import Sequence as Seq

import torch

from decoding.cache.features import FeatureTap
from decoding.drafters.base import Drafter, point_masses, with_points
from decoding.drafters.lookups.offers import Offer
from decoding.drafters.lookups.suffix import SuffixDrafter
from decoding.fused.live_weights import LiveWeights
from decoding.sampling.rows import Rows
from decoding.sampling.verdicts import Draft
from decoding.sequence import Sequence


class HybridDrafter(Drafter):
    """A lookup and a draft model, side by side and one behind the other.

    The lookup reads only complete prompts, takes no time and holds no numbers: the rest is the model's alone.
    """

    def __init__(self, lookup: SuffixDrafter, model: Drafter) -> None:
        """Take over both. `model` is a drafter with a draft model, here or in another process."""
        self._lookup, self._model = lookup, model
        self.is_remote = model.is_remote
        self._extensions: dict[int, tuple[int, Offer]] = {}  # by slot: length of the model's draft, the rest

    @property
    def tap(self) -> FeatureTap | None:
        return self._model.tap

    @property
    def parts(self) -> tuple[Drafter, ...]:
        return self._lookup, self._model

    @property
    def num_read_again(self) -> int:
        return self._model.num_read_again

    @property
    def has_model(self) -> bool:
        return self._model.has_model

    @property
    def weights(self) -> LiveWeights | None:
        return self._model.weights

    def renew(self) -> None:
        self._model.renew()

    def begin(self, slot: int, donor: int | None, num_shared: int) -> None:
        self._model.begin(slot, donor, num_shared)

    def num_copyable(self, slot: int, num_shared: int) -> int:
        return self._model.num_copyable(slot, num_shared)

    def prefill(self, slots: Seq[int], prompts: Seq[Seq[int]]) -> None:
        self._model.prefill(slots, prompts)

    def admit(self, slots: Seq[int], sequences: Seq[Sequence]) -> None:
        self._lookup.admit(slots, sequences)
        self._model.admit(slots, sequences)

    def lookup_survival(self, rows: Rows) -> list[list[float]]:
        return self._lookup.lookup_survival(rows)

    def ask(self, rows: Rows) -> None:
        if self.is_remote:  # a model of this process is asked nothing; to limit the rows for it takes 1 % of a round
            self._model.ask(self._for_model(rows))

    def without_model(self, rows: Rows) -> list[list[int]]:
        self._extensions = {}
        return self._lookup.without_model(rows.limited(rows.uses_lookup))

    def propose(self, rows: Rows) -> Draft:
        """Draft each row from its own source. Under rejection a looked-up token counts as a point mass."""
        self._extensions = {}
        looked_up = self._lookup.propose(rows.limited(rows.uses_lookup))
        drafted = self._model.propose(self._for_model(rows))
        if not any(drafted.max_draft_tokens_B):
            return looked_up
        if any(extension.max_tokens for extension in rows.extension_limits):
            looked_up = self._with_extensions(rows, looked_up, drafted)
        num_draft_tokens_B = torch.maximum(looked_up.num_draft_tokens_B, drafted.num_draft_tokens_B)
        return with_points(drafted, looked_up, drafted.num_draft_tokens_B, num_draft_tokens_B)

    def observe(self, rows: Rows, num_drafted: Seq[int], num_accepted: Seq[int]) -> None:
        """Teach the lookup the acceptance of its own drafts."""
        own_drafted = [n if up else 0 for up, n in zip(rows.uses_lookup, num_drafted, strict=True)]
        self._lookup.observe(rows, own_drafted, num_accepted)
        for slot, (by_model, extension) in self._extensions.items():
            if num_accepted[slot] >= by_model:
                num_tried, num_right = num_drafted[slot] - by_model, num_accepted[slot] - by_model
                self._lookup.learn_acceptance(slot, extension, num_tried, num_right)

    def rest(self) -> None:
        self._model.rest()

    def swap(self, first: int, second: int) -> None:
        self._lookup.swap(first, second)
        self._model.swap(first, second)

    def reset(self, slot: int) -> None:
        self._model.reset(slot)

    @staticmethod
    def _for_model(rows: Rows) -> Rows:
        return rows.limited([not uses_lookup for uses_lookup in rows.uses_lookup])

    def _with_extensions(self, rows: Rows, looked_up: Draft, drafted: Draft) -> Draft:
        """Add the extensions behind the model's tokens; return all looked-up tokens at their places in the draft.

        A draft that is shorter than was planned has none: its head has ended it, or its numbers are not finite.
        """
        tokens, found = drafted.token_ids_BK.tolist(), looked_up.token_ids_BK.tolist()
        counts = looked_up.num_draft_tokens_B.tolist()
        nums_by_model = drafted.num_draft_tokens_B.tolist()
        for slot, (planned, num_by_model) in enumerate(zip(rows.num_draft_tokens, nums_by_model, strict=True)):
            if planned and planned == num_by_model and rows.extension_limits[slot].max_tokens:
                by_model = tokens[slot][:planned]
                extension = self._lookup.continue_draft(slot, by_model, rows.extension_limits[slot], rows.rule)
                self._extensions[slot] = (planned, extension)
                if extension.tokens:
                    found[slot] = [*by_model, *extension.tokens]
                    counts[slot] = len(found[slot])
        return point_masses([row[:n] for row, n in zip(found, counts, strict=True)], rows.sampling.keys_B.device)


def foreseen_tokens(sequences: Seq[Sequence], limits: Seq[int]) -> list[list[int]]:
    """Return the forced tokens of each row and those foreseen behind them, at most `limits[b]` of row b.

    It is an empty list if no row has any.
    """
    forced = [
        row.matcher.foreseen(row.output_token_ids)[:limit] if row.matcher is not None and limit else []
        for row, limit in zip(sequences, limits, strict=True)
    ]
    return forced if any(forced) else []


def unless_looked_up(forced: Seq[list[int]], drafted: Seq[list[int]]) -> list[list[int]]:
    """Return the forced tokens of each row, or none where what was drafted begins with them: it may be longer."""
    return [[] if tokens == own[: len(tokens)] else tokens for tokens, own in zip(forced, drafted, strict=True)]


def with_forced(draft: Draft, forced: Seq[list[int]]) -> tuple[Draft, list[list[int]]]:
    """Return the draft in which rows have forced tokens alone, and these (`unless_looked_up`)."""
    drafted = zip(draft.token_ids_BK.tolist(), draft.num_draft_tokens_B.tolist(), strict=True)
    replacing = unless_looked_up(forced, [own[:count] for own, count in drafted])
    points = point_masses(replacing, draft.token_ids_BK.device)
    is_forced_B = points.num_draft_tokens_B > 0
    num_draft_tokens_B = torch.where(is_forced_B, points.num_draft_tokens_B, draft.num_draft_tokens_B)
    first_B = torch.where(is_forced_B, 0, draft.token_ids_BK.shape[1] + points.token_ids_BK.shape[1])
    return with_points(draft, points, first_B, num_draft_tokens_B), replacing
