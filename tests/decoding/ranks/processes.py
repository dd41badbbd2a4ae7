"""Three processes that are the ranks of a test."""

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from decoding.checkpoint.rank import meet, open_rank_store
from tests import interpreter

NUM_RANKS = 3


def run_ranks(module: str, folder: Path, *arguments: str) -> list[Any]:
    """Run a module as each of the ranks, and return what each has left in the folder."""
    place = open_rank_store(NUM_RANKS)
    command = [sys.executable, "-m", module, str(place.port), str(folder)]
    ranks = [subprocess.Popen([*command, str(rank), *arguments], env=dict(os.environ)) for rank in range(NUM_RANKS)]
    assert [rank.wait(240) for rank in ranks] == [0] * NUM_RANKS
    return [pickle.loads((folder / f"found_{rank}.pickle").read_bytes()) for rank in range(NUM_RANKS)]


def join_ranks(port: str, rank: int) -> None:
    """Become one of the ranks."""
    torch.set_num_threads(1)
    interpreter.install()
    meet(int(port), rank, NUM_RANKS, "cpu", 120.0)


def leave_ranks(folder: str, rank: int, found: Any) -> None:
    """Leave what this rank has found."""
    (Path(folder) / f"found_{rank}.pickle").write_bytes(pickle.dumps(found))
    distributed.destroy_process_group()
