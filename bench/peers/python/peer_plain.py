"""A hand-written lock: SET NX PX with a random value and a sleep between attempts; a script deletes the key if it has that value."""

import time
import uuid

import redis

DELETE_IF_MINE = """
if redis.call("GET", KEYS[1]) == ARGV[1] then
    return redis.call("DEL", KEYS[1])
end
return 0
"""


class NotMine(Exception):
    """The lease has expired."""


class Peer:
    def __init__(self, arguments) -> None:
        self.lease_ms = arguments.lease_ms
        self.retry_seconds = {"sleep-10ms": 0.01, "sleep-100ms": 0.1}[arguments.variant]
        self.client = redis.Redis(host=arguments.host, port=arguments.port, max_connections=arguments.clients)
        self.delete_if_mine = self.client.register_script(DELETE_IF_MINE)

    def acquire(self, key: str, wait_seconds: float):
        token, deadline = str(uuid.uuid4()), time.monotonic() + wait_seconds
        while not self.client.set(key, token, nx=True, px=self.lease_ms):
            if time.monotonic() >= deadline:
                return None
            time.sleep(self.retry_seconds)
        return lambda: self._release(key, token)

    def _release(self, key: str, token: str) -> None:
        if not self.delete_if_mine(keys=[key], args=[token]):
            raise NotMine(key)
