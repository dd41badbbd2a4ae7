"""The kernels of layers, compiled as they would be launched for models and batches of usual sizes; no GPU is needed.

Triton keeps what it compiled in ~/.triton/cache: the first time takes about a minute, a later one seconds.
"""

import re
from typing import NamedTuple

import pytest
import torch

from benchmarks.roofline.launched import num_at_once
from benchmarks.roofline.multiprocessor import MULTIPROCESSORS
from decoding.cache.pages import PAGE
from decoding.gpu import attention, linear, recurrence, tiles
from decoding.gpu.available import is_interpreted
from decoding.gpu.kernels import attention as attention_kernels
from decoding.gpu.kernels import linear as linear_kernels
from decoding.gpu.kernels import recurrence as recurrence_kernels
from decoding.gpu.linear import rms_norm
from decoding.states.rows import StateRows
from tests.decoding.gpu.compiled import CAPABILITIES, Compiled, Launch, recorded

pytestmark = pytest.mark.skipif(is_interpreted(), reason="a kernel is compiled or interpreted")

LINEAR = {"multiply"}
ATTENTION = {"attend"}
OTHERS = {"add_parts", "merge", "recur", "rms_norm", "split_heads"}
FORWARDS = [(1, 1), (64, 1), (128, 1), (128, 5), (2, 1024)]  # rows, and tokens of each
HEAD_SIZE = 128
NUM_POSITIONS, NUM_VISIBLE = 4097, 1088


class Model(NamedTuple):
    hidden_size: int
    inner_size: int
    num_query_heads: int
    num_kv_heads: int
    vocab_size: int
    has_head_norms: bool


MODELS = {
    "Llama-3.1-8B": Model(4096, 14336, 32, 8, 128_256, False),
    "Qwen3-0.6B": Model(1024, 3072, 16, 8, 151_936, True),
    "Qwen3-8B": Model(4096, 12288, 32, 8, 151_936, True),
    "Qwen3-32B": Model(5120, 25600, 64, 8, 151_936, True),
}


def _empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def launches_of(model: Model, num_rows: int, num_tokens: int) -> list[Launch]:
    """What a layer and the head launch in a forward."""
    num_lines, query_size = num_rows * num_tokens, model.num_query_heads * HEAD_SIZE
    qkv_size = query_size + 2 * model.num_kv_heads * HEAD_SIZE
    hidden_NE, inner_NX = _empty(num_lines, model.hidden_size), _empty(num_lines, model.inner_size)
    up_OI = _empty(model.inner_size, model.hidden_size)
    keys_SHPD = _empty(1 + 17 * num_rows, PAGE, model.num_kv_heads, HEAD_SIZE).transpose(1, 2)
    pages_SC = _empty(num_rows, 17, dtype=torch.int32)
    row_first, places_N = _empty(num_rows + 1, dtype=torch.int64), _empty(num_lines, dtype=torch.int64)
    rows = attention.TokenRows(row_first, places_N, places_N, num_tokens, NUM_VISIBLE, pages_SC)
    table_PD = _empty(NUM_POSITIONS, HEAD_SIZE)
    norms = (_empty(HEAD_SIZE), _empty(HEAD_SIZE), 1e-6) if model.has_head_norms else None
    heads = (num_lines, model.num_query_heads, HEAD_SIZE), (num_lines, model.num_kv_heads, HEAD_SIZE)
    value_NHV, key_NGK = (_empty(*shape, dtype=torch.float32) for shape in heads)
    states_EHKV = _empty(2, model.num_query_heads, HEAD_SIZE, HEAD_SIZE, dtype=torch.float32)
    with recorded(attention, attention_kernels, linear_kernels, recurrence_kernels) as launches:
        for decay in (value_NHV, value_NHV[..., 0]):
            for beta_NH in (value_NHV[..., 0], None):
                state_rows = StateRows(row_first, places_N[:num_rows], places_N)
                recurrence.recur(state_rows, states_EHKV, key_NGK, key_NGK, value_NHV, decay, beta_NH)
        norm_E, down_OI = _empty(model.hidden_size), _empty(model.hidden_size, model.inner_size)
        rms_norm(hidden_NE, norm_E, 1e-6)
        qkv = linear.sums(hidden_NE, _empty(qkv_size, model.hidden_size), None)
        places = (keys_SHPD, keys_SHPD, rows, places_N, (table_PD, table_PD), norms)
        attention.split_and_store(_empty(num_lines, qkv_size), *places)  # of a library's product
        query_NQD = attention.split_and_store(qkv, *places)
        found_NX = attention.attend(query_NQD, keys_SHPD, keys_SHPD, rows, attention.Rule(HEAD_SIZE**-0.5)).flatten(1)
        out = linear.sums(found_NX, _empty(model.hidden_size, query_size), None)
        linear.add_parts(out, hidden_NE, norm_E, 1e-6)
        linear.multiply(hidden_NE, up_OI, None, gate=(up_OI, None))
        linear.multiply(inner_NX, down_OI, None, hidden_NE)  # of the last layer
        linear.multiply(hidden_NE, _empty(model.vocab_size, model.hidden_size), None)
    return launches


class Program(NamedTuple):
    name: str
    launch: Launch
    compiled: Compiled

    @property
    def instructions(self) -> set[str]:
        """The tensor cores' instructions, without the number of lines of one: it changes no line's numbers."""
        return {re.sub(r"(m\d+)n\d+(k\d+)", r"\1\2", name) for name in self.compiled.tensor_core_instructions}


@pytest.fixture(scope="module", params=CAPABILITIES)
def capability(request) -> int:
    return request.param


@pytest.fixture(scope="module")
def programs(capability) -> list[Program]:
    return compiled_programs(capability)


def compiled_programs(capability: int) -> list[Program]:
    """All programs that the forwards run, each once."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (tiles, attention):
            patch.setattr(module, "shared_memory", lambda: MULTIPROCESSORS[capability].shared_bytes_of_a_program)
        every = {
            launch.program: launch
            for model in MODELS.values()
            for rows in FORWARDS
            for launch in launches_of(model, *rows)
        }
    return [Program(name, launch, launch.compiled(capability)) for (name, _), launch in every.items()]


def test_every_kernel_is_launched(programs):
    assert {program.name for program in programs} == LINEAR | ATTENTION | OTHERS


def test_no_kernel_spills_or_takes_more_memory_than_there_is(programs, capability):
    most_spilled = 16 if capability in (80, 120) else 0  # a few numbers, of tiles for which the clock may take others
    for name, launch, compiled in programs:
        what = f"{name} with {launch.options}"
        assert compiled.num_spilled_bytes <= most_spilled, what
        assert compiled.num_shared_bytes <= MULTIPROCESSORS[capability].shared_bytes_of_a_program, what


def test_every_launch_says_that_products_are_rounded_before_they_are_added(programs):
    """The default is another from Triton 3.9 on."""
    assert all(program.launch.options["enable_fp_fusion"] is False for program in programs)


def test_tensor_cores_multiply_and_nothing_else_needs_them(programs):
    for program in programs:
        assert bool(program.instructions) == (program.name in LINEAR | ATTENTION), program.name


def test_one_instruction_multiplies_any_number_of_lines(programs, capability):
    """Another one could add in another order, and the numbers of a line would depend on the number of lines."""
    found = set.union(*(program.instructions for program in programs if program.name in LINEAR))
    one_warp, four_warps = r"mma\.sync\..*m16k16\..*", r"wgmma\.mma_async\..*m64k16\..*"
    expected = {80: one_warp, 90: four_warps, 100: r"tcgen05\.mma\..*", 120: one_warp}
    assert len(found) == 1
    assert re.fullmatch(expected[capability], found.pop())


def test_kernels_that_add_parts_add_squares_in_the_order_of_those_that_add_none(programs):
    """The order follows from where the numbers of a line lie: threads, then warps, are added in a fixed tree."""
    found: dict[object, dict[object, set[object]]] = {}
    for name, launch, compiled in programs:
        sizes, layouts = launch.arguments, (compiled.reduced_layouts, compiled.num_threads)
        if name == "rms_norm" or (name == "add_parts" and sizes["HAS_NORM"]):
            found.setdefault(sizes["PADDED_SIZE"], {}).setdefault(name, set()).add(layouts)
        elif name == "split_heads" and sizes["HAS_NORMS"]:
            found.setdefault("heads", {}).setdefault(sizes["HAS_PARTS"], set()).add(layouts)
    assert len(found) > 2
    for kinds in found.values():
        (alone, (of_alone, _)), (joined, _) = [(each, next(iter(each))) for each in kinds.values()]
        assert of_alone
        assert len(alone) == 1
        assert alone == joined


def test_the_same_instructions_attend_to_chunks_and_to_whole_rows(programs):
    found = {}
    for program in programs:
        if program.name in ATTENTION:
            found.setdefault(program.launch.arguments["GROUP"], []).append(program)
    assert found.keys() == {2, 4, 8}
    for group in found.values():
        assert {program.launch.arguments["IS_PART"] for program in group} == {False, True}
        assert len({frozenset(program.compiled.tensor_core_instructions) for program in group}) == 1


def test_a_multiprocessor_runs_two_programs_of_decode_attention_at_once(programs):
    """One alone waits for its keys, and nothing hides that. `make gpu-kernels` prints the number for each kernel."""
    assert [program for program in programs if program.name in ATTENTION and program.compiled.num_at_once < 2] == []


@pytest.mark.parametrize(
    "num_lines", [each if each == 128 else pytest.param(each, marks=pytest.mark.slow) for each in tiles.LINES]
)
def test_each_tile_that_the_clock_may_choose_compiles_and_adds_alike(programs, capability, num_lines):
    """Registers that do not suffice cost time and no bits, so few bytes may spill; the clock decides."""
    alike = set.union(*(program.instructions for program in programs if program.name in LINEAR))
    most = MULTIPROCESSORS[capability].shared_bytes_of_a_program
    found = tiled_programs(capability, num_lines)
    assert len(found) > 6
    for name, launch, compiled in found:
        assert compiled.num_shared_bytes <= most, (name, launch.options)
        assert compiled.num_spilled_bytes <= (0 if capability == 90 else 64), (name, launch.options)
    assert set.union(*(program.instructions for program in found)) == alike
    if capability == 90:
        assert all(predicted_at_once(program) == program.compiled.num_at_once for program in found)


def tiled_programs(capability: int, num_lines: int) -> list[Program]:
    """Products with each tile that the clock may choose for this many lines on such a GPU, each program once."""
    model = MODELS["Qwen3-8B"]
    sizes = (model.hidden_size, model.inner_size), (model.inner_size, model.hidden_size), (model.vocab_size, 4096)
    with pytest.MonkeyPatch.context() as patch, recorded(linear_kernels) as launches:
        patch.setattr(tiles, "shared_memory", lambda: MULTIPROCESSORS[capability].shared_bytes_of_a_program)
        for (num_outputs, num_inputs), num_weights in zip(sizes, (1, 2, 1), strict=True):
            weight_OI = _empty(num_outputs, num_inputs)
            gate = (weight_OI, None) if num_weights == 2 else None
            for tile in tiles.Weight(num_outputs, num_inputs, torch.bfloat16, num_weights).tiles(num_lines):
                chosen = {(num_weights, num_lines): tile}
                linear.multiply(_empty(num_lines, num_inputs), weight_OI, None, None, gate, chosen)
    every = {launch.program: launch for launch in launches if launch.kernel.fn.__name__ in LINEAR}
    return [Program(name, launch, launch.compiled(capability)) for (name, _), launch in every.items()]


def predicted_at_once(program: Program) -> int:
    """How many programs run at once as the prediction of a round has it."""
    sizes, options = program.launch.arguments, program.launch.options
    of_tile = sizes["OUTPUTS"], sizes["LINES"], options["num_warps"], options["num_stages"]
    return num_at_once(tiles.Tile(*of_tile, is_whole=sizes["HAS_PARTS"]), 1 + sizes["IS_GATED"])


def test_the_prediction_of_a_round_knows_how_many_products_run_at_once(programs, capability):
    if capability != 90:
        pytest.skip("a round is predicted for Hopper")
    products = [program for program in programs if program.name in LINEAR]
    assert all(predicted_at_once(program) == program.compiled.num_at_once for program in products)
