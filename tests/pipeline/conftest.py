"""Fixtures of the tests of rows: a tiny tokenizer, input files, and runs with made-up generations."""

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from pipeline.run.directory import RunDirectory
from pipeline.storage.location import Location
from pipeline.text.codec import TextCodec
from tests.pipeline.flaky_proxy import FlakyProxy, flaky_proxy
from tests.pipeline.made_up import committed_run
from tests.pipeline.stores import CREDENTIALS, gcs_uri, running_gcs_server, running_s3_server, s3_uri
from tests.small_disk import small_disk
from tests.text_pair import save_byte_fallback_tokenizer

CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{% if not loop.last or "
    "m['role'] != 'assistant' %}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}{{ mood }}"
)


@pytest.fixture(scope="session")
def tokenizer_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE tokenizer on disk, with special tokens and a chat template."""
    path = tmp_path_factory.mktemp("tokenizer")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        special_tokens=["<|bos|>", "<|end|>", "<|user|>", "<|system|>", "<|assistant|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the cat sat on the mat, stop there", "über Käse 日本語 日本 🙂🙂"] * 20, trainer)
    tokenizer.post_processor = processors.TemplateProcessing("<|bos|> $A", special_tokens=[("<|bos|>", 0)])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|bos|>",
        eos_token="<|end|>",
        additional_special_tokens=["<|user|>", "<|system|>", "<|assistant|>"],
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def codec(tokenizer_path: Path) -> TextCodec:
    return TextCodec.load(str(tokenizer_path))


@pytest.fixture(scope="session")
def space_dropping_codec(tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    """A codec in the manner of Llama 2: "▁" for spaces, the first of them dropped, and bytes as a fallback."""
    path = tmp_path_factory.mktemp("space_dropping")
    save_byte_fallback_tokenizer(path)
    return TextCodec.load(str(path))


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, bytes], str]:
    """A function that writes bytes to a file under the test's folder and returns its path."""

    def write_bytes(name: str, content: bytes) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return str(path)

    return write_bytes


@pytest.fixture
def finished_run(tmp_path: Path) -> RunDirectory:
    """A run of 2 units, 3 rows each; row 1 of unit 1 is an error, every other row has 2 samples."""
    return committed_run(tmp_path / "run")


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The host:port of an S3 server that runs as long as the tests."""
    with pytest.MonkeyPatch.context() as patch, running_s3_server() as address:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        yield address


@pytest.fixture
def s3_folder(s3_server: str) -> str:
    """The URI of a folder in a bucket that only this test uses."""
    return s3_uri(s3_server, f"bucket-{uuid.uuid4().hex}/folder")


@pytest.fixture(scope="session")
def gcs_server() -> Iterator[str]:
    """The host:port of a server of Google's protocol that runs as long as the tests."""
    with running_gcs_server() as address:
        yield address


@pytest.fixture
def gs_folder(gcs_server: str) -> str:
    """The URI of a folder that only this test uses."""
    return gcs_uri(gcs_server, f"{uuid.uuid4().hex}/folder")


@pytest.fixture(params=["s3_folder", "gs_folder"])
def store_folder(request: pytest.FixtureRequest) -> str:
    """The URI of a folder in each of the stores."""
    return str(request.getfixturevalue(request.param))


@pytest.fixture(params=["tmp_path", "s3_folder", "gs_folder"])
def anywhere(request: pytest.FixtureRequest) -> Location:
    """An empty folder on the disk and in each of the stores."""
    return Location.parse(str(request.getfixturevalue(request.param)))


@pytest.fixture
def proxy(s3_server: str) -> Iterator[FlakyProxy]:
    """A proxy in front of the S3 server that fails as the test asks it to."""
    with flaky_proxy(s3_server) as running:
        yield running


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 256 KiB, for tests that fill it; where this process may not mount one, the test is skipped."""
    with small_disk(tmp_path / "disk", "256k") as path:
        yield path
