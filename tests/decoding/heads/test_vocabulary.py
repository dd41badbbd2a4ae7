"""A reduced vocabulary: offsets to the target's ids and back."""

import pytest
import torch

from decoding.heads.format.folder import read_head, save_head
from decoding.heads.format.tensors import check_membership, membership, offsets, target_ids
from tests.decoding.heads.made_up import V, head, with_tensors


def test_offsets_and_ids_are_each_others_inverse() -> None:
    ids_D = torch.tensor([3, 4, 9, 2])
    assert offsets(ids_D).tolist() == [3, 3, 7, -1]
    assert target_ids(offsets(ids_D), 10).tolist() == ids_D.tolist()
    assert membership(ids_D, 10).nonzero().flatten().tolist() == [2, 3, 4, 9]


def test_ids_are_refused_where_offsets_are_expected() -> None:
    with pytest.raises(ValueError, match="or its d2t holds ids where offsets are expected"):
        target_ids(torch.tensor([3, 4, 9]), 10)


def test_marks_that_lack_a_token_are_told_from_marks_that_have_one_too_many() -> None:
    ids_D = torch.tensor([1, 3])
    check_membership(membership(ids_D, 5), ids_D)
    for marked, says in (([1], "lacks token 3"), ([1, 3, 4], "has token 4")):
        with pytest.raises(ValueError, match=f"contradicts itself: {says} of its target by t2d"):
            check_membership(membership(torch.tensor(marked), 5), ids_D)


def test_a_head_over_all_tokens_may_name_them_in_another_order(tmp_path) -> None:
    order_D = torch.randperm(V, generator=torch.Generator().manual_seed(3))
    one = with_tensors(head("eagle3", draft_vocab_size=V), d2t=offsets(order_D))
    save_head(one, str(tmp_path / "head"), "speculators")
    assert torch.equal(target_ids(read_head(str(tmp_path / "head")).tensors["d2t"], V), order_D)
