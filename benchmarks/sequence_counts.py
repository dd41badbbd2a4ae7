"""The counts of a finished sequence, in a file of its own: the harness runs where there is no pipeline."""

from decoding import Sequence
from pipeline.counts import Counts


def counts_of(sequence: Sequence) -> Counts:
    """Return what a finished sequence counted, of which a benchmark computes rates."""
    return Counts(
        num_output_tokens=len(sequence.output_token_ids),
        num_rounds=sequence.num_rounds,
        num_draft_tokens=sequence.num_draft_tokens,
        num_accepted_tokens=sequence.num_accepted_tokens,
    )
