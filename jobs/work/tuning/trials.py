"""Trials: engines with different settings write the same rows in turns."""

import time
from collections.abc import Callable, Generator, Iterable
from collections.abc import Sequence as Seq
from dataclasses import replace
from statistics import median
from traceback import clear_frames

import torch

from decoding.choices import NEED_A_MODEL, TEXT_IS_THE_TARGETS, DType
from decoding.device import is_out_of_memory
from decoding.engine.engine import Engine
from decoding.engine.load import Parts, load_parts
from decoding.pace.cost_table import CostTable
from decoding.turns import Way, one_repeat
from jobs.driver.plan import Plan
from jobs.work.tuning.engine_turns import EnginePass, engine_way
from jobs.work.tuning.rows import SampledRows
from jobs.work.tuning.setting import Setting
from pipeline.counts import Counts
from pipeline.inputs.units import WorkUnit

_NUM_AT_ONCE = 5  # settings in turns beside the plain one and its twin, each with a cache of its own, if memory allows
_PASS_SHARE = 1 / 60  # of the time, for the plain setting to write the rows once
_LEAST_SECONDS = 10.0  # in which something can be told
_TOO_LARGE = "memory runs out with the run's own setting ({}); lower engine.num_slots"
_PATIENCE = 3.0  # times what the plain setting takes, after which another one gives up
_FEWEST_PAIRS, _NOISE_OF_FEW = 3, 0.05  # fewer may agree by chance, so that noise is taken as at least so much
_NOTHING = EnginePass(seconds=1.0, done=0.0, cpu_seconds=0.0, num_rounds=0, counts=Counts(), outputs=[])


class TextsDiffer(Exception):
    """A setting wrote another text, where none may."""


class Trials:
    """What was measured of each setting."""

    def __init__(
        self,
        plan: Plan,
        plain: Setting,
        most_slots: int,
        seconds: float,
        say: Callable[[str], None],
        units: Seq[WorkUnit] | None = None,
        most_tokens: float = float("inf"),
        pass_share: float = _PASS_SHARE,
    ) -> None:
        """Load the target and read the rows, of `units` if they are given.

        `seconds` is the time for all that is measured then, of which plain decoding takes `pass_share` to write the
        rows once. It is no longer than `most_tokens` would take, unless that is too short to measure anything.

        Raises ValueError or OSError for what is wrong with them.
        """
        self.settings, self.plain, self._say, self._seconds = plan.settings, plain, say, float("inf")
        self._started, self._at_once = time.monotonic(), _NUM_AT_ONCE
        self._parts: dict[tuple[DType, str | None], Parts] = {}
        self._costs: dict[tuple[object, ...], CostTable | None] = {}
        self._took: dict[Setting, float] = {}  # seconds of the last pass, with all that is not timed
        self.texts: dict[DType, list[list[int]]] = {}  # the longest so far
        self.ruled_out: list[Setting] = []  # memory runs out with them alone
        self._ratios: dict[Setting, list[float]] = {}
        self.passes: dict[Setting, list[EnginePass]] = {}
        self.twin: list[float] = []  # ratios of a setting that equals the plain one
        options = replace(plan.settings.engine, drafter="none", num_slots=1)
        self.rows = SampledRows(plan, Engine.over(self.parts_of(plain).beside(), options), most_slots, units)
        looks = [one_repeat({"plain": self._way(plain, float("inf"))}, 0)["plain"] for _ in range(2)]
        if _NOTHING in looks:
            raise ValueError(_TOO_LARGE.format(plain))
        self._seconds = min(seconds, max(_LEAST_SECONDS, most_tokens / max(map(_rate, looks))))
        took = min(look.seconds for look in looks)
        self.rows.settle(self._seconds * pass_share / took)
        self._took[plain] = max(took, self._seconds * pass_share)

    def parts_of(self, setting: Setting) -> Parts:
        """Return what engines with this draft and dtype are made of. Raises ValueError if they cannot be loaded."""
        if (key := (setting.dtype, setting.draft)) not in self._parts:
            settings = setting.of(self.settings)
            models, loaded = settings.models, self._parts.get((setting.dtype, None))
            self._parts[key] = load_parts(
                models.target,
                models.draft,
                settings.engine,
                models.device,
                models.dtype,
                target_model=loaded and loaded.target.share(),  # type: ignore[arg-type]
                draft_vocabulary=models.draft_vocabulary,
                tokenizer=models.tokenizer,
            )
        return self._parts[key]

    def unfit(self, settings: Iterable[Setting]) -> dict[str, str]:
        """Load the drafts of these settings; return those that cannot be loaded, with the reasons."""
        found = dict[str, str]()
        for setting in {each.draft: each for each in settings}.values():
            try:
                self.parts_of(setting)
            except Exception as error:
                if setting.draft is None or not (isinstance(error, ValueError) or is_out_of_memory(error)):
                    raise
                found[setting.draft] = str(error)
        return found

    def run(self, stage: str, settings: Seq[Setting], until: float) -> bool:
        """Measure each setting once more, the first ones first; return False at the end of this part of the time.

        If memory runs out, settings are measured one by one from then on, and left out if that does not help.
        """
        left = [setting for setting in settings if setting != self.plain and setting not in self.ruled_out]
        while True:
            group = left[: self._at_once]
            while not self._is_in_time(group, until):
                if len(group) <= 1:
                    return False
                group.pop()
            spent = time.monotonic() - self._started
            self._say(f"{stage}: {len(left)} settings to measure ({spent:.0f} of {self._seconds:.0f} s)")
            left, too_large = left[len(group) :], self._run_together(group)
            if too_large and len(group) > 1:
                self._at_once, left = 1, [*too_large, *left]
            else:
                self.ruled_out += too_large
            if not left:
                return True

    def _is_in_time(self, group: Seq[Setting], until: float) -> bool:
        """Tell whether these settings can be measured before this part of the time is over; the first ones may be."""
        if not self.passes:
            self._started = time.monotonic()
            return True
        plain = self._took[self.plain]
        guess = 2 * plain + sum(self._took.get(setting, 1.5 * plain) for setting in group)
        return time.monotonic() - self._started + guess <= until * self._seconds

    def _run_together(self, others: Seq[Setting]) -> list[Setting]:
        """Let these settings, the plain one and its twin write the rows in turns; return those too large for memory.

        Raises ValueError if memory is too small for the plain one and its twin alone.
        """
        most_seconds = _PATIENCE * self._took[self.plain]
        ways = [self._way(self.plain, float("inf")) for _ in range(2)]  # the plain setting, and its twin
        ways += [self._way(setting, most_seconds) for setting in others]
        by_name = one_repeat({str(index): way for index, way in enumerate(ways)}, len(self.twin))
        plain, twin, *found = (by_name[str(index)] for index in range(len(ways)))
        if _NOTHING in (plain, twin):
            if not others:
                raise ValueError(_TOO_LARGE.format(self.plain))
            return list(others)
        self.twin.append(_rate(twin) / _rate(plain))
        for setting, own in zip((self.plain, *others), (plain, *found), strict=True):
            if own is not _NOTHING:
                self._compare(setting, own.outputs)
                self.passes.setdefault(setting, []).append(own)
                self._ratios.setdefault(setting, []).append(_rate(own) / _rate(plain))
        return [setting for setting, own in zip(others, found, strict=True) if own is _NOTHING]

    def _way(self, setting: Setting, most_seconds: float) -> Way[EnginePass]:
        """Return the way in which a setting writes the rows on its threads; _NOTHING comes of it if memory runs out."""
        ends = self._started + self._seconds
        way = engine_way(
            lambda: self._engine(setting), lambda _: self.rows.sequences(), most_seconds=most_seconds, ends=ends
        )

        def own(repeat: int) -> Generator[None, None, EnginePass]:
            turns, took = way(repeat), 0.0
            while True:
                torch.set_num_threads(setting.threads)
                began = time.monotonic()
                try:
                    next(turns)
                except StopIteration as end:
                    found: EnginePass = end.value
                    return found
                except Exception as error:
                    if not is_out_of_memory(error):
                        raise
                    clear_frames(error.__traceback__)  # which hold the engine's memory
                    return _NOTHING
                finally:
                    took += time.monotonic() - began
                    self._took[setting] = took
                yield

        return own

    def _engine(self, setting: Setting) -> Engine:
        """Return a fresh engine, which has learned from no text. What rounds cost is measured once for all alike."""
        longest = max(len(row.prompt_token_ids) + row.max_tokens for row in self.rows.sequences())
        parts = replace(self.parts_of(setting).beside(), drafter_name=setting.drafter, max_model_len=longest)
        looks_up = setting.drafter not in NEED_A_MODEL and setting.drafter != "none"
        key = setting.dtype, setting.draft, "lookup" if looks_up else setting.drafter, setting.slots, setting.threads
        engine = Engine.over(parts, setting.of(self.settings).engine, self._costs.get(key))
        self._costs[key] = engine.lanes[0].schedule.costs
        return engine

    def _compare(self, setting: Setting, outputs: list[list[int]]) -> None:
        """Raise TextsDiffer if a text is another one than with an earlier setting of this dtype, where none may be."""
        texts = self.texts.setdefault(setting.dtype, [[] for _ in outputs])
        for index, (text, found) in enumerate(zip(texts, outputs, strict=True)):
            num = min(len(text), len(found))
            if text[:num] != found[:num] and self.is_promised(setting.dtype):
                raise TextsDiffer(f"text {index} with {setting} is not that of an earlier setting")
            texts[index] = max(text, found, key=len)

    def is_promised(self, dtype: DType) -> bool:
        """Tell whether every setting must write the same text in this dtype."""
        is_exact = dtype == "float32" or self.parts_of(replace(self.plain, dtype=dtype)).target.is_batch_invariant
        return is_exact and self.settings.engine.verification in TEXT_IS_THE_TARGETS

    def times_plain(self, setting: Setting) -> float | None:
        """Return the median of the ratios of a setting to the plain one; None if it was not measured."""
        return median(self._ratios[setting]) if setting in self._ratios else None

    def spread(self, setting: Setting) -> Seq[float]:
        """Return the ratios of a setting to the plain one; of that one those of its twin."""
        return self.twin if setting == self.plain else self._ratios[setting]

    @property
    def noise(self) -> float:
        """The share by which the plain setting and its twin differed at most, in nine of ten repeats; more of few."""
        differences = sorted(abs(ratio - 1) for ratio in self.twin)
        found = differences[round(0.9 * (len(differences) - 1))]
        return found if len(differences) >= _FEWEST_PAIRS else max(found, _NOISE_OF_FEW)

    @property
    def noise_in_words(self) -> str:
        """The noise for a reader, with how it is known."""
        num = len(self.twin)
        if num >= _FEWEST_PAIRS:
            most = round(0.9 * (num - 1)) + 1
            return f"two equal settings differed by up to {self.noise:.1%} in {most} of {num} repeats"
        return (
            f"taken as {self.noise:.1%}: two equal settings were measured beside each other only "
            f"{'once' if num == 1 else 'twice'}; more time (--tune.seconds) tells more"
        )

    def hours(self, setting: Setting, num_rows: int) -> float:
        """Return the hours of one engine for `num_rows` rows, by all texts of its dtype, whether or not it gave up."""
        return self.rows.engine_hours(self.texts[setting.dtype], self.speed(setting), num_rows)

    def speed(self, setting: Setting) -> float:
        """Return tokens a second: the median speed of the plain setting, times the median ratio."""
        return median(map(_rate, self.passes[self.plain])) * median(self._ratios[setting])


def _rate(found: EnginePass) -> float:
    return found.done / found.seconds
