"""What programs of our kernels take of a GPU's multiprocessor: `make gpu-kernels`, which compiles and needs no GPU."""

from benchmarks.harness import show_lines
from benchmarks.roofline.multiprocessor import MULTIPROCESSORS
from tests.decoding.gpu.compiled import KINDS
from tests.decoding.gpu.test_compile import compiled_programs

COLUMNS = (
    ("kernel", "kernel", ""),
    ("tile", "tile", ""),
    ("registers", "registers", ""),
    ("threads", "threads", ""),
    ("shared KiB", "shared", ".0f"),
    ("at once", "at_once", ""),
)
_TELL_APART = ("LINES", "OUTPUTS", "KEYS", "GROUP", "IS_GATED", "IS_PART")


def main() -> None:
    """Print a table for each kind of GPU for which the tests compile layers."""
    for capability in KINDS:
        lines = []
        for name, launch, found in compiled_programs(capability):
            arguments = {each: launch.arguments[each] for each in _TELL_APART if each in launch.arguments}
            lines.append(
                {
                    "kernel": name,
                    "tile": ", ".join(f"{each.lower()} {value}" for each, value in arguments.items()),
                    "registers": found.num_registers,
                    "threads": found.num_threads,
                    "shared": found.num_shared_bytes / 1024,
                    "at_once": found.num_at_once,
                }
            )
        here = MULTIPROCESSORS[capability]
        memory = f"{here.shared_bytes >> 10} KiB shared, {here.num_registers} registers, {here.num_threads} threads"
        show_lines(f"sm_{capability}: a multiprocessor has {memory}", COLUMNS, lines)


if __name__ == "__main__":
    main()
