"""Scope: with which other rows a row has in common what was written and computed before.

It changes no token: a draft is never more than a proposal, and what is copied is what would be computed. But who sees
how long a row takes, how much of it was copied, and what was drafted in vain, sees something of the rows behind that.
An endpoint gives the rows of each API key a scope of their own; all rows of a job have one.
"""

from typing import NamedTuple


class Scope(NamedTuple):
    """Two names. Rows share what they have an equal name for."""

    texts: str = ""  # in which drafts are looked up
    prefixes: str = ""  # whose keys and values are copied


ONE_FOR_ALL = Scope()  # of the rows of a job
