"""The package rlock-redis, with one client for the process."""

import redis
from rlock_redis import RLockClient

SESSION_SECONDS = 0.2  # How long a hold outlives the connections of a process that was killed.


class Locks:
    """The lock objects of a client: one for each key."""

    def __init__(self, client, arguments) -> None:
        self.client, self.kind, self.locks = client, arguments.lock, {}
        self.options = {"lease": arguments.lease_ms / 1000}
        if arguments.hold == "yes":
            self.options["session"] = SESSION_SECONDS

    def of(self, key: str):
        if key not in self.locks:
            names = {"mutex": "lock", "fair": "fair_lock", "read": "read_lock", "write": "write_lock", "semaphore": "semaphore"}
            self.locks[key] = getattr(self.client, names[self.kind])(key, **self.options)
        return self.locks[key]


class Peer:
    def __init__(self, arguments) -> None:
        self.locks = Locks(RLockClient(redis.Redis(host=arguments.host, port=arguments.port)), arguments)
        self.permits, self.made = arguments.permits if arguments.lock == "semaphore" else 0, set()

    def acquire(self, key: str, wait_seconds: float):
        lock = self.locks.of(key)
        if self.permits and key not in self.made:
            lock.init(self.permits)
            self.made.add(key)
        return lock.release if lock.acquire(timeout=wait_seconds) else None
