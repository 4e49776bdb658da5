"""The options of a lock, and the durations that are accepted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypedDict

LONGEST = 365 * 24 * 3600  # Seconds. The server counts no longer times.


def duration(name: str, value: float, least: float = 0) -> float:
    """The value, if it is a duration that the server can count."""
    if not least <= value <= LONGEST:  # Nor is NaN.
        raise ValueError(f"{name} must be {least} to {LONGEST} seconds (365 days), not {value!r}")
    return value


def limit(value: float | None) -> float | None:
    """A timeout, or None if that is no limit."""
    if value is not None and not value >= 0:
        raise ValueError(f"timeout must be 0 seconds or more, or None for no limit, not {value!r}")
    return None if value is None or value > LONGEST else value


def whole(permits: int) -> int:
    if not isinstance(permits, int) or permits < 1:
        raise ValueError(f"permits must be a whole number of 1 or more, not {permits!r}")
    return permits


class LockOptions(TypedDict, total=False):
    """The keyword arguments of the methods that make locks. All times are in seconds.

    ``lease``: after so long without renewal the server ends the hold (30). ``renew``: whether the client renews
    it (True). ``timeout``: how long to wait; 0 tries once, and None, the default, means no limit. ``session``: the
    server ends the hold so long after its last connection was lost. ``grace``: a waiter on a fair lock keeps its
    place so long without a connection. ``owner``: a name instead of that of the thread or task, within this client.
    ``shared_owner``: a name that other clients may use, too, at the same time or after a restart; the server counts
    their acquisitions. ``note``: a text for people, stored with the hold. ``on_lost``: called with the hold when it is
    lost.

    ``lease`` and ``session`` are 0.01 s to 365 days, and ``grace`` 0 to 365 days. A ``timeout`` above 365 days, such
    as ``math.inf``, is no limit. Any other value is a :class:`ValueError`.
    """

    lease: float
    renew: bool
    timeout: float | None
    session: float | None
    grace: float | None
    owner: str | None
    shared_owner: str | None
    note: str | None
    on_lost: Callable[[Any], Any] | None


@dataclass(frozen=True)
class Options:
    lease: float = 30.0
    renew: bool = True
    timeout: float | None = None
    session: float | None = None
    grace: float | None = None
    owner: str | None = None
    shared_owner: str | None = None
    note: str | None = None
    on_lost: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        # The margin for clocks that drift leaves no time of a shorter lease.
        for name, value, least in (
            ("lease", self.lease, 0.01),
            ("session", self.session, 0.01),
            ("grace", self.grace, 0),
        ):
            if value is not None:
                duration(name, value, least)
        limit(self.timeout)
        if self.owner is not None and self.shared_owner is not None:
            raise ValueError("owner and shared_owner exclude each other")
        if self.session is not None and not self.renew:
            raise ValueError("session needs a lease that is renewed, not renew=False")
