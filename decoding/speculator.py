"""Speculator: a draft head as an object of its own, from its folder to the texts that it speeds up.

    speculator = Speculator.from_pretrained("RedHatAI/Qwen3-8B-speculator.eagle3")  # reads the head alone
    speculator.attach("Qwen/Qwen3-8B")  # loads the target, checks the head beside it
    speculator.generate([[1, 2, 3]], SamplingParams(max_tokens=50))  # the target's own text

`Engine.load(target, head)` does all three; here a head can also be looked at, converted, and taken off its target. For
training, `attach(target, parts="head")` reads no layer of the target, and gives what a trainer needs beside the head.
"""

from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Literal, overload

from decoding.checkpoint.loading import DType
from decoding.checkpoint.supported import model_folder
from decoding.choices import DRAFTER_OF_HEAD
from decoding.device import Device
from decoding.engine.engine import Engine
from decoding.engine.load import Parts
from decoding.engine.options import EngineOptions, settle_max_model_len
from decoding.heads.attach import attach
from decoding.heads.dflash_head import DFlashHead
from decoding.heads.eagle3_head import Eagle3Head
from decoding.heads.format.folder import Head, read_head, save_head
from decoding.heads.format.head_config import Format, HeadConfig
from decoding.heads.target_parts import TrainableHead
from decoding.network.language_model import LanguageModel
from decoding.network.probe import check_model
from decoding.sampling_params import SamplingParams
from decoding.sequence import Sequence
from decoding.vocabulary.grammars import grammars_of

TargetPart = Literal["all", "head"]  # the whole target, or what is around its layers


class Speculator:
    """A head, and its target once it is attached."""

    def __init__(self, head: Head, path: str) -> None:
        """Take a head that was read from `path`."""
        self._read, self.path = head, path
        self.target: LanguageModel | None = None
        self.head: Eagle3Head | DFlashHead | None = None  # beside the target
        self.trainable: TrainableHead | None = None  # beside the parts of the target that are no layers

    @classmethod
    def from_pretrained(cls, path: str, target: str | None = None, parts: TargetPart = "all") -> "Speculator":
        """Read the head in a folder or hub model, which says what it is; with `target`, attach these parts at once.

        Raises ValueError, in one line that names the folder, for one that is no head, or one that Dray does not know.
        """
        path = model_folder(path)
        speculator = cls(read_head(path), path)
        if target is not None:
            speculator.attach(target, parts=parts)
        return speculator

    @property
    def config(self) -> HeadConfig:
        """What the folder says."""
        return self._read.config

    @overload
    def attach(
        self,
        target: str | LanguageModel | None = None,
        *,
        parts: Literal["all"] = "all",
        device: Device = "auto",
        dtype: DType = "auto",
    ) -> LanguageModel: ...
    @overload
    def attach(
        self, target: str | None = None, *, parts: Literal["head"], device: Device = "auto", dtype: DType = "auto"
    ) -> TrainableHead: ...
    @overload
    def attach(
        self, target: str | None = None, *, parts: TargetPart, device: Device = "auto", dtype: DType = "auto"
    ) -> LanguageModel | TrainableHead: ...
    def attach(
        self,
        target: str | LanguageModel | None = None,
        *,
        parts: TargetPart = "all",
        device: Device = "auto",
        dtype: DType = "auto",
    ) -> LanguageModel | TrainableHead:
        """Put the head beside a target, and return that: a model, or a path (by default the one that the head names).

        The target must have no other user. With `parts` "head" only its embedding, final norm and output layer are read
        from its files, no layer, and a TrainableHead is returned. Raises ValueError for a head of another target.
        """
        if self.target is not None or self.trainable is not None:
            raise RuntimeError(f"{self.path!r} is attached already; detach it first")
        named = self.config.target_name if target is None else target
        if named is None:
            raise ValueError(f"{self.path!r} does not name its target; name it")
        if parts == "head":
            if not isinstance(named, str):
                raise ValueError("parts 'head' reads a target's files, and got a model that is loaded; name its folder")
            self.trainable = TrainableHead.load(self.path, self._read, named, device, dtype)
            return self.trainable
        if isinstance(named, str):
            model = LanguageModel.load(named, device, dtype)
            check_model(model, named)
        else:
            model = named
        self.head = attach(self.path, model, model.network.name_or_path, self._read)
        self.target = model
        return model

    def detach(self) -> None:
        """Take the head off its target, which is then as it was before."""
        if self.target is not None:
            self.target.hand_out(None)
            self.target.release()
        self.target = self.head = self.trainable = None

    def save_pretrained(self, path: str, form: Format = "speculators") -> None:
        """Write the head into a new folder, in a format; never the target's tensors.

        Raises ValueError if the folder is not empty, and for what the format cannot say.
        """
        save_head(self._read, path, form)

    def generate(
        self, prompts: Seq[Seq[int]], params: SamplingParams, options: EngineOptions | None = None, *, seed: int = 0
    ) -> list[Sequence]:
        """Return every prompt's `params.n` samples, in order: the target's own text, drafted by the head."""
        if self.trainable is not None:
            raise RuntimeError(
                f"only the head's parts of the target of {self.path!r} are here, which write no text; attach the whole "
                "target"
            )
        if self.target is None or self.head is None:
            raise RuntimeError(f"{self.path!r} has no target yet; attach one first")
        drafter = DRAFTER_OF_HEAD[self.config.kind]
        options = replace(options or EngineOptions(), drafter=drafter)
        length = settle_max_model_len(options.max_model_len, self.target.max_positions)
        grammars = grammars_of(self.target.network.name_or_path, self.target.vocab_size, self.target.eos_token_ids)
        engine = Engine.over(Parts(self.target, self.head, drafter, length, grammars=grammars), options)
        try:
            return engine.generate(prompts, params, seed=seed)
        finally:
            self.target.hand_out(None)
            self.target.release()
