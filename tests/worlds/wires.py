"""Targets and drafts on other hosts, by a clock that only their work and their wires move: no second is waited."""

from types import SimpleNamespace

from decoding import Engine, EngineOptions
from decoding.drafters.base import Drafter
from decoding.drafters.making import make_drafter
from decoding.engine.load import Parts
from decoding.network.language_model import LanguageModel
from decoding.sampling.judging import ScoreRequest
from decoding.sampling.rows import Rows
from decoding.sampling.verdicts import Draft

FORWARD_S = 1e-3  # of a target forward without tokens
STEP_S, REQUEST_S = 5e-4, 1e-3  # of a draft actor's step, and of a request besides


class Hosts:
    """The clock, until when each host has work, and the round trip to it."""

    def __init__(self, trip_s: float, token_s: float) -> None:
        """Begin at 0; `token_s` is what each token of a target forward takes."""
        self.trip_s, self.token_s, self.now = trip_s, token_s, 0.0
        self._free_at: dict[str, float] = {}

    def send(self, host: str, work_s: float, at: float) -> float:
        """Send work at this time, and return when it is done there: behind what was sent before."""
        self._free_at[host] = max(self._free_at.get(host, 0.0), at + self.trip_s / 2) + work_s
        return self._free_at[host]

    def wait(self, done_at: float) -> None:
        """Wait for an answer that was sent at this time."""
        self.now = max(self.now, done_at + self.trip_s / 2)


class FarDrafter(Drafter):
    """A draft actor that drafts what it is asked for when it is asked, and answers later."""

    is_remote = has_model = True

    def __init__(self, hosts: Hosts, drafter: Drafter) -> None:
        self._hosts, self._drafter = hosts, drafter
        for name in ("begin", "prefill", "admit", "swap", "reset", "observe", "rest"):
            setattr(self, name, getattr(drafter, name))

    def ask(self, rows: Rows) -> None:
        self._draft, steps = self._drafter.propose(rows), max(rows.num_draft_tokens)
        work_s = (REQUEST_S + steps * STEP_S) * (steps > 0)
        self._done_at = self._hosts.send("draft", work_s, self._hosts.now) if steps else None

    def propose(self, rows: Rows) -> Draft:
        if self._done_at is not None:
            self._hosts.wait(self._done_at)
        return self._draft


class TimedTarget:
    """A target in this process, or one in stages on other hosts."""

    def __init__(self, hosts: Hosts, model: LanguageModel, num_stages: int = 0) -> None:
        self._hosts, self._model, self._num_stages = hosts, model, num_stages

    def __getattr__(self, name: str) -> object:
        return getattr(self._model, name)

    def share(self) -> "TimedTarget":
        return TimedTarget(self._hosts, self._model.share(), self._num_stages)

    def hand_out(self, tap: object) -> None:
        self._model.hand_out(tap)

    def _forward(self, num_tokens: int) -> float:
        """Return when a forward that is sent now is done; without stages it takes this process."""
        done_at, work_s = self._hosts.now, FORWARD_S + num_tokens * self._hosts.token_s
        if not self._num_stages:
            self._hosts.now += work_s
        for stage in range(self._num_stages):
            done_at = self._hosts.send(f"stage {stage}", work_s / self._num_stages, done_at)
        return done_at

    def seconds(self, num_rows: int, num_tokens: int) -> float:
        return self.seconds_of_several(num_rows, num_tokens, 1, is_asked=True)

    def seconds_of_several(self, num_rows: int, num_tokens: int, num: int, is_asked: bool = False) -> float | None:
        if not self._num_stages and not is_asked:
            return None
        began = self._hosts.now
        self._wait([self._forward(num_rows * num_tokens) for _ in range(num)][-1])
        return self._hosts.now - began

    def _wait(self, done_at: float) -> None:
        if self._num_stages:
            self._hosts.wait(done_at)

    def score(self, request: ScoreRequest) -> SimpleNamespace:
        verdicts = self._model.score(request).result()
        done_at = self._forward(request.token_ids_BJ.numel())
        return SimpleNamespace(is_ready=not self._num_stages, result=lambda: self._wait(done_at) or verdicts)


class FarDrafts:
    """Draft actors, as an engine's parts have them."""

    def __init__(self, hosts: Hosts, draft: LanguageModel) -> None:
        self._hosts, self._draft = hosts, draft

    def drafter(self, lane: int, target: TimedTarget, num_slots: int, max_model_len: int) -> Drafter:
        own = make_drafter("model", self._draft.share(), target.vocab_size, num_slots, max_model_len)
        return FarDrafter(self._hosts, own)


def engine_over_wires(
    models: SimpleNamespace, hosts: Hosts, num_stages: int = 0, most_lanes: int = 16, **options: object
) -> Engine:
    """Return an engine whose draft is on another host, or whose target is on several."""
    target = TimedTarget(hosts, models.target.share(), num_stages)
    drafts = None if num_stages else FarDrafts(hosts, models.good_draft)
    settings = EngineOptions(max_model_len=80, **options)
    num_lanes = settings.num_lanes or num_stages or 2
    drafter = "none" if num_stages else "model"
    return Engine.over(Parts(target, None, drafter, 80, num_lanes, drafts, None, most_lanes), settings)
