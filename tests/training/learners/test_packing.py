"""A packed row gives each document what it gets alone, and only ends of documents that are too long are lost."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from decoding.heads.unrolled import unrolled
from tests.decoding.heads.tiny_heads import head_config, random_network
from tests.training.pair import DRAFT
from training.learners.packing import Document, PackedRows, pack
from training.learners.teacher import packed_logits, tells_documents

SEQ_LEN = 256


def _whole(document: Document) -> list[int]:
    return [*document.prompt_token_ids, *document.output_token_ids]


def test_rows_hold_all_documents_and_no_row_is_too_long(documents: list[Document]) -> None:
    rows = list(pack(documents, SEQ_LEN))
    assert max(row.num_tokens for row in rows) <= SEQ_LEN
    assert len(rows) < len(documents) / 2
    packed = [document for row in rows for document in row.documents]
    assert sorted(packed, key=repr) == sorted(documents, key=repr)


def test_a_document_that_is_too_long_loses_its_end() -> None:
    (row,) = pack([Document((1, 2), (3, 4, 5, 6))], seq_len=4)
    assert row.documents == [Document((1, 2), (3, 4))]
    (row,) = pack([Document((1, 2, 3), (4,)), Document((5,), (6,))], seq_len=8, max_len=2)
    assert row.documents == [Document((1, 2), ()), Document((5,), (6,))]


def test_the_predictions_of_output_tokens_are_taught_and_no_others() -> None:
    rows = PackedRows.of([*pack([Document((1, 2), (3, 4)), Document((5,), (6,)), Document((), (7, 8))], seq_len=10)])
    assert rows.token_ids_BT.tolist() == [[1, 2, 3, 4, 5, 6, 7, 8]]
    assert rows.documents_BT.tolist() == [[0, 0, 0, 0, 1, 1, 2, 2]]
    assert rows.positions_BT.tolist() == [[0, 1, 2, 3, 0, 1, 0, 1]]
    predicted = rows.token_ids_BT.roll(-1, 1)[rows.is_taught_BT]
    assert predicted.tolist() == [3, 4, 6, 8]  # before the 7 there is nothing


def test_nothing_of_the_padding_is_taught() -> None:
    rows = PackedRows.of([*pack([Document((1, 2), (3, 4))], seq_len=4), *pack([Document((5,), (6,))], seq_len=4)])
    assert (rows.documents_BT.tolist()[1], rows.positions_BT.tolist()[1]) == ([0, 0, 1, 1], [0, 1, 0, 1])
    assert rows.is_taught_BT.tolist()[1] == [True, False, False, False]


def test_the_draft_gives_each_document_the_logits_that_it_has_alone(documents: list[Document]) -> None:
    network = AutoModelForCausalLM.from_pretrained(DRAFT, dtype=torch.float32).eval()
    assert tells_documents(network, DRAFT)
    packed = list(pack(documents[:24], SEQ_LEN))
    rows = PackedRows.of(packed)
    with torch.no_grad():
        logits_BTV = packed_logits(network, rows)
        for number, row in enumerate(packed):
            first = 0
            for document in row.documents:
                tokens = _whole(document)
                alone_TV = network(input_ids=torch.tensor([tokens])).logits[0]
                torch.testing.assert_close(
                    logits_BTV[number, first : first + len(tokens)], alone_TV, atol=1e-4, rtol=1e-4
                )
                first += len(tokens)


@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
def test_an_unrolled_head_gives_each_document_the_logits_that_it_has_alone(model_type: str) -> None:
    network = random_network(head_config(layer={"model_type": model_type}, norm_output=True))
    generator = torch.Generator().manual_seed(0)
    lengths, num_steps = (5, 1, 9, 2, 4), 4
    tokens = [torch.randint(48, (length,), generator=generator) for length in lengths]
    features = [torch.randn(length, 96, generator=generator) for length in lengths]
    documents_1T = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))[None]
    with torch.no_grad():
        together = list(unrolled(network, torch.cat(tokens)[None], torch.cat(features)[None], num_steps, documents_1T))
        first = 0
        for ids_T, features_TX in zip(tokens, features, strict=True):
            alone = unrolled(network, ids_T[None], features_TX[None], num_steps)
            for logits_1PD, alone_1PD in zip(together, alone, strict=False):
                found = logits_1PD[:, first : first + alone_1PD.shape[1]]
                torch.testing.assert_close(found, alone_1PD, atol=2e-5, rtol=0)
            first += len(ids_T)


def test_a_network_that_cannot_tell_documents_is_known() -> None:
    network = AutoModelForCausalLM.from_pretrained(DRAFT, dtype=torch.float32).eval()
    whole = network.forward

    def blind(position_ids: torch.Tensor | None = None, **given: object) -> object:
        return whole(**given)

    network.forward = blind
    assert not tells_documents(network, DRAFT)


def test_documents_apart_are_those_of_the_rows_and_teach_what_they_taught() -> None:
    documents = [Document((1, 2), (3, 4), 0.5), Document((5,), (6,)), Document((), (7, 8, 9)), Document((10,), (11,))]
    rows = PackedRows.of([*pack(documents[:3], seq_len=9), *pack(documents[3:], seq_len=9)])
    apart, alone = rows.apart(), [PackedRows.of([*pack([document], seq_len=9)]) for document in documents]
    assert len(apart.token_ids_BT) == len(documents) + 1  # the padding is a document, of which nothing is taught
    for number, own in enumerate(alone):
        for found_BT, expected_BT in zip(vars(apart).values(), vars(own).values(), strict=True):
            assert found_BT[number, : expected_BT.shape[1]].equal(expected_BT[0])
        assert not apart.is_taught_BT[number, own.token_ids_BT.shape[1] :].any()
    assert not apart.is_taught_BT[-1].any()
