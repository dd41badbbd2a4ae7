"""MULTIPROCESSORS: what programs share on one multiprocessor of a GPU, by compute capability (90 is 9.0)."""

from dataclasses import dataclass

_REGISTERS_AT_ONCE = 8  # a thread gets that many, or a multiple


@dataclass(frozen=True)
class Multiprocessor:
    """What the programs share that run on one multiprocessor at the same time."""

    shared_bytes: int  # a program may have all of them, but for what each program takes beside
    num_threads: int
    num_registers: int = 1 << 16
    taken_bytes: int = 1 << 10  # of shared memory, beside a program's own

    @property
    def shared_bytes_of_a_program(self) -> int:
        """The most that one program may have."""
        return self.shared_bytes - self.taken_bytes

    def num_at_once(self, num_threads: int, shared_bytes: int, num_registers: int = 1) -> int:
        """Return how many programs run at once that have these threads, shared bytes, and registers of a thread."""
        registers = -(-num_registers // _REGISTERS_AT_ONCE) * _REGISTERS_AT_ONCE
        by_registers = self.num_registers // (registers * num_threads)
        by_memory = self.shared_bytes // (shared_bytes + self.taken_bytes)
        return min(by_registers, by_memory, self.num_threads // num_threads)


MULTIPROCESSORS = {  # CUDA C++ Programming Guide, "Compute Capabilities"
    80: Multiprocessor(164 << 10, 2048),
    89: Multiprocessor(100 << 10, 1536),
    90: Multiprocessor(228 << 10, 2048),
    100: Multiprocessor(228 << 10, 2048),
    120: Multiprocessor(100 << 10, 1536),
}
