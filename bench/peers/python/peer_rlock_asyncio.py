"""The package rlock-redis for asyncio, with one client for the process."""

import redis.asyncio
from peer_rlock import Locks
from rlock_redis import AsyncRLockClient


class Peer:
    def __init__(self, arguments) -> None:
        self.locks = Locks(AsyncRLockClient(redis.asyncio.Redis(host=arguments.host, port=arguments.port)), arguments)
        self.permits, self.made = arguments.permits if arguments.lock == "semaphore" else 0, set()

    async def acquire(self, key: str, wait_seconds: float):
        lock = self.locks.of(key)
        if self.permits and key not in self.made:
            await lock.init(self.permits)
            self.made.add(key)
        return lock.release if await lock.acquire(timeout=wait_seconds) else None
