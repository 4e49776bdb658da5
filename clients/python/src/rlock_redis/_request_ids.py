"""The ids of requests, and what a fork changes."""

from __future__ import annotations

import itertools
import os
import time
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._base import Base

# The ids of an owner must rise, also over a restart of the process.
_ids = itertools.count(time.time_ns() // 1000)
clients: weakref.WeakSet[Base[Any, Any, Any]] = weakref.WeakSet()


def next_id() -> int:
    return next(_ids)


def _after_fork() -> None:
    global _ids
    # A child that is replaced by another one has used ids above the parent's.
    _ids = itertools.count(max(next(_ids), time.time_ns() // 1000))
    for client in clients:
        client._begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
