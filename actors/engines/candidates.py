"""Candidates: the drafts of a list, each with the drafters that can use it, as far as no weight tells."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from actors.engines import backend_of
from actors.settings import GeneratorSettings
from decoding.checkpoint.supported import model_folder
from decoding.choices import OWN_HEAD, OWN_HEAD_IF_ANY, DrafterName

WITHOUT_A_MODEL: tuple[DrafterName, ...] = ("suffix", "ngram", "none")
Pair = tuple[DrafterName, str | None]  # a drafter, and its draft: a folder, a hub name, or the target's own head


@dataclass(frozen=True)
class Candidates:
    """What a trial decides between."""

    named: tuple[str, ...]  # as the configuration has them
    found: tuple[Pair, ...]
    left_out: tuple[str, ...]  # with the reasons

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
