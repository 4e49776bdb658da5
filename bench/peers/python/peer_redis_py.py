"""redis-py's own Lock, from one client whose pool gives each thread a connection. It retries every 0.1 s, its default."""

import redis


class Peer:
    def __init__(self, arguments) -> None:
        self.lease_seconds = arguments.lease_ms / 1000
        self.client = redis.Redis(host=arguments.host, port=arguments.port, max_connections=arguments.clients)

    def acquire(self, key: str, wait_seconds: float):
        lock = self.client.lock(key, timeout=self.lease_seconds)
        return lock.release if lock.acquire(blocking_timeout=wait_seconds) else None
