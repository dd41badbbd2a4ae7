"""Over a hundred corruptions of a finished run, found by jobs.verify and mended by the same command."""

import random
from collections import Counter
from pathlib import Path

import pytest

from jobs import verify
from pipeline.run.check import check_run
from tests.damage import damage
from tests.faults.runs import FaultRun

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]
ROUNDS = range(4)
PARTS_A_ROUND = 30
OPERATIONS = ["truncate", "flip", "flip", "empty", "foreign", "delete"]


def test_parts_that_are_damaged_are_named_and_moved_away_and_they_alone_are_done_again(new_run, say, capsys):
    run = new_run()
    run.start(pause_s=0).wait(0)
    num_found = num_harmless = 0
    for seed in ROUNDS:
        rng, parts = random.Random(seed), sorted(Path(run.output).glob("data/*.parquet"))
        touched = rng.sample(parts, PARTS_A_ROUND)
        for part in touched:
            _damage(part, rng, parts)
        found = _damaged_or_missing(run)
        assert found <= {part.name for part in touched}
        capsys.readouterr()
        assert verify.main([run.output]) == 1
        printed = capsys.readouterr().out
        for name in found:
            assert f"problem: data/{name}" in printed or f"problem: unit {_unit_id(name)} (" in printed
        assert verify.main([run.output, "--repair"]) == 1
        before, attempts = run.commits(), run.diary.num_attempts()
        assert not found & before.keys()
        run.start(pause_s=0).wait(0)
        after = run.commits()
        assert {name for name in after if after[name] != before.get(name)} == found
        assert run.diary.num_attempts() - attempts == Counter(map(_unit_id, found))
        num_found, num_harmless = num_found + len(found), num_harmless + len(touched) - len(found)
    assert num_found > 100
    run.diary.path.unlink()  # what was done again up to here was lost on purpose
    say(f"{num_found} corruptions found and mended, {num_harmless} harmless; {run.prove_nothing_lost(0)}")


def _damage(part: Path, rng: random.Random, parts: list[Path]) -> None:
    operation = rng.choice(OPERATIONS)
    if operation == "foreign":
        part.write_bytes(next(other for other in parts if other != part and other.exists()).read_bytes())
    else:
        damage(part, operation, rng)  # a flipped byte that no reader looks at does no harm


def _damaged_or_missing(run: FaultRun) -> set[str]:
    damaged = {name.removeprefix("data/") for name in check_run(run.directory).damaged if name.startswith("data/")}
    missing = {f"part-{unit.unit_id:09d}.parquet" for unit in run.directory.missing_units()}
    return damaged | missing


def _unit_id(name: str) -> int:
    return int(name[5:14])
