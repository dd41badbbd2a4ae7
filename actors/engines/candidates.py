"""Candidates: the drafts of a list, each with the drafters that can use it, as far as no weight tells."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from actors.engines import backend_of
from actors.engines.footprint import footprint
from actors.settings import GeneratorSettings
from decoding.cache.footprint import GIB, Footprint
from decoding.checkpoint.supported import model_folder
from decoding.choices import OWN_HEAD, OWN_HEAD_IF_ANY, DrafterName, Turn

WITHOUT_A_MODEL: tuple[DrafterName, ...] = ("suffix", "ngram", "none")
Pair = tuple[DrafterName, str | None]  # a drafter, and its draft: a folder, a hub name, or the target's own head


@dataclass(frozen=True)
class Candidates:
    """What a trial decides between."""

    named: tuple[str, ...]  # as the configuration has them
    found: tuple[Pair, ...]
    left_out: tuple[str, ...]  # with the reasons

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The pairs that can take turns in an engine, which rests without a draft, named: the likeliest first."""
        kinds = ("head", "model", "lookup")
        drafting = [pair for pair in self.found if pair[0] != "none"]
        own = {draft: name for name, draft in reversed(drafting)}  # a draft's own drafter is found before its hybrid
        drafting.sort(key=lambda pair: kinds.index(_kind(own[pair[1]], pair[1])))
        folders = Counter(Path(draft).name for draft in own if draft is not None)
        named = {draft: each if folders[each := Path(draft).name] == 1 else draft for draft in own if draft is not None}
        return tuple((name, draft, f"{named[draft]} ({name})" if draft else name) for name, draft in drafting)

    def why_no_turns(self, settings: GeneratorSettings, memory: int | None) -> str:
        """Return why they do not take turns in engines that hold this memory in bytes, if that is known; else nothing.

        All are loaded beside the target then.
        """
        if settings.models.device != "cpu":
            return "they take turns on CPUs alone"
        if settings.engine.draft_length != "adaptive":
            return (
                f"they take turns where draft lengths adapt, and engine.draft_length is {settings.engine.draft_length}"
            )
        if len(self.turns) < 2:
            return "there is one drafter"
        own = sum(each.total for each in self.footprints(settings).values())
        target = footprint(settings, settings.models.target).total
        if own > (target if memory is None else memory - target):
            return f"the drafts take {own / GIB:.2f} GiB beside the {target / GIB:.2f} GiB of the target"
        return ""

    def footprints(self, settings: GeneratorSettings) -> dict[str, Footprint]:
        """Return what each draft takes beside the target of these settings, by its name."""
        named = [settings.with_draft(name, draft) for name, draft, _ in self.turns if draft is not None]
        return {draft: footprint(each, draft) for each in named if (draft := each.models.draft) is not None}

    @classmethod
    def of(cls, settings: GeneratorSettings, named: Sequence[str]) -> "Candidates":
        """Return the candidates of these names beside the target of settled settings; 'auto' stands for several.

        Raises ValueError, with all reasons, if none of them can be used.
        """
        found, left_out = dict[Pair, None](), []
        for name in named:
            for draft in (OWN_HEAD, *WITHOUT_A_MODEL) if name == OWN_HEAD_IF_ANY else (name,):
                try:
                    found |= dict.fromkeys(_usable(settings, draft))
                except (ValueError, OSError) as error:
                    left_out.append(f"{draft}: {error}")
        if not found:
            raise none_left(left_out)
        return cls(tuple(named), tuple(found), tuple(left_out))


def _kind(drafter: DrafterName, draft: str | None) -> str:
    return "lookup" if draft is None else "model" if drafter == "model" else "head"


def none_left(left_out: Sequence[str]) -> ValueError:
    """Return the error of a list of which nothing can be used."""
    return ValueError(f"no draft in models.draft can be used: {'; '.join(left_out)}")


def pairs_of(settings: GeneratorSettings, draft: str) -> list[Pair]:
    """Return the drafters that there are with a draft, a folder or the target's own head: its own, and hybrid."""
    drafter = replace(settings.engine, drafter=None).pick_drafter(draft)
    return [(name, draft) for name in (drafter, "hybrid")]


def _usable(settings: GeneratorSettings, name: str) -> Iterator[Pair]:
    """Yield the pairs of one name. Raises ValueError or OSError if the draft is not there, or does not fit."""
    if name in WITHOUT_A_MODEL:
        yield from ((each, None) for each in WITHOUT_A_MODEL if each == name)
        return
    path = Path(name).expanduser()
    draft = str(path.absolute()) if path.exists() and name != OWN_HEAD else name  # of a hub model its name
    for drafter, folder in pairs_of(settings, name if name == OWN_HEAD else model_folder(name)):
        backend_of(settings.with_draft(drafter, folder)).check_models()
        yield drafter, draft
