"""python-redis-lock: clients wait with BLPOP on a list, and a release pushes an element.

It supports whole seconds only, and no waits longer than the lease. Its BLPOP may take longer than the
socket timeout of redis-py, which is 5 s.
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
