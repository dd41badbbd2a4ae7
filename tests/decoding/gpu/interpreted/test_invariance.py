"""The measurement at load agrees with the GPU kernels and finds faults planted in them; what an engine makes of it.

Sizes are small, because the kernels run in Triton's interpreter. The sizes of a real measurement are looked at by
`test_a_measurement_runs_every_kernel_in_each_of_its_ways`, with kernels that compute nothing.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from decoding import Engine, EngineOptions, SamplingParams
from decoding.fused.packed_linear import InvariantLinear
from decoding.gpu import attention, linear
from decoding.gpu.tiles import Tile, Weight
from decoding.network import invariance
from decoding.network.invariance import is_invariant
from decoding.network.language_model import LanguageModel
from tests.decoding.tiny import build, llama_config, save

CHUNK = 16  # positions; 256 where nothing is interpreted
NUM_LINES = (1, 16, 17, 32, 33, 64, 65, 128, 129, 256, 500, 1000, 1500, 2000, 2048)  # of a round or a prefill
Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(autouse=True)
def _few_tokens(monkeypatch):
    """A text whose prompt crosses the end of a chunk of keys, and whose scored tokens cross another."""
    of = attention._Tile.of
    monkeypatch.setattr(attention, "CHUNK", CHUNK)
    monkeypatch.setattr(attention._Tile, "of", lambda *model: replace(of(*model), keys=CHUNK))  # a tile is in one chunk
    monkeypatch.setattr(invariance, "_LONGEST_PROMPT", 2 * CHUNK - 2)
    monkeypatch.setattr(invariance, "_NUM_SCORED", 4)
    monkeypatch.setattr(invariance, "_FORWARDS", ((1, 4), (2, 1), (3, 2)))


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> SimpleNamespace:
    """Models with one layer, with two, and with products of several steps, which can be added in another order."""
    root, heads = tmp_path_factory.mktemp("models"), {"num_attention_heads": 2, "num_key_value_heads": 1}
    sizes = {
        "small": {"num_hidden_layers": 1},
        "deep": {"num_hidden_layers": 2},
        "wide": {"num_hidden_layers": 1, "hidden_size": 256, "head_dim": 16},
    }
    return SimpleNamespace(
        **{name: save(build(llama_config(**heads, **own), seed=1), root / name) for name, own in sizes.items()}
    )


def model_at(folder: str, dtype: str) -> LanguageModel:
    model = LanguageModel.load(folder, "cpu", dtype, "on")
    model.speed_up()
    assert model.fused is not None
    assert model.fused.is_on_gpu
    return model


@pytest.mark.parametrize(("name", "dtype"), [("small", "bfloat16"), ("deep", "float32"), ("wide", "float32")])
def test_our_kernels_are_measured_to_be_invariant(folders, name, dtype):
    assert is_invariant(model_at(getattr(folders, name), dtype))


def more_lines_are_added_in_two_halves(patch: pytest.MonkeyPatch) -> None:
    multiply = linear.multiply

    def planted(x_NI, weight_OI, *more, **tiles):
        half = weight_OI.shape[1] // 2
        with pytest.MonkeyPatch.context() as inner:
            if len(x_NI) > 3:
                inner.setattr(Weight, "part_size", half)
            return multiply(x_NI, weight_OI, *more, **tiles)

    patch.setattr(linear, "multiply", planted)


def more_lines_are_added_in_longer_steps(patch: pytest.MonkeyPatch) -> None:
    multiply, options = linear.multiply, Tile.options

    def planted(x_NI, weight_OI, *more, **tiles):
        with pytest.MonkeyPatch.context() as inner:
            if len(x_NI) > 3:
                inner.setattr(Tile, "options", lambda tile, weight: options(tile, weight) | {"INPUTS": 128})
            return multiply(x_NI, weight_OI, *more, **tiles)

    patch.setattr(linear, "multiply", planted)


def chunks_of_keys_follow_the_rows(patch: pytest.MonkeyPatch) -> None:
    attend = attention.attend

    def planted(query, keys, values, rows, *more):
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(attention, "CHUNK", CHUNK if rows.num_rows == 1 else 2 * CHUNK)
            return attend(query, keys, values, rows, *more)

    patch.setattr(attention, "attend", planted)


def attention_is_off_if(is_planted: Callable[[attention.TokenRows], bool]) -> Plant:
    """Plant a fault in the last bits of the output of forwards that are like this."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        attend = attention.attend

        def planted(query, keys, values, rows, *more):
            out = attend(query, keys, values, rows, *more)
            return out * (1 + 2 * torch.finfo(out.dtype).eps) if is_planted(rows) else out

        patch.setattr(attention, "attend", planted)

    return plant


MORE_LINES = (more_lines_are_added_in_two_halves, more_lines_are_added_in_longer_steps)
ATTENTION = {
    "chunks of keys follow the rows": chunks_of_keys_follow_the_rows,
    "K + 1 positions of a row by itself": attention_is_off_if(lambda rows: rows.num_rows == 1 and 1 < rows.width < 8),
    "one position beside other rows": attention_is_off_if(lambda rows: rows.num_rows > 1 and rows.width == 1),
    "several positions beside other rows": attention_is_off_if(lambda rows: rows.num_rows > 1 and 1 < rows.width < 8),
    "prompts that are read together": attention_is_off_if(lambda rows: rows.num_rows > 1 and rows.width > 8),
}


@pytest.mark.parametrize("plant", MORE_LINES)
def test_a_product_that_adds_more_lines_in_another_order_is_found(folders, monkeypatch, plant):
    """In float32, where each last bit is seen; in 16 bits some are rounded away, in these few numbers most."""
    plant(monkeypatch)
    assert not is_invariant(model_at(folders.wide, "float32"))


@pytest.mark.parametrize("fault", ATTENTION)
def test_attention_that_depends_on_the_batch_is_found(folders, monkeypatch, fault):
    ATTENTION[fault](monkeypatch)
    assert not is_invariant(model_at(folders.deep, "float32"))


def test_a_fault_in_16_bits_is_found(folders, monkeypatch):
    ATTENTION["several positions beside other rows"](monkeypatch)
    assert not is_invariant(model_at(folders.small, "bfloat16"))


# What an engine makes of the measurement


def engine(folder: str, exact: str) -> Engine:
    return Engine.load(folder, None, EngineOptions(max_model_len=40, exact=exact), device="cpu", dtype="bfloat16")


@pytest.mark.slow
def test_an_engine_measures_the_products_that_it_runs(folders, caplog):
    caplog.set_level(logging.INFO)
    target = engine(folders.small, "on").target
    mlp = target.network.model.layers[0].mlp
    assert {type(layer) for layer in (mlp.gate_proj, mlp.down_proj, target.network.lm_head)} == {InvariantLinear}
    assert target.is_batch_invariant
    assert "the same, bit for bit, in any batch" in caplog.text


@pytest.mark.slow  # an engine on the CPU is refused in tests/decoding/engine/test_exact.py
def test_an_engine_is_refused_where_a_fault_is_found(folders, monkeypatch):
    ATTENTION["several positions beside other rows"](monkeypatch)
    with pytest.raises(ValueError, match=r"engine\.exact is 'on', but"):
        engine(folders.small, "on")


@pytest.mark.slow
def test_an_engine_that_need_not_be_exact_writes_and_warns_where_a_fault_is_found(folders, monkeypatch, caplog):
    ATTENTION["several positions beside other rows"](monkeypatch)
    made = engine(folders.small, "auto")
    assert not made.target.is_batch_invariant
    assert "near ties in its text may, too" in caplog.text
    (written,) = made.generate([[1, 2, 3]], SamplingParams(max_tokens=4, temperature=0))
    assert len(written.output_token_ids) == 4


# What a real measurement runs


class Launches:
    """In place of a module of kernels: they are noted, and not run."""

    def __init__(self) -> None:
        self.found: set[tuple[str, int, int]] = set()  # kernels, and the outputs and lines of their tiles

    def __getattr__(self, name: str) -> "Launches":
        self._name = name
        return self

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return lambda *_, **sizes: self.found.add((self._name, sizes.get("OUTPUTS", 0), sizes.get("LINES", 0)))

    def of(self, run: Callable[[], object]) -> set[tuple[str, int, int]]:
        """Return what was launched while this ran."""
        earlier, self.found = self.found, set()
        run()
        mine, self.found = self.found, earlier | self.found
        return mine


@pytest.fixture
def whole_measurement(monkeypatch) -> SimpleNamespace:
    """A measurement of full size, by kernels that compute nothing: all numbers are 0."""
    monkeypatch.undo()
    found = SimpleNamespace(products=Launches(), attention=Launches(), rules=set())
    monkeypatch.setattr(linear, "kernels", found.products)
    monkeypatch.setattr(attention, "kernels", found.attention)
    monkeypatch.setattr(attention, "split_heads", Launches())
    monkeypatch.setattr(linear, "rms_norm", lambda x_NE, *_: x_NE)
    monkeypatch.setattr(torch.Tensor, "new_empty", torch.Tensor.new_zeros)
    monkeypatch.setattr(torch, "empty_like", torch.zeros_like)
    attend = attention.attend

    def noted(query, keys, values, rows, *more):
        out = []
        launched = found.attention.of(lambda: out.append(attend(query, keys, values, rows, *more)))
        if rows.num_visible > attention.CHUNK:
            found.rules |= {name for name, _, _ in launched}
        return out[0]

    monkeypatch.setattr(attention, "attend", noted)
    return found


@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(14, 2), (28, 4), (32, 8), (16, 16)])
def test_a_measurement_runs_every_kernel_in_each_of_its_ways(num_heads, num_kv_heads, whole_measurement):
    """Tiles of products follow the number of lines, and attention is divided where there are few programs."""
    sizes = {"hidden_size": 32 * num_heads, "intermediate_size": 3072, "max_position_embeddings": 600, "head_dim": 64}
    config = llama_config(9000, **sizes, num_attention_heads=num_heads, num_key_value_heads=num_kv_heads)
    model = LanguageModel(build(config, seed=1).bfloat16(), frozenset())
    model.exact = "on"
    model.speed_up()
    assert is_invariant(model), "all logits are 0"
    assert whole_measurement.rules == {"attend", "merge"}

    layer, measured = model.network.model.layers[0], whole_measurement.products.found.copy()
    for product in (layer.self_attn.q_proj.fused, layer.self_attn.o_proj, layer.mlp.down_proj, model.network.lm_head):
        for num_lines in NUM_LINES:
            x_NI = torch.zeros(num_lines, product.in_features, dtype=torch.bfloat16)
            launched = whole_measurement.products.of(partial(product, x_NI))
            assert launched <= measured, (num_lines, product.weight.shape)
    for num_lines in NUM_LINES:
        x_NI = torch.zeros(num_lines, config.hidden_size, dtype=torch.bfloat16)
        launched = whole_measurement.products.of(partial(layer.mlp.up_proj.gated, x_NI, layer.mlp.gate_proj))
        assert launched <= measured, num_lines
