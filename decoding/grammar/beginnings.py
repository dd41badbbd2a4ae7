"""Beginnings: which of some texts an output of a form may begin with, for one compilation of the form."""

from collections.abc import Sequence as Seq
from functools import lru_cache
from itertools import takewhile

from decoding.grammar.grammars import compiled
from decoding.grammar.library_error import in_one_line
from decoding.grammar.structured import Structured
from decoding.grammar.token_table import TokenTable


def first_possible(structured: Structured, beginnings: Seq[str]) -> str | None:
    """Return the first of these texts that an output of this form may begin with; None if it may with none of them.

    There is at least one text. White space is not added to them: where JSON may have white space, it may have none.
    Raises ValueError for a form that cannot be compiled, and for one that is too complex to be followed.
    """
    walked = compiled(_bytes(), structured)
    if isinstance(walked, str):
        raise ValueError(walked)
    texts = [beginning.encode() for beginning in beginnings]
    shared = _common(min(texts), max(texts))  # walked once; most forms of JSON stop within it
    if walked.try_consume_tokens(list(shared)) == len(shared):
        for beginning, text in zip(beginnings, texts, strict=True):
            rest, copy = list(text[len(shared) :]), walked.deep_copy()
            if copy.try_consume_tokens(rest) == len(rest) and not copy.is_error():
                return beginning
            if copy.is_error():  # a limit of the library, which says nothing of the text
                raise ValueError(_too_complex(structured, copy.get_error()))
    if walked.is_error():
        raise ValueError(_too_complex(structured, walked.get_error()))
    return None


def _common(first: bytes, last: bytes) -> bytes:
    """Return what two texts begin with, and so all those that are sorted between them."""
    return bytes(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False)))


def _too_complex(structured: Structured, error: str) -> str:
    return f"sampling.structured.{structured.kind} cannot be followed: {in_one_line(error)}"


@lru_cache(maxsize=1)
def _bytes() -> TokenTable:
    """Return a vocabulary whose token ids are bytes, with an end token behind them."""
    return TokenTable.of_tokens([*(bytes([byte]) for byte in range(256)), b""], frozenset({256}))
