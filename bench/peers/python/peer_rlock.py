"""rlock without a dedicated client: its commands with redis-py, and waits with BLOCK.

As in docs/clients.md: each acquisition has its own owner and says ONCE, and socket timeouts are longer
than the wait. After a broken connection this program repeats the request, for the remaining time; the
library does not.
"""

import math
import time
import uuid

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

SOCKET_MARGIN_SECONDS = 60.0
ASK_AGAIN_SECONDS = 0.02
FAMILIES = {"mutex": "RLOCK", "fair": "RFAIRLOCK", "read": "RRWLOCK", "write": "RRWLOCK", "semaphore": "RSEMAPHORE"}


class Peer:
    def __init__(self, arguments) -> None:
        self.family = FAMILIES[arguments.lock]
        self.mode = (arguments.lock.upper(),) if self.family == "RRWLOCK" else ()
        self.lease_ms, self.permits = arguments.lease_ms, arguments.permits
        # Frees the lock when the connection of a killed holder closes.
        self.session = ("SESSION", 0) if arguments.hold == "yes" else ()
        self.made: set[str] = set()
        self.client = redis.Redis(
            host=arguments.host,
            port=arguments.port,
            max_connections=arguments.clients,
            socket_timeout=arguments.seconds + SOCKET_MARGIN_SECONDS,
            retry=Retry(NoBackoff(), 0),
        )

    def acquire(self, key: str, wait_seconds: float):
        if self.family == "RSEMAPHORE" and key not in self.made:
            self.client.execute_command("RSEMAPHORE.INIT", key, self.permits)
            self.made.add(key)
        held, deadline = (key, str(uuid.uuid4()), *self.mode), time.monotonic() + wait_seconds
        request = (f"{self.family}.ACQUIRE", *held, "PX", self.lease_ms, *self.session, "ONCE", "BLOCK")
        token = self._until(deadline, lambda: (*request, max(1, math.ceil((deadline - time.monotonic()) * 1000))))
        if token is None:
            return None
        ends = time.monotonic() + self.lease_ms / 1000
        return lambda: self._release((f"{self.family}.RELEASE", *held, "TOKEN", token), ends)

    def _release(self, command: tuple, ends: float) -> None:
        try:
            self._until(ends, lambda: command)
        except redis.ResponseError as error:
            # If the lease has not expired: it was already released, and the answer lost.
            if not str(error).startswith("NOTOWNER ") or time.monotonic() > ends:
                raise

    def _until(self, deadline: float, command):
        while True:
            try:
                return self.client.execute_command(*command())
            except (redis.ConnectionError, redis.TimeoutError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(ASK_AGAIN_SECONDS)
