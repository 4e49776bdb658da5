"""A lock that is free as soon as its holder dies, on redis-py and a server with rlock.

    with SessionLock("redis://localhost", "orders:42").held(wait_ms=5_000) as token:
        write_to_the_database(fencing_token=token)

The hold is bound to one connection, which is this lock's own from the wait to the end: a pool closes what idles, and with that the session. The server
notices a process that died at once. For a machine that vanished there are `tcp-keepalive` and the lease: so renew, by `renew`, at a third of it.
"""

import contextlib
import uuid

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

SOCKET_MARGIN_SECONDS = 1.0


class SessionLock:
    """One thread of control has one. Nothing is repeated: what becomes of the connection becomes of the hold."""

    def __init__(self, url: str, key: str, lease_ms: int = 30_000, session_ms: int = 0) -> None:
        self.url, self.key, self.lease_ms, self.session_ms = url, key, lease_ms, session_ms

    @contextlib.contextmanager
    def held(self, wait_ms: int):
        """The token, or TimeoutError when the wait is over."""
        owner, timeout = str(uuid.uuid4()), wait_ms / 1000 + SOCKET_MARGIN_SECONDS
        pinned = redis.Redis.from_url(self.url, single_connection_client=True, socket_timeout=timeout, retry=Retry(NoBackoff(), 0))
        with contextlib.closing(pinned):
            self._ask = lambda command, *options: pinned.execute_command(command, self.key, owner, *options)
            token = self._ask("RLOCK.ACQUIRE", "PX", self.lease_ms, "SESSION", self.session_ms, "ONCE", "BLOCK", max(wait_ms, 1))
            if token is None:
                raise TimeoutError(self.key)
            try:
                yield token
            finally:
                # Whatever goes wrong here, the end of the connection is the end of the hold.
                with contextlib.suppress(redis.RedisError):
                    self._ask("RLOCK.RELEASE", "TOKEN", token)

    def renew(self) -> None:
        """Raises if the connection has failed, or the lease has ended: then the lock is lost."""
        self._ask("RLOCK.RENEW", "PX", self.lease_ms)
