"""A draft with another tokenizer is loaded with a map of its tokens, if enough of what the target writes are such."""

import json
import logging
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from decoding import Engine, EngineOptions
from tests.decoding.tiny import numbered, outputs, run
from tests.decoding.vocabulary.tiny_tokenizers import permuted
from tests.text_pair import save_text_pair, save_tokenizer

PAIR = Path(__file__).parents[3] / "examples" / "tiny_pair"
TARGET, DRAFT = str(PAIR / "target"), str(PAIR / "draft")
OPTIONS = EngineOptions(num_slots=4, num_speculative_tokens=4, draft_length="fixed", max_model_len=160)
PROMPTS = [
    "<|user|>\nHow many apples are left if Ann has 12 and gives 5 away?<|end|>\n<|assistant|>\n",
    "<|user|>\nWrite a sentence about the sea.<|end|>\n<|assistant|>\n",
    "<|user|>\nWhat is 17 + 25?<|end|>\n<|assistant|>\n",
]


@pytest.fixture(scope="module")
def permuted_draft(tmp_path_factory) -> str:
    """The bundled draft, whose ids stand for other tokens than the target's; the special ones keep theirs."""
    folder = tmp_path_factory.mktemp("draft")
    network = AutoModelForCausalLM.from_pretrained(DRAFT, dtype=torch.float32)
    num_special, size = 5, network.config.vocab_size
    order = torch.randperm(size - num_special, generator=torch.Generator().manual_seed(0)) + num_special
    ids = [*range(num_special), *order.tolist()]
    permuted(network, ids).save_pretrained(folder)
    for file in Path(DRAFT).glob("token*"):
        shutil.copy(file, folder)
    described = json.loads((folder / "tokenizer.json").read_text())
    new_ids = {old: new for new, old in enumerate(ids)}
    described["model"]["vocab"] = {token: new_ids[old] for token, old in described["model"]["vocab"].items()}
    (folder / "tokenizer.json").write_text(json.dumps(described))
    return str(folder)


def written(draft: str, prompts: list[list[int]], **how: object) -> tuple[list[list[int]], int, int]:
    """What the bundled target writes with this draft, and how many tokens were drafted and accepted."""
    engine = Engine.load(TARGET, draft, OPTIONS, device="cpu", dtype="float32", **how)
    rows = run(engine, numbered(prompts, temperature=0.8, max_tokens=60))
    return outputs(rows), sum(row.num_draft_tokens for row in rows), sum(row.num_accepted_tokens for row in rows)


def test_the_bundled_draft_with_permuted_ids_is_accepted_like_the_bundled_draft(permuted_draft, caplog):
    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    prompts = [tokenizer(prompt)["input_ids"] for prompt in PROMPTS]
    texts, num_drafted, num_accepted = written(DRAFT, prompts)
    with caplog.at_level(logging.INFO, logger="decoding.engine.load"):
        mapped, num_mapped, num_mapped_accepted = written(permuted_draft, prompts, draft_vocabulary="map")
    assert mapped == texts
    assert num_mapped_accepted / num_mapped > 0.95 * num_accepted / num_drafted
    assert "has 3072 of the 3072 tokens of" in caplog.text
    assert "100% of what it writes" in caplog.text


def test_without_a_map_the_error_names_it(permuted_draft):
    with pytest.raises(ValueError, match=r"does not share the vocabulary .*models.draft_vocabulary 'map'"):
        Engine.load(TARGET, permuted_draft, OPTIONS, device="cpu", dtype="float32")


def test_a_draft_that_lacks_most_of_what_the_target_writes_is_refused(tmp_path):
    target, draft = save_text_pair(tmp_path)
    save_tokenizer(Path(draft))
    described = json.loads((Path(draft) / "tokenizer.json").read_text())
    vocabulary = described["model"]["vocab"]
    letters = [token for token in vocabulary if len(token) == 1]
    for token in letters[:200]:
        vocabulary["unlike " + token] = vocabulary.pop(token)
    described["model"]["merges"] = []
    (Path(draft) / "tokenizer.json").write_text(json.dumps(described))
    with pytest.raises(ValueError, match=r"has \d+ of the \d+ tokens of .*% of what it writes, expected at least 60%"):
        Engine.load(target, draft, OPTIONS, device="cpu", dtype="float32", draft_vocabulary="map")


def test_a_head_has_no_vocabulary_to_map(tmp_path):
    options = EngineOptions(drafter="eagle3")
    (tmp_path / "config.json").write_text(json.dumps({"speculators_model_type": "eagle3"}))
    with pytest.raises(ValueError, match=r"is a draft head, whose tokens are its target's; drop one"):
        options.check_draft_vocabulary(str(tmp_path), "map")
