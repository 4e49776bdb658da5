"""The options of a lock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypedDict


class LockOptions(TypedDict, total=False):
    """The keyword arguments of the methods that make locks. All times are in seconds.

    ``lease``: after so long without renewal the server ends the hold (30). ``renew``: whether the client renews
    it (True). ``timeout``: how long to wait; None, the default, means no limit. ``session``: the server ends the
    hold so long after its last connection was lost. ``grace``: a waiter on a fair lock keeps its place so long
    without a connection. ``owner``: a name instead of that of the thread or task. ``note``: a text for people,
    stored with the hold. ``on_lost``: called with the hold when it is lost.
    """

    lease: float
    renew: bool
    timeout: float | None
    session: float | None
    grace: float | None
    owner: str | None
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
    note: str | None = None
    on_lost: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        for name, value, least in (("lease", self.lease, 0.001), ("session", self.session, 0.01)):
            if value is not None and not value >= least:
                raise ValueError(f"{name} must be {least} seconds or more, not {value!r}")
        if self.session is not None and not self.renew:
            raise ValueError("session needs a lease that is renewed, not renew=False")
