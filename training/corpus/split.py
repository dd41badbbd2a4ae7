"""The split of a corpus into rows to train on and rows that are held out, by prompt alone.

All samples of a prompt fall on the same side, whatever the order of the rows, the files and the runs: else a draft
would be evaluated on prompts that it has seen.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence


def is_held_out(prompt_token_ids: Sequence[int], share: float) -> bool:
    """Tell whether rows with this prompt are held out. A larger share holds out the same prompts, and more."""
    digest = hashlib.sha256(struct.pack(f"<{len(prompt_token_ids)}i", *prompt_token_ids)).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64
