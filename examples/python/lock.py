"""A lock for programs with threads, on redis-py and a server with rlock.

    client = redis.Redis()
    with Lock(client, "orders:42", lease_ms=30_000).held(wait_ms=5_000) as lock:
        write_to_the_database(fencing_token=lock.token)

`held` raises NotGranted when the wait is over. The lease is renewed while the block runs. `lock.lost` is an Event that is set if the lock
was lost all the same: what takes long looks at it.
"""

import contextlib
import threading
import time
import uuid

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

# How much longer than the server a client waits for the answer of BLOCK.
SOCKET_MARGIN_SECONDS = 1.0


class NotGranted(Exception):
    """Somebody else held the lock for all of the wait."""


class Lock:
    """One acquisition at a time. Threads share the client, and have a Lock each."""

    def __init__(self, client: redis.Redis, key: str, lease_ms: int = 30_000) -> None:
        self.client, self.key, self.lease_ms = client, key, lease_ms
        self.owner, self.token = "", 0
        self.lost = threading.Event()

    def acquire(self, wait_ms: int = 0) -> bool:
        # A name for this one acquisition: with ONCE, redis-py may then repeat the command after a lost reply.
        self.owner, self.token = str(uuid.uuid4()), 0
        self.lost.clear()
        deadline, is_superseded = time.monotonic() + wait_ms / 1000, False
        try:
            self.token = self._ask(self.client) or 0
            while not self.token and (left_ms := int((deadline - time.monotonic()) * 1000)) > 0:
                try:
                    self.token = self._wait(left_ms) or 0
                except (redis.ConnectionError, redis.TimeoutError):
                    time.sleep(0.1)  # Cut off while it waited: ask again, for what is left.
            return self.token > 0
        except redis.ResponseError as error:
            is_superseded = str(error).startswith("SUPERSEDED ")
            raise
        finally:
            # Whatever came to pass, an acquisition that is given up leaves neither a waiter nor a hold behind. After SUPERSEDED what waits in
            # this owner's name is a newer request, which goes on.
            if not self.token and not is_superseded:
                self._settle()

    def _ask(self, client: redis.Redis, *block) -> int | None:
        return client.execute_command("RLOCK.ACQUIRE", self.key, self.owner, "PX", self.lease_ms, "ONCE", *block)

    def _wait(self, ms: int) -> int | None:
        """BLOCK has a connection of its own, whose timeout is above that of the wait, and nothing is repeated behind our back."""
        options = dict(self.client.connection_pool.connection_kwargs)
        options |= {"socket_timeout": ms / 1000 + SOCKET_MARGIN_SECONDS, "retry": Retry(NoBackoff(), 0)}
        pool = redis.ConnectionPool(connection_class=self.client.connection_pool.connection_class, **options)
        with contextlib.closing(pool):
            return self._ask(redis.Redis(connection_pool=pool), "BLOCK", ms)

    def _settle(self) -> None:
        with contextlib.suppress(redis.RedisError):
            self.client.execute_command("RLOCK.CANCEL", self.key, self.owner)
            self.client.execute_command("RLOCK.RELEASE", self.key, self.owner)

    def renew(self) -> bool:
        return self._is_mine("RLOCK.RENEW", "PX", self.lease_ms)

    def release(self) -> bool:
        """False if the lock had been lost, or if an earlier RELEASE was carried out whose reply was lost."""
        return self._is_mine("RLOCK.RELEASE")

    def _is_mine(self, command: str, *options) -> bool:
        try:
            self.client.execute_command(command, self.key, self.owner, "TOKEN", self.token, *options)
            return True
        except redis.ResponseError as error:
            if str(error).split()[0] != "NOTOWNER":
                raise
            return False

    @contextlib.contextmanager
    def held(self, wait_ms: int = 0):
        if not self.acquire(wait_ms):
            raise NotGranted(self.key)
        done = threading.Event()
        renewer = threading.Thread(target=self._keep, args=(done,), daemon=True)
        renewer.start()
        try:
            yield self
        finally:
            done.set()
            renewer.join()
            self.release()

    def _keep(self, done: threading.Event) -> None:
        """Renews at a third of the lease. What was granted before a command was sent ends no earlier than a lease after that."""
        safe_until = time.monotonic() + self.lease_ms / 1000 * 2 / 3
        while not done.wait(self.lease_ms / 3000):
            sent = time.monotonic()
            with contextlib.suppress(redis.ConnectionError, redis.TimeoutError):
                if not self.renew():
                    break
                safe_until = sent + self.lease_ms / 1000
            if time.monotonic() > safe_until:
                break
        else:
            return
        self.lost.set()
