"""RetokenizedText: a row's text in the tokens of a draft with another tokenizer, kept up to date as the target writes.

New text changes the last tokens before it ("Hel" and "lo" become "Hello"), and no others: so the last ones are written
anew with it, and the row's earlier tokens stay.
"""

from decoding.vocabulary.vocabulary_map import VocabularyMap

_LOOK_BACK = 16  # tokens of the draft that are written anew; the text before them has no part in it


class RetokenizedText:
    """The draft's tokens of one row. They write the same text as the target's, whatever the steps it came in.

    A tokenizer that begins each text with a space may put further ones behind bytes that are no characters.
    """

    def __init__(self, vocabulary: VocabularyMap) -> None:
        """Begin with no text."""
        self._vocabulary = vocabulary
        self._written = bytearray()
        self._ends: list[int] = []  # where each token ends in what is written
        self.token_ids: list[int] = []  # of the draft
        self.num_read = 0  # tokens of the target
        self.can_be_read = True  # whether the draft has tokens for all of the text

    def extend(self, token_ids: list[int]) -> int:
        """Append what further tokens of the target write; return how many of the draft's earlier tokens stay."""
        self.num_read += len(token_ids)
        added = self._vocabulary.written(token_ids)
        if added is None:
            self.can_be_read = False
            return 0
        self._written += added
        kept = max(0, len(self.token_ids) - _LOOK_BACK)
        first = self._ends[kept - 1] if kept else 0
        found = self._vocabulary.draft_tokens(bytes(self._written[first:]))
        if found is None:
            self.can_be_read = False
            return 0
        tokens, ends = found[0], [first + end for end in found[1]]
        if kept:
            num_stay, num_dropped = self._common_boundary(self._ends[kept:], ends)
            kept, tokens, ends = kept + num_stay, tokens[num_dropped:], ends[num_dropped:]
        elif tokens[:1] != self._vocabulary.first_ids:
            first_ids = self._vocabulary.first_ids
            tokens, ends = [*first_ids, *tokens], [0] * len(first_ids) + ends
        self.token_ids[kept:], self._ends[kept:] = tokens, ends
        return kept

    @staticmethod
    def _common_boundary(before: list[int], after: list[int]) -> tuple[int, int]:
        """Return how many tokens of each list there are up to a place where a token ends in both.

        The first such place in the latter half is taken, since tokens at the beginning may miss what stood before them;
        without one the last in the first half.
        """
        numbers = {end: number for number, end in enumerate(after, start=1)}  # of several that end there, the last
        earlier = {end: number for number, end in enumerate(before, start=1)}
        found = [(number, numbers[end]) for end, number in earlier.items() if end in numbers]
        late = [pair for pair in found if pair[0] >= _LOOK_BACK // 2]
        return late[0] if late else found[-1] if found else (0, 0)
