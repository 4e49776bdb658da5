"""redis-py's own Lock for asyncio, from one client whose pool gives each task a connection. It retries every 0.1 s, its default."""

import redis.asyncio


class Peer:
    def __init__(self, arguments) -> None:
        self.lease_seconds = arguments.lease_ms / 1000
        self.client = redis.asyncio.Redis(host=arguments.host, port=arguments.port, max_connections=arguments.clients)

    async def acquire(self, key: str, wait_seconds: float):
        lock = self.client.lock(key, timeout=self.lease_seconds)
        return lock.release if await lock.acquire(blocking_timeout=wait_seconds) else None
