"""rlock without a client of its own: its commands over redis-py, and waits by BLOCK.

As docs/clients.md has it: an owner for each acquisition and ONCE; sockets that time out later than the wait, and no command that is repeated.
"""

import math
import uuid

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

SOCKET_MARGIN_SECONDS = 60.0
FAMILIES = {"mutex": "RLOCK", "fair": "RFAIRLOCK", "read": "RRWLOCK", "write": "RRWLOCK", "semaphore": "RSEMAPHORE"}


class Peer:
    def __init__(self, arguments) -> None:
        self.family = FAMILIES[arguments.lock]
        self.mode = (arguments.lock.upper(),) if self.family == "RRWLOCK" else ()
        self.lease_ms, self.permits = arguments.lease_ms, arguments.permits
        # A process that is killed while it holds is noticed by the end of its connection.
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
        held = (key, str(uuid.uuid4()), *self.mode)
        wait_ms = math.ceil(wait_seconds * 1000)
        token = self.client.execute_command(f"{self.family}.ACQUIRE", *held, "PX", self.lease_ms, *self.session, "ONCE", "BLOCK", wait_ms)
        if token is None:
            return None
        return lambda: self.client.execute_command(f"{self.family}.RELEASE", *held, "TOKEN", token)
