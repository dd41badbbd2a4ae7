"""Heads of each kind learn from their targets, and what they write drafts what they say, under published names."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from transformers import Gemma4AssistantForCausalLM

from decoding import SamplingParams
from decoding.drafters.base import NoDrafter
from decoding.drafters.making import make_drafter
from decoding.heads import attach
from decoding.heads.mtp.files import own_head
from decoding.network.language_model import LanguageModel
from tests.decoding.drafters.over_heads import Watched, engine_over
from tests.decoding.heads import tiny_assistants
from tests.decoding.heads.mtp.tiny_targets import FAMILIES, save_target
from tests.decoding.heads.test_vllm_fields import FIELDS, TENSORS
from tests.decoding.tiny import build, llama_config, outputs, random_prompts, save
from training.learners.ahead import AheadLearner
from training.learners.assistant_learner import AssistantLearner
from training.learners.head_learner import HeadLearner
from training.learners.mtp_learner import MtpLearner
from training.learners.packing import Document, PackedRow, PackedRows, pack
from training.learners.teacher import Teacher
from training.trainer.optimizer import Optimizer

STEPS_AHEAD, NUM_STEPS = 4, 30
MTP = [f"mtp of {family}" for family in FAMILIES]
KINDS = ["eagle3", "eagle3 of a hybrid", "dflash", "dflash2", "assistant", *MTP]


def _learner(kind: str, root: Path) -> AheadLearner:
    if kind == "assistant":
        target = save(tiny_assistants.target_of("large"), root / "target")
        return AssistantLearner.new(Teacher.load(target, "cpu", "float32"), STEPS_AHEAD)
    if kind in MTP or "hybrid" in kind:
        target, _ = save_target(kind.removeprefix("mtp of ") if kind in MTP else "qwen3_5", root / "target")
        teacher = Teacher.load(target, "cpu", "float32")
        return MtpLearner.new(teacher, STEPS_AHEAD) if kind in MTP else HeadLearner.new(teacher, None, STEPS_AHEAD)
    teacher = Teacher.load(save(build(llama_config(), 1), root / "target"), "cpu", "float32")
    return HeadLearner.new(teacher, range(3, 40), STEPS_AHEAD, kind=kind)


def _documents(vocab_size: int) -> list[Document]:
    texts = random_prompts([23, 9, 30, 4, 17, 26, 12, 21], vocab_size)
    return [Document(tuple(text[:2]), tuple(text[2:])) for text in texts]


def _loss(learner: AheadLearner, rows: PackedRows) -> torch.Tensor:
    return learner.step(rows, 0.0).loss / learner.num_predictions(rows)


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], SimpleNamespace]:
    """A learner of a kind that has learned a little, its losses before and after, and the folder that it wrote."""
    found: dict[str, SimpleNamespace] = {}

    def of(kind: str) -> SimpleNamespace:
        if kind not in found:
            root = tmp_path_factory.mktemp("learned")
            learner = _learner(kind, root)
            rows = PackedRows.of([*pack(_documents(learner.teacher.vocab_size), 64)])
            optimizer, losses = Optimizer(learner.network, 1e-2, warmup=0.1, clip=1.0), []
            before = {name: weight.detach().clone() for name, weight in learner.network.named_parameters()}
            for step in range(NUM_STEPS):
                loss = _loss(learner, rows)
                loss.backward()
                optimizer.step(step / NUM_STEPS)
                losses.append(loss.item())
            learner.save(str(root / "out"))
            folders = {"target": root / "target", "out": root / "out"}
            found[kind] = SimpleNamespace(learner=learner, losses=losses, before=before, **folders)
        return found[kind]

    return of


@pytest.mark.parametrize("kind", KINDS)
def test_a_few_steps_lower_the_loss_and_move_every_weight(kind: str, learned: Callable[[str], SimpleNamespace]) -> None:
    case = learned(kind)
    assert case.losses[-1] < 0.8 * case.losses[0]
    now = {name: weight for name, weight in case.learner.network.named_parameters() if weight.requires_grad}
    assert [name for name, weight in now.items() if weight.equal(case.before[name])] == []


@pytest.mark.parametrize("kind", KINDS)
def test_packed_documents_teach_what_each_teaches_alone(kind: str, learned: Callable[[str], SimpleNamespace]) -> None:
    learner = learned(kind).learner
    documents = _documents(learner.teacher.vocab_size)
    together = PackedRows.of([*pack(documents, 64)])
    alone = [PackedRows.of([*pack([document], 64)]) for document in documents]
    with torch.no_grad():
        losses = [float(learner.step(rows, 0.0).loss) for rows in alone]
        assert float(learner.step(together, 0.0).loss) == pytest.approx(sum(losses), rel=1e-4)
    assert learner.num_predictions(together) == sum(learner.num_predictions(rows) for rows in alone)


@torch.no_grad()
def _own_draft(learner: AheadLearner, tokens: list[int], drafted: list[int]) -> list[int]:
    """What a learner drafts behind a text, given that it has drafted these tokens so far."""
    text = (*tokens, *drafted)
    rows = learner.readable(PackedRows.of([PackedRow([Document((), text)], len(text))]))
    ids_D, _ = learner._ids(rows.token_ids_BT.device)
    found, pair = [], (len(tokens) - 2) // learner.every
    for parts, _ in zip(learner.drafted(rows)[1], drafted, strict=False):
        base_D, logits_D = parts[0][0, pair], parts[-1][0, pair]
        best_C = base_D.topk(16 if len(parts) > 1 else len(base_D)).indices  # of which a selector chooses
        best = best_C[logits_D[best_C].argmax()]
        found.append(int(best if ids_D is None else ids_D[best]))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_drafts_what_was_learned(
    kind: str, learned: Callable[[str], SimpleNamespace], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = learned(kind)
    monkeypatch.setattr(attach, "LEAST_AGREEMENT", 0.0)
    path = str(case.out if kind in MTP else case.target)
    target = LanguageModel.load(path, "cpu", "float32")
    if kind in MTP:
        name, head = "mtp", attach.attach_own(target, path)
    elif kind == "assistant":
        name, head = kind, attach.attach_assistant(str(case.out), target, path)
    else:
        name, head = "dflash" if "dflash" in kind else "eagle3", attach.attach(str(case.out), target, path)
        head.layer_ids = case.learner.config.layer_ids  # measured, another reading may be as good for texts like these
    drafter_class = type(make_drafter(name, head.share(), target.vocab_size, 1, 8, target=target))
    own = (head.share(), target) if kind == "assistant" else (head.share(),)
    drafter = type("Watched" + drafter_class.__name__, (Watched, drafter_class), {"seen": []})(*own, 3, 80)
    params = SamplingParams(max_tokens=16, temperature=0)
    prompts = random_prompts([9, 3, 17, 5, 8], target.vocab_size)
    plain = outputs(engine_over(target.share(), NoDrafter()).generate(prompts, params))
    assert outputs(engine_over(target, drafter, num_drafted=STEPS_AHEAD).generate(prompts, params)) == plain
    assert max(len(drafted) for _, drafted, _ in drafter.seen) == STEPS_AHEAD
    for tokens, drafted, _ in (each for each in drafter.seen if len(each[0]) % case.learner.every == 0):
        assert drafted == _own_draft(case.learner, tokens, drafted), tokens


@pytest.mark.parametrize("kind", MTP)
def test_an_mtp_head_has_the_names_of_published_ones_beside_the_target_as_it_was(
    kind: str, learned: Callable[[str], SimpleNamespace]
) -> None:
    case = learned(kind)
    was = load_file(case.target / "model.safetensors")
    weight_map = json.loads((case.out / "model.safetensors.index.json").read_text())["weight_map"]
    now = {name: load_file(case.out / file)[name] for name, file in weight_map.items()}
    stored = [load_file(file).keys() for file in case.out.glob("*.safetensors")]
    assert sum(map(len, stored)) == len(now)  # nothing of the head that was there before
    published = set(was) - {name for module in own_head(str(case.target)).modules[1:] for name in module.values()}
    assert now.keys() == published
    assert [name for name in now if now[name].shape != was[name].shape] == []
    of_head = set(own_head(str(case.out)).modules[0].values())
    assert [name for name in now.keys() - of_head if not now[name].equal(was[name])] == []
    field = "mtp_num_hidden_layers" if "qwen3_5" in kind else "num_nextn_predict_layers"  # which vLLM 0.33 reads
    assert json.loads((case.out / "config.json").read_text())[field] == 1


def test_a_head_that_a_target_carries_learns_on(learned: Callable[[str], SimpleNamespace], tmp_path: Path) -> None:
    case = learned("mtp of qwen3_5")
    learner = MtpLearner.load(Teacher.load(str(case.out), "cpu", "float32"), STEPS_AHEAD)
    rows = PackedRows.of([*pack(_documents(learner.teacher.vocab_size), 64)])
    assert _loss(learner, rows).item() == pytest.approx(_loss(case.learner, rows).item(), rel=1e-5)
    learner.save(str(tmp_path / "again"))
    own, again = own_head(str(case.out)).read(0), own_head(str(tmp_path / "again")).read(0)
    assert [name for name in own if not own[name].equal(again[name])] == []


def test_transformers_own_class_reads_an_assistant_and_drafts_its_tokens(
    learned: Callable[[str], SimpleNamespace],
) -> None:
    case = learned("assistant")
    with tiny_assistants.buildable():
        theirs = Gemma4AssistantForCausalLM.from_pretrained(case.out).eval()
    target = tiny_assistants.target_of("large")
    for tokens in random_prompts([9, 3, 17], target.config.vocab_size):
        drafted = tiny_assistants.drafts_of(theirs, target, tokens, STEPS_AHEAD)
        assert drafted == _own_draft(case.learner, tokens, drafted)


@pytest.mark.parametrize("kind", ["dflash", "dflash2"])
def test_a_head_of_blocks_says_what_vllm_reads(kind: str, learned: Callable[[str], SimpleNamespace]) -> None:
    case = learned(kind)
    said, tensors = json.loads((case.out / "config.json").read_text()), load_file(case.out / "model.safetensors")
    assert (said["speculators_model_type"], said["block_size"]) == (kind, STEPS_AHEAD + 1)
    assert [name for name in ("draft_vocab_size", *FIELDS[kind]) if said.get(name) is None] == []
    assert [name for name in TENSORS[kind] if name not in tensors] == []
    assert "embed_tokens.weight" not in tensors
    on = HeadLearner.load(str(case.out), case.learner.teacher, steps_ahead=9)
    assert on.steps_ahead == STEPS_AHEAD  # a block keeps its size
    rows = PackedRows.of([*pack(_documents(48), 64)])
    assert _loss(on, rows).item() == pytest.approx(_loss(case.learner, rows).item(), rel=1e-5)
