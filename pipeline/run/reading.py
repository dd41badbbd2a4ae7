"""Many reads at once, in the order of what is read: by threads, and, where a run has many parts, by processes."""

import logging
import os
import pickle
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from itertools import islice
from queue import SimpleQueue
from typing import Any, ClassVar, TypeVar

import pyarrow as pa

from pipeline.run.directory import RunDirectory

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

READS_AT_ONCE = 32  # of a process, where each takes a part's bytes
_CHUNK = 250  # items that a process gets at once
_FEWEST = 4000  # items that are worth a process, which takes half a second to begin
_MOST_PROCESSES = 8  # each has some 100 MB
_PROGRAM = "from pipeline.run.reading import serve; serve()"


def read_ahead(read: Callable[[_Item], _Result], items: Iterable[_Item], num_at_once: int = 4) -> Iterator[_Result]:
    """Yield `read(item)` for each item, in order; threads read up to `num_at_once` items ahead, as stores answer late.

    No more results than that are in memory. An error of `read` is raised here when it is that item's turn.
    """
    with ThreadPoolExecutor(num_at_once, thread_name_prefix="read-ahead") as pool:
        waiting: deque[Future[_Result]] = deque()
        for item in items:
            waiting.append(pool.submit(read, item))
            if len(waiting) == num_at_once:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def by_chunks(
    work: Callable[[RunDirectory, list[_Item]], _Result],
    run_directory: RunDirectory,
    items: Iterable[_Item],
    num_items: int,
) -> Iterator[_Result]:
    """Yield what `work` returns for each chunk of the items, in order; a few chunks are in memory at once.

    `num_items` says about how many there are: many are worked on by a process for each CPU, so `work`, the items and
    the results can be pickled. The chunks are the same ones wherever they are worked on. An error of `work` is raised
    when it is that chunk's turn, and OSError if a process ends before its work does.
    """
    todo = iter(items)
    chunks = iter(lambda: list(islice(todo, _CHUNK)), [])
    affinity = getattr(os, "sched_getaffinity", None)  # which some systems do not have
    num_processes = min(_MOST_PROCESSES, (os.cpu_count() or 1) if affinity is None else len(affinity(0)))
    if num_items < _FEWEST or num_processes == 1:
        yield from (work(run_directory, chunk) for chunk in chunks)
        return
    with ExitStack() as stack:
        free: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        for _ in range(num_processes):
            process = _begin(work, run_directory)
            stack.callback(process.communicate)  # its input ends, and then it
            free.put(process)

        def send(chunk: list[_Item]) -> Any:
            process = free.get()
            try:
                return _ask(process, chunk)
            finally:
                free.put(process)

        yield from read_ahead(send, chunks, 2 * num_processes)


def _begin(work: Callable[..., object], run_directory: RunDirectory) -> subprocess.Popen[bytes]:
    """Return a process that does this work on what it is sent, until its input ends, or this process."""
    # None of multiprocessing's, which would import the main module of this one, a user's own script perhaps, again.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", _PROGRAM], stdin=pipe, stdout=pipe, env=environment)
    assert process.stdin is not None
    pickle.dump((work, run_directory), process.stdin)
    return process


def _ask(process: subprocess.Popen[bytes], items: object) -> Any:
    """Return what the process's work returns for these items, or raise what it raises; log what it logged."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        pickle.dump(items, process.stdin)
        process.stdin.flush()
        result, error, warnings = pickle.load(process.stdout)
    except (EOFError, BrokenPipeError, pickle.UnpicklingError) as broken:
        code = process.wait()
        raise OSError(f"a process that reads parts ended with code {code}; was its memory too small?") from broken
    for name, level, message in warnings:
        logging.getLogger(name).log(level, message)
    if error is not None:
        raise error
    return result


class _Kept(logging.Handler):
    """A handler that keeps warnings for the process that asks."""

    records: ClassVar[list[tuple[str, int, object]]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append((record.name, record.levelno, record.getMessage() if record.args else record.msg))


def serve() -> None:
    """Work on the items that come on stdin, and answer on stdout, until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that waits for the answers
    pa.set_io_thread_count(2 * READS_AT_ONCE)  # pyarrow's S3 client has as many connections, and 25 at least
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # where anything that prints does no harm
    logging.getLogger().addHandler(_Kept(logging.WARNING))
    work, run_directory = pickle.load(sys.stdin.buffer)
    with suppress(EOFError):
        while True:
            items = pickle.load(sys.stdin.buffer)
            answer: tuple[object, Exception | None]
            try:
                answer = (work(run_directory, items), None)
            except Exception as error:  # noqa: BLE001 - raised where the answer is read
                answer = (None, error)
            pickle.dump((*answer, _Kept.records), answers)
            answers.flush()
            _Kept.records.clear()
