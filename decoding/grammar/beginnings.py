"""Beginnings: which of some texts an output of a form may begin with, for one compilation of the form."""

from collections.abc import Sequence as Seq
from functools import lru_cache
from itertools import takewhile

from decoding.grammar.compiled import Compiled
from decoding.grammar.reader import Reader
from decoding.grammar.structured import Structured
from decoding.grammar.token_table import TokenTable


def first_possible(structured: Structured, beginnings: Seq[str]) -> str | None:
    """Return the first of these texts that an output of this form may begin with; None if it may with none of them.

    There is at least one text. White space is not added to them: where JSON may have white space, it may have none.
    Raises ValueError for a form that cannot be compiled, and for one that is too complex to be followed.
    """
    found = Compiled.of(_bytes(), structured)
    if isinstance(found, str):
        raise ValueError(found)
    reader = Reader(lambda _: found)
    texts = [beginning.encode() for beginning in beginnings]
    shared = _common(min(texts), max(texts))  # walked once; most forms of JSON stop within it
    if reader.commit(shared):
        for beginning, text in zip(beginnings, texts, strict=True):
            if reader.read(text[len(shared) :]):
                return beginning
            if reader.error:  # a limit of the library, which says nothing of the text
                break
    if reader.error:
        raise ValueError(f"sampling.structured.{structured.kind} cannot be followed: {reader.error}")
    return None


def _common(first: bytes, last: bytes) -> bytes:
    """Return what two texts begin with, and so all those that are sorted between them."""
    return bytes(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False)))


@lru_cache(maxsize=1)
def _bytes() -> TokenTable:
    """Return a vocabulary whose token ids are bytes, with an end token behind them."""
    return TokenTable.of_tokens([*(bytes([byte]) for byte in range(256)), b""], frozenset({256}))
