"""Choices: the names by which a configuration picks device, arithmetic, drafter and rule. Nothing here needs torch."""

from typing import Literal, get_args

Device = Literal["auto", "cpu", "cuda"]
DType = Literal["auto", "float32", "bfloat16", "float16"]
Exact = Literal["auto", "on", "off"]  # whether a GPU's products are those in which no row depends on the batch
Fused = Literal["auto", "required"]  # whether a model whose layers do not run fused is refused
Verification = Literal["coupled", "rejection", "unadjusted"]
DrafterName = Literal["none", "ngram", "suffix", "model", "eagle3", "dflash", "mtp", "assistant", "hybrid"]
# A drafter, its draft (a folder, a hub name, or the target's own head), and a name of both that no other one has.
Turn = tuple[DrafterName, str | None, str]

TEXT_IS_THE_TARGETS: tuple[Verification, ...] = ("coupled",)  # token for token, whatever the draft
TEXT_DEPENDS_ON_DRAFT: tuple[Verification, ...] = ("rejection", "unadjusted")
LOSSY: tuple[Verification, ...] = ("unadjusted",)  # it does not keep the target's distribution, either
DRAFTERS: tuple[DrafterName, ...] = get_args(DrafterName)
NEED_A_HEAD: tuple[DrafterName, ...] = ("eagle3", "dflash", "mtp", "assistant")
OWN_HEAD, OWN_HEAD_IF_ANY = "mtp", "auto"  # as a draft: the head in the target's own files, or that if there is one
NEED_A_MODEL: tuple[DrafterName, ...] = ("model", *NEED_A_HEAD, "hybrid")
LOOK_UP: tuple[DrafterName, ...] = ("ngram", "suffix", "hybrid")  # tokens in texts, predictions among them
DRAFTER_OF_HEAD: dict[str, DrafterName] = {  # by the kind of the head
    "peagle": "eagle3",
    "eagle3": "eagle3",
    "dflash": "dflash",
    "dflash2": "dflash",
    "dspark": "dflash",
    "mtp": "mtp",
    "assistant": "assistant",
}
