"""Distributed locks on Redis or Valkey with the rlock module.

import redis
from rlock_redis import RLockClient

locks = RLockClient(redis.Redis())
with locks.lock("orders:42") as hold:
    write_to_the_database(fencing_token=hold.token)
"""

from ._async import AsyncHold, AsyncLock, AsyncRLockClient, AsyncSemaphore
from ._hold import Hold
from ._options import LockOptions
from ._sync import Leader, Lock, RLockClient, Semaphore, SyncHold
from .errors import (
    Closed,
    Deadlock,
    LockError,
    LockLost,
    LockTimeout,
    ModuleMissing,
    ModuleTooOld,
    Refused,
    Superseded,
    Unavailable,
)

__version__ = "0.1.0"

__all__ = [
    "AsyncHold",
    "AsyncLock",
    "AsyncRLockClient",
    "AsyncSemaphore",
    "Closed",
    "Deadlock",
    "Hold",
    "Leader",
    "Lock",
    "LockError",
    "LockLost",
    "LockOptions",
    "LockTimeout",
    "ModuleMissing",
    "ModuleTooOld",
    "RLockClient",
    "Refused",
    "Semaphore",
    "Superseded",
    "SyncHold",
    "Unavailable",
]
