"""ReplicaSettings: the limits of an engine behind the endpoint."""

from dataclasses import dataclass

from decoding.scope import Scope


@dataclass(frozen=True, kw_only=True)
class ReplicaSettings:
    """The limits of a replica, and when it counts as healthy."""

    max_waiting: int = 64
    """Samples that may wait for a slot of an engine; a request beyond them gets 429."""
    hang_timeout_s: float = 900.0
    """Seconds for one step of an engine; a process that takes longer hangs, and is ended."""
    share_drafts: bool = False
    """Look drafts up in the texts of all API keys: a request may be shown what another key's requests wrote."""
    share_prefixes: bool = False
    """Copy what was computed for any API key: cached_tokens and time tell that another key sent a prompt before."""
    fresh_s: float = 10.0  # an engine that wrote a token within this time is healthy; otherwise it is tried
    probe_timeout_s: float = 20.0  # for that trial
    fingerprint: str = ""  # of everything that the tokens depend on; requests for another one are refused
    num_reserved: int | None = None  # slots that rows of batches leave to requests; a quarter unless given

    def __post_init__(self) -> None:
        if self.max_waiting < 0:
            raise ValueError(f"serve.max_waiting must not be negative, got {self.max_waiting}")
        for name in ("fresh_s", "probe_timeout_s", "hang_timeout_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"serve.{name} must be above 0 seconds, got {getattr(self, name)}")

    def scope_of(self, owner: str) -> Scope:
        """Return the scope of an owner's rows."""
        return Scope("" if self.share_drafts else owner, "" if self.share_prefixes else owner)
