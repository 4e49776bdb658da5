"""A lock for asyncio, on redis-py and a server with rlock. Thousands of waiters share the client's connections and one subscription.

    locks = await Locks.on(redis.asyncio.Redis())
    async with locks.held("orders:42", lease_ms=30_000, wait_ms=5_000) as hold:
        await write_to_the_database(fencing_token=hold.token)

`held` raises NotGranted when the wait is over. The lease is renewed while the block runs, which is cancelled if the lock is lost.
"""

import asyncio
import contextlib
import itertools
import time
import uuid
from dataclasses import dataclass

from redis import asyncio as redis

# A message may be lost with the connection that it was for. So whoever waits asks again so often, with the same number: that keeps its place.
ASK_AGAIN_SECONDS = 2.0


class NotGranted(Exception):
    """Somebody else held the lock for all of the wait."""


@dataclass
class Hold:
    key: str
    owner: str
    lease_ms: int
    token: int = 0


class Locks:
    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self.channel = f"rlock:{uuid.uuid4()}"
        self.ids = itertools.count(1)  # Unique on the channel.
        self.waiting: dict[int, asyncio.Future] = {}

    @classmethod
    async def on(cls, client: redis.Redis) -> "Locks":
        locks = cls(client)
        locks.subscription = client.pubsub(ignore_subscribe_messages=True)
        await locks.subscription.subscribe(locks.channel)
        locks.listener = asyncio.create_task(locks._listen())
        return locks

    async def _listen(self) -> None:
        while True:
            try:
                message = await self.subscription.get_message(timeout=None)
            except redis.RedisError:
                await asyncio.sleep(0.1)  # The next call connects and subscribes anew.
                continue
            if message:  # granted ID TOKEN | nil ID | error ID CODE TEXT
                what, number, *rest = message["data"].decode().split(" ", 2)
                future = self.waiting.get(int(number))
                if future and not future.done():
                    future.set_result((what, rest[0] if rest else ""))

    async def close(self) -> None:
        self.listener.cancel()
        await asyncio.gather(self.listener, return_exceptions=True)
        await self.subscription.aclose()

    async def acquire(self, key: str, lease_ms: int = 30_000, wait_ms: int = 0) -> Hold | None:
        # A name for this one acquisition: nothing that is repeated for it can become a second hold.
        hold, is_superseded = Hold(key, str(uuid.uuid4()), lease_ms), False
        try:
            hold.token = await self._token(hold, wait_ms)
        except redis.ResponseError as error:
            is_superseded = str(error).startswith("SUPERSEDED ")  # A newer request in this owner's name goes on.
            raise
        finally:
            if not hold.token and not is_superseded:  # Also when the caller was cancelled: leaves neither a waiter nor a hold behind.
                await asyncio.shield(self._settle(hold))
        return hold if hold.token else None

    async def _token(self, hold: Hold, wait_ms: int) -> int:
        deadline, number = time.monotonic() + wait_ms / 1000, next(self.ids)
        request = ("RLOCK.ACQUIRE", hold.key, hold.owner, "PX", hold.lease_ms, "ONCE", "REQ")
        while (left_ms := int((deadline - time.monotonic()) * 1000)) > 0:
            future = self.waiting[number] = asyncio.get_running_loop().create_future()
            try:
                # WAITING: the answer comes on the channel.
                answer = await self.client.execute_command(*request, number, "BLOCK", left_ms, "NOTIFY", self.channel)
                if answer not in (b"WAITING", "WAITING"):  # Text with decode_responses.
                    return answer or 0
                what, text = await asyncio.wait_for(future, min(ASK_AGAIN_SECONDS, left_ms / 1000))
                if what == "granted":
                    return int(text)
                number = next(self.ids)  # This number is used up.
                if what == "error" and not text.startswith("UNBLOCKED"):
                    raise redis.ResponseError(text)
            except (redis.ConnectionError, redis.TimeoutError):
                await asyncio.sleep(0.1)
            except asyncio.TimeoutError:
                pass
            finally:
                self.waiting.pop(number, None)
        return await self.client.execute_command(*request, number) or 0  # Ends the wait, or is granted.

    async def _settle(self, hold: Hold) -> None:
        with contextlib.suppress(redis.RedisError):
            await self.client.execute_command("RLOCK.CANCEL", hold.key, hold.owner)
            await self.client.execute_command("RLOCK.RELEASE", hold.key, hold.owner)

    async def renew(self, hold: Hold) -> bool:
        return await self._is_mine("RLOCK.RENEW", hold, "PX", hold.lease_ms)

    async def release(self, hold: Hold) -> bool:
        """False if the lock had been lost, or if an earlier RELEASE was carried out whose reply was lost."""
        return await self._is_mine("RLOCK.RELEASE", hold)

    async def _is_mine(self, command: str, hold: Hold, *options) -> bool:
        try:
            await self.client.execute_command(command, hold.key, hold.owner, "TOKEN", hold.token, *options)
            return True
        except redis.ResponseError as error:
            if str(error).split()[0] != "NOTOWNER":
                raise
            return False

    @contextlib.asynccontextmanager
    async def held(self, key: str, lease_ms: int = 30_000, wait_ms: int = 0):
        hold = await self.acquire(key, lease_ms, wait_ms)
        if hold is None:
            raise NotGranted(key)
        renewer = asyncio.create_task(self._keep(hold, asyncio.current_task()))
        try:
            yield hold
        finally:
            renewer.cancel()
            await asyncio.gather(renewer, return_exceptions=True)
            await self.release(hold)

    async def _keep(self, hold: Hold, user: asyncio.Task) -> None:
        """Renews at a third of the lease, and cancels the user when the lease may have ended."""
        safe_until = time.monotonic() + hold.lease_ms / 1000 * 2 / 3
        while time.monotonic() < safe_until:
            await asyncio.sleep(hold.lease_ms / 3000)
            sent = time.monotonic()
            with contextlib.suppress(redis.ConnectionError, redis.TimeoutError):
                if not await self.renew(hold):
                    break
                safe_until = sent + hold.lease_ms / 1000
        user.cancel("the lock was lost")
