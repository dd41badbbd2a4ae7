"""ClusterMachine: actors, a feed and a ledger to which anything happens, in the order that Hypothesis picks.

Questions are repeated at once and late, processes die, nodes go and their processes come back, places fail, nodes are
drained. A row in one unit kills its process. The machine checks what the ledger may never do, and lets every run end.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from actors.units.ledger import Ledger
from actors.units.unit_record import Signal
from pipeline.streaming.calls import UnitCall
from tests.clock import Clock
from tests.pipeline.made_up import unit

NUM_UNITS, NUM_ROWS, KILLER = 5, 4, (0, 2)  # the unit and its row that kills
_NUM_TRIES = 3000  # of a step, until the run must have ended
_actors = st.integers(0, 2)


@dataclass
class Process:
    """One life of an actor: the calls that Ray has given to it, and its attempt at the first of them."""

    name: str
    node: str
    calls: list[UnitCall] = field(default_factory=list)
    attempt: Any = None
    num_attempts: int = 0
    num_groups: int = 0
    is_held: bool = False

    @property
    def call(self) -> str:
        """The name of its attempt."""
        return f"{self.name}/{self.num_attempts}"


class ClusterMachine(RuleBasedStateMachine):
    """A run of a few units on three actors."""

    make: Callable[..., Ledger] = Ledger

    def __init__(self) -> None:
        super().__init__()
        self.clock, self.lost_nodes = Clock(), set[str]()
        options: dict[str, Any] = {"units_in_flight": 1, "max_waiting": 3, "num_places": 3, "clock": self.clock}
        self.ledger = type(self).make(self.is_alive, **options)
        self.again = Ledger(self.is_alive, **options)  # hears the same, and must say the same
        self.processes = [Process(f"{letter}0", f"{letter}0") for letter in "abc"]
        self.gone: list[Process] = []  # their node was lost, and they do not know it
        self.drained: set[str] = set()
        self.asked: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.fresh = [unit(unit_id, NUM_ROWS) for unit_id in range(NUM_UNITS)]
        self.num_requests = self.num_lives = self.num_deaths = self.num_reports = 0
        self.has_ended = False
        self.unlucky: set[int] = set()  # units over which a process died by chance, which happens once to each
        self.committed: dict[int, tuple[str, tuple[int, ...]]] = {}
        for process in self.processes:
            self.ask("join", process.name, process.node, process.name[0])

    def is_alive(self, node: str) -> bool:
        return node not in self.lost_nodes

    def ask(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Ask twice, as where the first answer was lost; both are the same, and those of a ledger told the same."""
        self.asked.append((method, arguments, named))
        first = copy.deepcopy(getattr(self.ledger, method)(*arguments, **named))
        assert getattr(self.ledger, method)(*arguments, **named) == first, f"{method} may not be repeated"
        assert getattr(self.again, method)(*arguments, **named) == first, f"{method} is no function of what was told"
        return first

    @rule(actor=_actors)
    def hand_out(self, actor: int) -> None:
        """The feed asks for a call, and Ray Data gives it to an actor."""
        if len(self.processes[actor].calls) < 2 and not self.has_ended:
            self.give(self.processes[actor])

    def give(self, process: Process) -> None:
        self.num_requests += 1
        request = ("feed", self.num_requests)
        if not self.fresh:
            answer = self.ask("hand_out_again", True, request)
            self.has_ended = answer is Signal.STOP
        elif (answer := self.ask("hand_out", self.fresh[0], request)) is Signal.GO:
            answer = UnitCall(self.fresh.pop(0))
        if isinstance(answer, UnitCall):
            process.calls.append(answer)

    @rule(actor=_actors)
    def go_on(self, actor: int) -> None:
        """An actor does the next thing that its first call needs."""
        process = self.processes[actor]
        if process.calls:
            self.step(process, lambda: self.die(actor))

    def step(self, process: Process, die: Callable[[], None]) -> None:
        call, committed = process.calls[0], self.committed
        unit_id = call.unit.unit_id
        if process.is_held:
            answer = self.ask("held", unit_id, process.name)
            assert not isinstance(answer, str), "a place is left"
            process.is_held = answer is Signal.WAIT
            if answer is Signal.STOP:
                self.end_call(process)
        elif process.attempt is None:
            if unit_id in committed:
                self.ask("finish", unit_id, process.name)
                return self.end_call(process)
            process.num_attempts += 1
            process.num_groups = 0
            answer = self.ask("begin", unit_id, NUM_ROWS, process.name, process.node, call.is_backup, process.call)
            if answer is None:
                return self.end_call(process)
            process.is_held = answer is Signal.WAIT
            process.attempt = None if process.is_held else answer
        elif process.attempt.is_careful:
            group = self.ask("next_group", unit_id, process.call, process.num_groups)
            process.num_groups += 1
            if group is None:
                self.end_call(process)
            elif unit_id == KILLER[0] and KILLER[1] in group.rows:
                die()
            elif not group.rows:
                self.end(process, group.condemned, die)
        else:
            self.end(process, (), die)

    def end(self, process: Process, condemned: tuple[int, ...], die: Callable[[], None]) -> None:
        """Run the rest of the rows, and commit if the ledger lets the process."""
        unit_id = process.calls[0].unit.unit_id
        if unit_id == KILLER[0] and KILLER[1] not in condemned:
            return die()
        if self.ask("holds", unit_id, process.name):
            assert unit_id not in self.committed, f"unit {unit_id} is committed twice"
            self.committed[unit_id] = process.name, condemned
            self.ask("finish", unit_id, process.name)
        self.end_call(process)

    def end_call(self, process: Process) -> None:
        process.calls.pop(0)
        process.attempt, process.is_held = None, False

    def replace(self, actor: int, node: str) -> Process:
        """Begin another life of an actor, to which Ray gives the calls of the last one."""
        self.num_lives += 1
        old = self.processes[actor]
        new = Process(f"{old.name[0]}{self.num_lives}", node, list(old.calls))
        self.processes[actor] = new
        self.ask("join", new.name, new.node, new.name[0])
        return old

    def die(self, actor: int) -> None:
        process = self.processes[actor]
        self.num_deaths += 1
        self.replace(actor, process.node)

    @rule(actor=_actors)
    def kill(self, actor: int) -> None:
        """A process dies over its unit, for no reason that lies in a row."""
        process = self.processes[actor]
        if process.attempt is not None and process.calls[0].unit.unit_id not in self.unlucky:
            self.unlucky.add(process.calls[0].unit.unit_id)
            self.die(actor)

    @rule(actor=_actors)
    def lose_node(self, actor: int) -> None:
        """A node is taken for dead, while its process goes on."""
        self.lost_nodes.add(self.processes[actor].node)
        self.gone.append(self.replace(actor, f"{self.processes[actor].name[0]}{self.num_lives + 1}"))

    @rule()
    def come_back(self) -> None:
        """A process whose node was taken for dead does its next thing."""
        process = next((each for each in reversed(self.gone) if each.calls), None)
        if process is not None:
            self.step(process, lambda: self.gone.remove(process))

    @rule(actor=_actors)
    def fail(self, actor: int) -> None:
        """A place fails over its unit, or before it begins it."""
        if self.processes[actor].calls:
            self.report_failure(self.processes[actor])

    @rule()
    def fail_elsewhere(self) -> None:
        """A process whose node was taken for dead fails: it is cut off from the storage, too."""
        if self.gone and self.gone[-1].calls:
            self.report_failure(self.gone[-1])

    def report_failure(self, process: Process) -> None:
        unit_id, self.num_reports = process.calls[0].unit.unit_id, self.num_reports + 1
        named = {"report": f"{self.num_reports}", "unit_id": unit_id, "actor": process.name[0]}
        self.ask("place_failed", process.name, process.node, "disk full", **named)
        assert not self.ledger.holds(unit_id, process.name)
        process.attempt, process.is_held = None, True

    @rule(actor=_actors)
    def drain(self, actor: int) -> None:
        """A node is drained; some time later it is gone, and the actor is started elsewhere."""
        node = self.processes[actor].node
        self.ask("drain", [node])
        for process in self.processes:
            if process.node == node:
                held = [unit_id for unit_id in range(NUM_UNITS) if self.ledger.holds(unit_id, process.name)]
                workers = {
                    unit_id: self.ledger._units[unit_id].worker for unit_id in held if unit_id in self.ledger._units
                }
                primary = {unit_id for unit_id, worker in workers.items() if worker and worker.process == process.name}
                assert primary <= set(self.ledger._returned), "others may begin its units"
        self.lost_nodes.add(node)
        self.gone.append(self.replace(actor, f"{node[0]}{self.num_lives + 1}"))

    @rule(back=st.integers(1, 20))
    def repeat_late(self, back: int) -> None:
        """A question of a process or of the feed arrives once more, long after it was answered."""
        late = [each for each in self.asked if each[0] != "dismiss"]
        if len(late) < back:
            return
        method, arguments, named = late[-back]
        for ledger in (self.ledger, self.again):
            getattr(ledger, method)(*arguments, **named)

    @rule(seconds=st.sampled_from([1.0, 5.0, 60.0]))
    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.clock.now += seconds

    @invariant()
    def deaths_are_deaths(self) -> None:
        """No process counts as dead that has not died."""
        assert self.ledger.summary()["num_deaths"] <= self.num_deaths

    @invariant()
    def only_the_killer_is_condemned(self) -> None:
        """No row is given up but the one that kills."""
        for unit_id, (_, condemned) in self.committed.items():
            assert condemned == ((KILLER[1],) if unit_id == KILLER[0] else ())

    def teardown(self) -> None:
        """Whatever happened, every unit is committed, once."""
        for number in range(_NUM_TRIES):
            self.only_the_killer_is_condemned()
            self.deaths_are_deaths()
            if len(self.committed) == NUM_UNITS:
                break
            self.clock.now += 1.0
            actor = number % 3
            if self.has_ended and not any(process.calls for process in self.processes):
                assert self.ledger._returned, "a unit is in no hands"
                self.ask("dismiss")  # a new pool, as the driver makes it
                self.fresh = [unit(unit_id, NUM_ROWS) for unit_id in range(NUM_UNITS) if unit_id not in self.committed]
                self.has_ended = False
                for each in range(3):
                    self.replace(each, self.processes[each].node)
            if len(self.processes[actor].calls) < 2 and not self.has_ended:
                self.give(self.processes[actor])
            if self.processes[actor].calls:
                self.step(self.processes[actor], lambda actor=actor: self.die(actor))
        assert len(self.committed) == NUM_UNITS, f"units are left: {self.ledger._units}"
