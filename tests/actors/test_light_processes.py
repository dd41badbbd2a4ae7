"""What runs beside the driver, and there are many workers in a simulation, loads no torch."""

import subprocess
import sys


def test_the_ledger_the_feed_and_the_simulated_worker_load_neither_torch_nor_transformers():
    modules = "actors.units.feed, actors.units.ledgers, benchmarks.scale.simulated, benchmarks.scale"
    program = f"import sys, {modules}; print(sorted({{'torch', 'transformers'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
