"""What a head takes is told from its files: the same as what is allocated for it."""

from pathlib import Path

import pytest

from decoding.heads.fit import head_numbers
from decoding.heads.format.folder import save_head
from decoding.heads.format.head_config import Kind
from decoding.heads.format.tensors import expected_tensors
from tests.decoding.heads.made_up import H, V, head, with_tensors
from tests.decoding.heads.tiny_heads import block_config, random_head


@pytest.mark.parametrize(("kind", "num_layers"), [("eagle3", 1), ("dflash", 2), ("dspark", 2)])
def test_each_layer_has_a_key_and_a_value_of_a_token(kind: Kind, num_layers: int, tmp_path: Path) -> None:
    one = head(kind)
    save_head(one, str(tmp_path / "head"), "speculators")
    weights, per_token = head_numbers(str(tmp_path / "head"), one.config)
    assert per_token == 2 * num_layers * 2 * 8
    floats = [name for name, each in expected_tensors(one.config).items() if each.kind == "float"]
    num_weights = sum(tensor.numel() for name, tensor in one.tensors.items() if name in floats)
    twice = 0 if kind == "eagle3" else 2 * num_layers * 2 * 8 * 32  # keys and values of the text before a block
    assert weights == num_weights + twice


def test_a_head_apart_from_its_target_has_copies_of_what_its_files_lack(tmp_path: Path) -> None:
    one = with_tensors(head("eagle3", draft_vocab_size=V), embed_tokens__weight=None)
    save_head(one, str(tmp_path / "head"), "speculators")
    path = str(tmp_path / "head")
    beside, apart = (head_numbers(path, one.config, is_apart=each) for each in (False, True))
    assert apart == (beside[0] + V * H, beside[1])


def test_the_product_of_a_text_has_as_many_weights_as_the_footprint_says() -> None:
    config = block_config()
    own, _ = random_head(config)
    assert own._context.weight.numel() == 2 * 2 * 2 * 8 * 32
