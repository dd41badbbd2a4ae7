"""LikelyText: what a JSON text will probably say next, where its grammar leaves only the white space free.

Where white space is free, hardly anything is forced: a blank may stand before each name. But the same grammar without
white space says what comes next in all else, and a text mostly goes on with the white space that it began with. Both
together are a draft. It may be wrong, as any other draft.
"""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from copy import copy
from typing import TYPE_CHECKING

from decoding.grammar.token_table import TokenTable

if TYPE_CHECKING:
    from llguidance import LLMatcher

_WHITE_SPACE = b" \n\r\t"
_OPENING, _CLOSING, _QUOTE, _BACKSLASH = b"{[", b"}]", ord('"'), ord("\\")
_AT_FIRST = {ord(":"): b" ", ord(","): b" "}  # behind these bytes, until the text shows what it has there
_MOST_WRONG = 2  # more tokens wrong than right after which a text is not guessed any more
Place = tuple[int, int, int]  # the byte before and behind some white space, and how many brackets are open


class _Scanner:
    """A reader of JSON that knows whether it stands in a text, and how deep."""

    in_text = is_escaped = False
    before = 0  # the last byte that is not white space
    num_open = 0

    def place(self, byte: int) -> Place:
        """Return the place of white space before this byte."""
        return self.before, byte if byte in _CLOSING else 0, self.num_open

    def read(self, byte: int) -> None:
        """Read a byte that is not white space between tokens of JSON."""
        if self.in_text:
            self.in_text = self.is_escaped or byte != _QUOTE
            self.is_escaped = not self.is_escaped and byte == _BACKSLASH
        elif byte == _QUOTE:
            self.in_text = True
        elif byte in _OPENING:
            self.num_open += 1
        elif byte in _CLOSING:
            self.num_open -= 1
        self.before = byte


class LikelyText:
    """One text, and the grammar that it would have without white space."""

    def __init__(self, table: TokenTable, compiled: Callable[[], "LLMatcher"]) -> None:
        """Begin before the first token. `compiled` makes a fresh matcher of the grammar without white space."""
        self._table, self._compiled = table, compiled
        self._tight: LLMatcher | None = None
        self._num_read = 0  # tokens
        self._scanner = _Scanner()
        self._white_space = b""  # that was read behind the scanner
        self._seen: dict[Place, bytes] = {}  # the last white space at each place
        self._guess: tuple[int, list[int]] = (0, [])  # where it was made, and its tokens
        self._num_wrong = 0  # more than right
        self._is_lost = False

    def after(self, committed: Seq[int]) -> list[int]:
        """Return the tokens that probably follow the committed output tokens; often there is none."""
        self._judge(committed)
        if self._tight is None:
            self._tight = self._compiled()
        for token_id in committed[self._num_read :]:
            self._read(token_id)
        self._num_read = len(committed)
        if self._is_lost or self._num_wrong > _MOST_WRONG:
            return []
        forced = self._tight.compute_ff_bytes()
        tokens = self._table.tokens_of(self._spaced(forced)) if forced else []
        self._guess = (len(committed), tokens)
        return tokens

    def _judge(self, committed: Seq[int]) -> None:
        made_at, tokens = self._guess
        written = committed[made_at : made_at + len(tokens)]
        for guessed, token_id in zip(tokens, written, strict=False):
            self._num_wrong += 1 if guessed != token_id else -1 if self._num_wrong > -_MOST_WRONG else 0
            if guessed != token_id:
                break
        self._guess = (0, [])

    def _read(self, token_id: int) -> None:
        """Read a token of the text, and what is left of it without white space into the other grammar."""
        if self._is_lost or self._tight is None:
            return
        written = self._table.bytes_of(token_id)
        left = bytearray()
        for byte in written:
            if not self._scanner.in_text and byte in _WHITE_SPACE:
                self._white_space += bytes((byte,))
                continue
            if not self._scanner.in_text:
                self._seen[self._scanner.place(byte)] = self._white_space
                self._white_space = b""
            self._scanner.read(byte)
            left.append(byte)
        rest = [token_id] if len(left) == len(written) else self._table.tokens_of(bytes(left)) if left else []
        self._is_lost = self._tight.try_consume_tokens(rest) != len(rest) or self._tight.is_error()

    def _spaced(self, forced: bytes) -> bytes:
        """Return a text without white space with what the text so far had at such places."""
        scanner, written, spaced = copy(self._scanner), self._white_space, bytearray()
        for byte in forced:
            if not scanner.in_text:
                usual = self._seen.get(scanner.place(byte), _AT_FIRST.get(scanner.before, b""))
                spaced += usual[len(written) :] if usual.startswith(written) else b""
                written = b""
            spaced.append(byte)
            scanner.read(byte)
        return bytes(spaced)
