"""Learned: what an engine has learned of the drafters that take turns in it, for other engines and for the report."""

from collections import Counter
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any

from decoding.pace.compared import Tally
from decoding.pace.trials import REST, Trials

NONE = "none"  # the name of rest


@dataclass(frozen=True)
class Learned:
    """Which drafter is the fastest, and what was tried beside it, by the names of drafters."""

    leader: str
    ratios: Mapping[str, float]  # of those that were tried beside it, their speed over its
    tallies: Mapping[str, Tally] = field(default_factory=dict)

    @classmethod
    def of(cls, names: Seq[str], trials: Trials) -> "Learned":
        """Return what the trials of an engine with these drafters have found."""
        by_way = dict(enumerate(names)) | {REST: NONE}
        ratios = {by_way[way]: ratio for way, ratio in trials.evidence.ratios.items()}
        return cls(by_way[trials.settled], ratios, {by_way[way]: tally for way, tally in trials.tallies.items()})

    @classmethod
    def together(cls, several: Seq["Learned"]) -> "Learned":
        """Return what several engines have learned: the leader of most of them, and all that was done."""
        (leader, _), *_ = Counter(each.leader for each in several).most_common()
        ratios = {name: ratio for each in several if each.leader == leader for name, ratio in each.ratios.items()}
        tallies = dict[str, Tally]()
        for each in several:
            for name, tally in each.tallies.items():
                tallies[name] = tally + tallies.get(name, Tally())
        return cls(leader, ratios, tallies)

    def teach(self, names: Seq[str], trials: Trials) -> None:
        """Tell the trials of another engine, which may have other drafters."""
        ways = {name: way for way, name in enumerate(names)} | {NONE: REST}
        if self.leader in ways:
            ratios = {ways[name]: ratio for name, ratio in self.ratios.items() if name in ways}
            trials.begin_with(ways[self.leader], ratios)

    def figures(self) -> tuple[dict[str, Any], ...]:
        """Return what each drafter did, the one with most rounds first; what had no turn has no figures."""
        by_rounds = sorted(self.tallies.items(), key=lambda each: -each[1].num_rounds)
        return tuple({"drafts": name, **tally.figures(self.tallies.get(NONE))} for name, tally in by_rounds)
