"""python-redis-lock: who waits does so in a BLPOP of a list, into which the one that frees the lock puts an element.

It knows whole seconds only, and a wait no longer than the lease. Its BLPOP takes longer than the 5 s after which redis-py's sockets time out.
"""

import math

import redis
import redis_lock


class Peer:
    def __init__(self, arguments) -> None:
        self.expire = math.ceil(arguments.lease_ms / 1000)
        self.client = redis.Redis(host=arguments.host, port=arguments.port, max_connections=arguments.clients, socket_timeout=None)

    def acquire(self, key: str, wait_seconds: float):
        lock = redis_lock.Lock(self.client, key, expire=self.expire)
        wait = min(math.ceil(wait_seconds), self.expire)
        return lock.release if lock.acquire(timeout=wait) else None
