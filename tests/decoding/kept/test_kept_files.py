"""A kept file is what was written, for the layout of these kernels; folders and disks that take none stop no engine."""

import hashlib
import json
import logging
import mmap
import os
import random
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from decoding.checkpoint import model_files
from decoding.checkpoint.model_files import file_digest
from decoding.fused.live_weights import LiveWeights
from decoding.fused.packed_linear import pack_linears
from decoding.kept import file, models
from decoding.kept.models import load_checked
from decoding.network.language_model import LanguageModel
from tests.decoding.codes.test_coded_models import logits
from tests.decoding.kept.test_kept_models import files, saved
from tests.small_disk import small_disk

Usage = namedtuple("Usage", "free")


def test_another_kernel_layout_type_of_numbers_or_version_does_not_take_it(folder, tmp_path, monkeypatch):
    path = saved(tmp_path / "model")
    load_checked(path, "cpu")
    assert not load_checked(path, "cpu", "bfloat16").is_kept
    with monkeypatch.context() as patch:
        patch.setenv("DRAY_KERNELS_TILES", "emulated")
        tiled = load_checked(path, "cpu", "bfloat16")
        plain = LanguageModel.load(path, "cpu", "bfloat16")
        plain.speed_up()
        assert not tiled.is_kept, "nor one for tiles that of vectors"
        assert torch.equal(logits(tiled, 9), logits(plain, 9))
        assert load_checked(path, "cpu", "bfloat16").is_kept
    for name in ("linear_kind", "linear_columns"):
        with monkeypatch.context() as patch:
            patch.setattr(models, name, lambda *_: "another")
            assert not load_checked(path, "cpu").is_kept
    monkeypatch.setattr(models, "_OWN_DIGEST", "another")
    assert not load_checked(path, "cpu").is_kept
    assert len(files(folder)) == 6


@pytest.mark.parametrize("changed", ["cpu/kernels/tiles.h", "cpu/kernels/cpu.cpp", "fused/coded_linear.py"])
def test_a_change_of_what_lays_weights_out_or_reads_them_changes_the_digest_of_our_sources(
    tmp_path, monkeypatch, changed
):
    sources = Path(models.__file__).parents[1]
    shutil.copytree(sources, tmp_path / "decoding", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(models, "__file__", str(tmp_path / "decoding/kept/models.py"))
    assert models._own_digest() == models._OWN_DIGEST
    with (tmp_path / "decoding" / changed).open("a") as source:
        source.write("\n")
    assert models._own_digest() != models._OWN_DIGEST


def test_each_of_two_files_of_one_name_is_in_the_key(tmp_path):
    path = Path(saved(tmp_path / "model"))
    (path / "model.safetensors").rename(path / "own.safetensors")
    shards = ["own.safetensors", "1/own.safetensors", "2/own.safetensors"]
    index = {"weight_map": {str(number): shard for number, shard in enumerate(shards)}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    for part in ("1", "2"):
        (path / part).mkdir()
        save_file({part: torch.zeros(1)}, path / part / "own.safetensors")
    key = models._key(str(path), "cpu", "float32")
    save_file({"1": torch.ones(1)}, path / "1" / "own.safetensors")
    assert models._key(str(path), "cpu", "float32") != key


@pytest.mark.parametrize("unit", [512, 4096])
def test_parts_of_a_file_that_are_missing_or_in_another_order_change_its_sum(tmp_path, unit):
    made = tmp_path / "made"
    content = random.Random(0).randbytes((4 << 20) + 3 * unit + 5)
    made.write_bytes(content)
    before, (a, b) = file._sum(made), (content[:unit], content[unit : 2 * unit])
    for changed in (b + a, a + bytes(unit), a + a, a):
        made.write_bytes(changed + content[2 * unit :])
        assert file._sum(made) != before


def test_a_file_that_has_other_numbers_than_were_written_is_deleted_and_lends_none(
    folder, tmp_path, monkeypatch, caplog
):
    path = saved(tmp_path / "model")
    expected, save = logits(load_checked(path, "cpu")), torch.save
    files(folder)[0].unlink()

    def damaged(content: file.Content, place: Path) -> None:  # as by a mount that says too late that it is full
        layer = content["layers"][-1]
        packed = layer["packed"].clone()
        packed.view(-1)[-64:] = 0
        save({**content, "layers": [*content["layers"][:-1], {**layer, "packed": packed}]}, place)

    monkeypatch.setattr(torch, "save", damaged)
    with caplog.at_level(logging.WARNING):
        model = load_checked(path, "cpu")
    assert "has other numbers than were written into it" in caplog.text
    assert torch.equal(logits(model), expected)
    assert not files(folder)


def test_weights_of_a_head_are_replaced_and_those_that_its_target_lends_it_stay_in_their_file(tmp_path):
    target = load_checked(saved(tmp_path / "model"), "cpu")
    lent, before = target.network.get_output_embeddings(), logits(target)
    head = torch.nn.Module()
    head.own = torch.nn.Linear(64, 64, bias=False)
    pack_linears(head)
    head.lm_head = lent
    LiveWeights(head, ["lm_head.weight"]).put({"own.weight": torch.ones(64, 64)})
    assert torch.equal(head.own.weight, torch.ones(64, 64))
    assert lent.is_lent
    assert torch.equal(logits(target), before)


@pytest.mark.parametrize("why", ["full", "nearly full", "no folder", "no home"])
def test_a_disk_that_takes_nothing_costs_one_warning(folder, tmp_path, monkeypatch, caplog, why):
    path = saved(tmp_path / "model")
    folder.parent.mkdir()
    models._say_once.cache_clear()
    caplog.set_level(logging.WARNING)
    if why == "no folder":
        folder.write_text("a file stands where the folder would")
    if why == "no home":
        monkeypatch.delenv("DRAY_CACHE")
        monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home directory")))
    if why == "full":
        monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1 << 40))  # and then others fill it
    if "full" in why:
        with small_disk(folder, "64k") as disk:
            assert not any(load_checked(path, "cpu").is_kept for _ in range(2))
            assert [each.name for each in disk.iterdir()] == ["lock"]
    else:
        assert not any(load_checked(path, "cpu").is_kept for _ in range(2))
    (said,) = caplog.messages
    assert "weights are not kept for the next start" in said
    assert ("bytes free" in said) == (why == "nearly full")


def test_a_system_without_huge_pages_keeps_weights_and_copies_them(folder, tmp_path, monkeypatch):
    path = saved(tmp_path / "model")
    expected = logits(load_checked(path, "cpu"))
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE")
    monkeypatch.setattr(file, "has_huge_pages", lambda _: False)
    (own,) = files(folder)
    assert torch.equal(logits(load_checked(path, "cpu")), expected)
    own.unlink()
    assert not load_checked(path, "cpu").is_kept
    model = load_checked(path, "cpu")
    assert model.is_kept
    assert torch.equal(logits(model), expected)


def test_an_error_that_is_not_of_the_file_leaves_it(folder, tmp_path, monkeypatch):
    path = saved(tmp_path / "model")
    load_checked(path, "cpu")
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    with pytest.raises(ValueError, match="multiplies float32 with less"):
        load_checked(path, "cpu")
    assert len(files(folder)) == 1


def test_files_that_change_while_a_model_loads_are_not_kept_as_what_they_were(folder, tmp_path, monkeypatch):
    path, other = (saved(tmp_path / str(seed), seed) for seed in (1, 2))
    check_model = models.check_model

    def check_and_change(model: LanguageModel, name: str) -> None:
        check_model(model, name)
        shutil.copyfile(Path(other) / "model.safetensors", Path(path) / "model.safetensors")

    monkeypatch.setattr(models, "check_model", check_and_change)
    load_checked(path, "cpu")
    assert not files(folder)


def test_a_file_that_no_engine_has_used_for_a_month_is_deleted_when_another_one_is_written(folder, tmp_path):
    used, unused, other = (saved(tmp_path / str(seed), seed) for seed in (1, 2, 3))
    load_checked(used, "cpu")
    (kept,) = files(folder)
    load_checked(unused, "cpu")
    (old,) = set(files(folder)) - {kept}
    mine = folder / "models of mine"
    mine.mkdir()
    for each in (kept, old, mine):
        os.utime(each, (0, 0))
    assert load_checked(used, "cpu").is_kept
    load_checked(other, "cpu")
    assert kept.exists()
    assert not old.exists()
    assert mine.exists(), "what is not ours is not deleted"
    assert len(files(folder)) == 2


def test_what_a_killed_writer_has_left_is_deleted_by_the_next_one(folder, tmp_path):
    left = folder / ".unfinished-1"
    left.mkdir(parents=True)
    (left / "made").write_bytes(b"half")
    load_checked(saved(tmp_path / "model"), "cpu")
    assert not left.exists()
    assert len(files(folder)) == 1


def test_a_file_is_read_again_only_when_it_has_changed(tmp_path, monkeypatch):
    weights = tmp_path / "weights"
    weights.write_bytes(b"one")
    first = file_digest(weights)
    with monkeypatch.context() as patch:
        patch.setattr(model_files.hashlib, "file_digest", None)
        assert file_digest(weights) == first
    stat = weights.stat()
    while weights.stat().st_ctime_ns == stat.st_ctime_ns:  # some systems have steps of milliseconds
        weights.write_bytes(b"two")
        os.utime(weights, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # as a copy that keeps times would leave it
    assert file_digest(weights) == hashlib.sha256(b"two").hexdigest()
