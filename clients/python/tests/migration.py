"""A process of a fleet that moves from redis-py's Lock. It takes the old lock, both, or the new one."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import sys
import time
from collections.abc import Callable, Iterator

import redis

from rlock_redis import Hold, LockTimeout, RLockClient

log = logging.getLogger(__name__)
KEY = "orders:42"
OLD_LEASE = NEW_LEASE = 3.0
TIMEOUT = 30.0


@contextlib.contextmanager
def both_locks(
    locks: RLockClient, old: redis.Redis, key: str, timeout: float, met_old: Callable[[], object]
) -> Iterator[Hold]:
    end = time.monotonic() + timeout
    with locks.lock(f"lock:{key}", timeout=timeout, lease=NEW_LEASE) as hold:  # The new lock first.
        old_lock = old.lock(key, timeout=OLD_LEASE)
        if not old_lock.acquire(blocking=False):
            met_old()  # A process that takes only the old lock holds it, or a crash has left it.
            if not old_lock.acquire(blocking_timeout=max(0.0, end - time.monotonic())):
                raise LockTimeout(f"{key}: the old lock was not free within {timeout} s")
        try:
            hold.check()  # LockLost, if the new lock was lost while this process waited for the old one.
            yield hold
        finally:
            try:
                old_lock.release()  # Before the new one.
            except redis.RedisError:  # Its lease ends it. The result or the error of the work goes on.
                log.warning("%s: the old lock was not released", key, exc_info=True)


def enter(store: redis.Redis) -> None:
    """The work. It notices any process that is in it at the same time."""
    me = str(os.getpid())
    if not store.set("inside", me, nx=True):
        other = store.get("inside")
        if other is None or os.path.exists(f"/proc/{other}"):
            store.rpush("overlaps", f"{me} found {other}")
        store.set("inside", me)  # Its process was killed in the work.
    time.sleep(random.uniform(0.002, 0.008))
    if (now := store.get("inside")) != me:
        store.rpush("overlaps", f"{me} was joined by {now}")
    store.delete("inside")


def main(kind: str, port: int) -> None:
    store = redis.Redis(port=port, decode_responses=True)
    locks = RLockClient(redis.Redis(port=port))
    scopes: dict[str, Callable[[], contextlib.AbstractContextManager[object]]] = {
        "old": lambda: store.lock(KEY, timeout=OLD_LEASE, blocking_timeout=TIMEOUT),
        "both": lambda: both_locks(locks, store, KEY, TIMEOUT, lambda: store.incr("met-old")),
        "new": lambda: locks.lock(f"lock:{KEY}", timeout=TIMEOUT, lease=NEW_LEASE),
    }
    while not store.exists(f"stop:{os.getpid()}"):
        with scopes[kind]():
            enter(store)
        store.incr(f"done:{kind}")
        time.sleep(random.uniform(0.01, 0.05))
    locks.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
