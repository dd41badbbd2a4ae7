"""Tests that need Triton's interpreter: collected only where TRITON_INTERPRET=1 is set (`test_interpreted.py` does)."""

from decoding.gpu.available import is_interpreted

collect_ignore_glob = [] if is_interpreted() else ["*"]
