"""Engines of several lanes, whose drafts and verdicts may come from other processes, and targets that are lost."""

from collections.abc import Set
from types import SimpleNamespace

from decoding import Engine, EngineOptions
from decoding.drafters.base import Drafter
from decoding.grammar.grammars import Grammars
from decoding.network.target import SlotsLostError
from decoding.sampling.judging import ScoreRequest
from tests.decoding.tiny import OPTION_OF, drafter_over

# Where drafts and verdicts are computed, by name.
PLACES: dict[str, dict[str, object]] = {
    "one lane": {"num_lanes": 1},
    "three lanes": {"num_lanes": 3},
    "drafts elsewhere": {"is_remote": True},
    "verdicts elsewhere": {"is_staged": True},
    "both elsewhere": {"num_lanes": 3, "is_remote": True, "is_staged": True},
    "a lane for each row or two": {"num_lanes": 8, "is_remote": True, "is_staged": True},
}
USES = {"prefill", "score", "decide", "logprobs", "is_finite"}  # what needs slots, or decides


class Elsewhere:
    """A target whose verdicts come from another process: not before the engine waits for them."""

    def __init__(self, target, name, diary):
        self._target, self._name, self._diary = target, name, diary

    def __getattr__(self, name):
        return getattr(self._target, name)

    def score(self, request: ScoreRequest):
        """Judge the request as it is sent: what happens to its rows until the verdicts come must not enter them."""
        self._diary.append(f"score {self._name}")
        verdicts = self._target.score(request).result()
        return SimpleNamespace(is_ready=False, result=lambda: self._diary.append(f"verdict {self._name}") or verdicts)


def _ask_elsewhere(drafter: Drafter, name: str, diary: list[str]) -> Drafter:
    """Make the drafter one that another process runs: it drafts when it is asked, and hands over later."""
    asked = {}
    propose = drafter.propose
    drafter.is_remote = True

    def ask(rows):
        diary.append(f"ask {name}")
        asked[rows.sequences] = (propose(rows), [len(sequence) for sequence in rows.sequences])

    def collect(rows):
        draft, lengths = asked.pop(rows.sequences)
        assert lengths == [len(sequence) for sequence in rows.sequences], "a row went on while it was drafted for"
        return draft

    drafter.ask, drafter.propose = ask, collect
    return drafter


def lanes_over(
    models: SimpleNamespace,
    kind: str = "model",
    num_lanes: int = 2,
    *,
    is_remote: bool = False,
    is_staged: bool = False,
    grammars: Grammars | None = None,
    **options: object,
) -> tuple[Engine, list[str]]:
    """An engine over twins of these models, and the diary of what each of its lanes asked for."""
    is_model = kind.endswith("_draft")
    name, draft = ("model", getattr(models, kind)) if is_model else (kind, models.good_draft)
    settings = {"num_slots": 5, "max_model_len": 80, "num_speculative_tokens": 4, **options}
    asked = EngineOptions(drafter=OPTION_OF.get(name, name), **settings)
    parts, diary = [], []
    for letter in "abcdefgh"[: min(num_lanes, asked.num_slots)]:
        target = models.target.share()
        part = drafter_over(name, draft.share(), target, asked.num_slots, asked.max_model_len)
        target = Elsewhere(target, letter, diary) if is_staged else target
        parts.append((target, _ask_elsewhere(part, letter, diary) if is_remote else part))
    return Engine(parts, asked, asked.max_model_len, grammars=grammars), diary


class Processes:
    """The processes of a target that are lost at every n-th call, and with them what all slots held.

    `counted` are the calls of which every n-th is a loss, until there were `max_losses`. Without slots all fail.
    """

    def __init__(self, engine: Engine, every: int, counted: Set[str] = USES, max_losses: int = 1000) -> None:
        self.num_losses = 0
        self._num_uses, self._every, self._counted, self._max_losses = 0, every, counted, max_losses
        for lane in engine.lanes:
            self._hold(lane.target)

    def _hold(self, target) -> None:
        num_seen, allocate, share = self.num_losses, target.allocate, target.share

        def allocate_and_hold(*sizes):
            nonlocal num_seen
            allocate(*sizes)
            num_seen = self.num_losses
            hold_cache()

        def hold_cache():
            target.cache.is_finite = losing(target.cache.is_finite)

        def share_and_hold():
            twin = share()
            for name in ("allocate", "share", *USES):
                vars(twin).pop(name, None)  # a copy of what holds the other one
            self._hold(twin)
            return twin

        def losing(method):
            def use(*args, **kwargs):
                if method.__name__ in self._counted and self.num_losses < self._max_losses:
                    self._num_uses += 1
                    self.num_losses += self._num_uses % self._every == 0
                if num_seen != self.num_losses:
                    raise SlotsLostError("planted")
                return method(*args, **kwargs)

            return use

        target.allocate, target.share = allocate_and_hold, share_and_hold
        if target.cache is not None:
            hold_cache()
        for name in USES - {"is_finite"}:
            setattr(target, name, losing(getattr(target, name)))
