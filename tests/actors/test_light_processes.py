"""What runs beside the engines loads no more than it uses: many workers of a simulation, the ledger, a run's driver."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("modules", "heavy"),
    [
        (
            "actors.units.feed, actors.units.ledgers, benchmarks.scale.simulated, benchmarks.scale",
            {"torch", "transformers"},
        ),
        ("jobs.generate, jobs.work.generation", {"decoding.engine.engine", "transformers.modeling_utils", "triton"}),
    ],
    ids=["beside the driver", "the driver"],
)
def test_a_process_without_an_engine_loads_none(modules, heavy):
    program = f"import sys, {modules}; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
