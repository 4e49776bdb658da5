"""The asyncio client, on redis-py or valkey-py."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import inspect
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

from ._attempt import Attempt, Mailbox
from ._base import Base, Exit, LockBase, entering
from ._clock import FOREVER, LONG_PAUSE, PING, SHORT_PAUSE, TICK
from ._commands import Command, Message
from ._connections import Route, Subscriber, T, done
from ._hold import Hold, log
from ._options import LockOptions
from .errors import LockError, LockLost, LockTimeout, Unavailable

if TYPE_CHECKING:
    from typing_extensions import Unpack

MAX_ASKING = 16  # Connections to a server for requests that acquire; renewals and releases do not queue behind these.


class AsyncHold(Hold):
    """A lock that a task holds."""

    def __init__(self, attempt: Attempt, tokens: Sequence[int], sent: float, left: float) -> None:
        super().__init__(attempt, tokens, sent, left)
        self._end_event = asyncio.Event()
        self._blocks: list[_Block] = []
        self._interrupted: set[asyncio.Task[Any]] = set()  # Those that the loss has cancelled.

    async def wait(self) -> None:
        """Waits until the hold has ended, by loss or release."""
        await self._end_event.wait()

    async def release(self, keep: float | None = None) -> None:
        """Releases this acquisition, in any task. Otherwise as :meth:`AsyncLock.release`."""
        await self._client._release(self, keep)

    def _ended(self, lost: bool) -> None:
        self._end_event.set()
        if lost and asyncio.current_task() is None:  # Before the tasks that wake up in the same step of the loop.
            self._interrupt()
        elif lost:  # Not at once: the task may be leaving the block, and would be cancelled in what follows.
            asyncio.get_running_loop().call_soon(self._interrupt)
        if lost and self._options.on_lost is not None:
            try:
                result = self._options.on_lost(self)
                if inspect.isawaitable(result):
                    self._client._spawn(done(result))
            except Exception:
                log.exception("on_lost failed")

    def _interrupt(self) -> None:
        tasks = {block.task for block in self._blocks}
        self._interrupted = {task for task in tasks if not _is_cancelled(task) and task.cancel(self)}

    def _lost_instead(self, block: _Block, error: BaseException | None) -> bool:
        """Whether the cancellation that ends the block is ours alone."""
        self._blocks.remove(block)
        task, cancelling = block.task, block.cancelling
        if task not in self._interrupted:
            return False
        self._interrupted.remove(task)
        if task is not asyncio.current_task():
            return False
        if sys.version_info >= (3, 11):
            return task.uncancel() <= cancelling and isinstance(error, asyncio.CancelledError)
        # A later cancellation has replaced our message, an earlier one has kept us from cancelling.
        return isinstance(error, asyncio.CancelledError) and error.args == (self,)


class _Block:
    """The block of an `async with` statement: its hold, its task, and the number of cancellations before."""

    hold: AsyncHold

    def __init__(self, lock: AsyncLock) -> None:
        self.lock, self.task, self.cancelling = lock, cast("asyncio.Task[Any]", lock._client._user()), 0
        if sys.version_info >= (3, 11):
            self.cancelling = self.task.cancelling()


def _is_cancelled(task: asyncio.Task[Any]) -> bool:
    """Whether somebody else has cancelled the task, where tasks do not count that (Python 3.10)."""
    waiter = getattr(task, "_fut_waiter", None)
    is_cancelled = getattr(task, "_must_cancel", False) or (waiter is not None and waiter.cancelled())
    return bool(is_cancelled) and sys.version_info < (3, 11)


async def _within(coroutine: Coroutine[Any, Any, T], timeout: float) -> T | None:
    """Its result, or None. `asyncio.wait_for` may swallow a cancellation before Python 3.12."""
    task = asyncio.ensure_future(coroutine)
    try:
        await asyncio.wait({task}, timeout=None if timeout == FOREVER else timeout)
        return task.result() if task.done() else None
    finally:
        task.cancel()


class _Subscriber(Subscriber):
    def __init__(self, client: AsyncRLockClient, route: Route) -> None:
        super().__init__(client, route)
        self._connected: Any = None
        client._spawn(self._run())

    async def subscribe(self, channel: str, timeout: float) -> None:
        """Returns when the server has confirmed the subscription."""
        ready = self._ready.get(channel)
        if ready is None:
            ready = self._ready[channel] = asyncio.Event()
            if self._connected is not None:
                with contextlib.suppress(Exception):  # The reader sees the same error.
                    await self._connected.send_command(self._command, channel, check_health=False)
        await _within(ready.wait(), timeout)
        self._confirmed(ready.is_set())

    async def _run(self) -> None:
        pause = SHORT_PAUSE
        while True:
            connection = self._connection()
            try:
                await connection.connect()
                connection.socket_timeout = None  # A subscriber may hear nothing for long.
                self._connected = connection
                for channel in list(self._ready):
                    await connection.send_command(self._command, channel, check_health=False)
                await self._read(connection)
            except Exception as error:
                if self._error is None:
                    pause = SHORT_PAUSE
                self._failed(error)
            finally:
                self._connected = None
                with contextlib.suppress(Exception):
                    await connection.disconnect(nowait=True)
            await asyncio.sleep(pause)
            pause = min(LONG_PAUSE, 2 * pause)

    async def _read(self, connection: Any) -> None:
        is_asked, read = False, None
        try:
            while True:
                read = read or asyncio.ensure_future(connection.read_response())
                await asyncio.wait({read}, timeout=min(PING, self._client.command_timeout) if is_asked else PING)
                if read.done():
                    self._heard(read.result())
                    is_asked, read = False, None
                elif is_asked:
                    raise Unavailable("the subscriber's server does not answer")
                else:
                    await connection.send_command("PING", check_health=False)
                    is_asked = True
        finally:
            if read is not None:
                read.cancel()
                await asyncio.gather(read, return_exceptions=True)


class AsyncRLockClient(Base[AsyncHold, "AsyncLock", "AsyncSemaphore"]):
    """Locks on a server with the rlock module, for asyncio.

    The owner of a lock is the task that acquired it. Use a client in one event loop. The parameters are those of
    :class:`RLockClient`, with a client of ``redis.asyncio`` or ``valkey.asyncio``.
    """

    _hold_class, _subscriber_class = AsyncHold, _Subscriber
    _disconnect: ClassVar[dict[str, bool]] = {"nowait": True}

    def _begin(self) -> None:
        # Kept in a forked child: a connection closes when it is deleted, and the parent's loop would stop watching it.
        self._inherited = vars(self).copy()
        super()._begin()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._asking: dict[str, asyncio.Semaphore] = collections.defaultdict(lambda: asyncio.Semaphore(MAX_ASKING))

    async def lead(
        self, key: str | bytes, work: Callable[[AsyncHold], Coroutine[Any, Any, Any]], **options: Unpack[LockOptions]
    ) -> None:
        """Runs ``await work(hold)`` whenever this task is elected, until the task is cancelled.

        ``work`` is cancelled when the leadership is lost. When it returns, the task resigns and stands for election
        again. An error of ``work`` ends it, except for the :class:`LockLost` of the leadership itself.
        """
        while True:
            hold = None
            try:
                async with self.lock(key, **options) as hold:
                    await work(hold)
            except (LockTimeout, Unavailable):
                if hold is not None:  # Then it is an error of `work`.
                    raise
            except LockLost as error:
                if error.hold is not hold:
                    raise

    async def __aenter__(self) -> AsyncRLockClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Ends waits with :class:`Closed`, releases holds, and ends tasks and connections, within about 5 s."""
        await self._close()
        if self._timer is not None:
            self._timer.cancel()
        tasks = set(self._tasks)
        while tasks:  # Before Python 3.12, `asyncio.wait_for` may swallow a cancellation.
            for task in tasks:
                task.cancel()
            _, tasks = await asyncio.wait(tasks, timeout=TICK)

    def _user(self) -> asyncio.Task[Any]:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("the owner of a lock is a task, and none is running")
        return task

    def _box(self) -> Mailbox:
        return Mailbox(asyncio.Queue())

    async def _receive(self, box: Mailbox, timeout: float) -> Message | None:
        return await _within(box.messages.get(), timeout)

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _read(self, connection: Any, end: float) -> Any:
        return await connection.read_response()

    async def _call(
        self, key: bytes, commands: Sequence[Command], timeout: float, box: Mailbox | None = None
    ) -> list[Any]:
        """In a task of its own: a cancelled caller does not leave half of an exchange behind."""
        task = self._spawn(self._call_now(key, commands, timeout, box))
        timer = asyncio.get_running_loop().call_later(timeout, task.cancel)
        task.add_done_callback(lambda _: timer.cancel())
        task.add_done_callback(lambda _: task.cancelled() or task.exception())  # A cancelled caller retrieves none.
        if box is not None:
            box.call = task
        await asyncio.wait({task})
        if task.cancelled():
            raise Unavailable("the server did not answer in time")
        replies: list[Any] = task.result()
        return replies

    async def _call_now(
        self, key: bytes, commands: Sequence[Command], timeout: float, box: Mailbox | None
    ) -> list[Any]:
        node = (await self._route(key)).name
        async with self._asking[node] if box is not None else contextlib.nullcontext():
            return await super()._call(key, commands, timeout, box)

    def _spawn(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _settle(self, attempt: Attempt) -> None:
        """When the request of a cancelled caller is over, which must not arrive after its settlement."""
        call = attempt.box.call
        if call is None or call.done():
            super()._settle(attempt)
        else:
            attempt.box.call = None
            call.add_done_callback(lambda _: self._settle(attempt))

    def _wake(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        pause = None if self._is_ended else self._poll()
        if pause is not None:
            self._timer = asyncio.get_running_loop().call_later(pause, self._wake)


async def _leave_block(block: _Block, _kind: object, error: BaseException | None, _trace: object) -> None:
    """Raises instead of an error of the block only if that is the cancellation by the loss itself."""
    replaces = block.hold._lost_instead(block, error)
    try:
        await block.lock._client._release_block(block.lock, block.task, block.hold)
    except (LockError, RuntimeError):
        if error is None or replaces:
            raise


class AsyncLock(LockBase[AsyncHold]):
    """A lock of any kind, made by the methods of :class:`AsyncRLockClient`. Tasks may share the object.

    In ``async with lock`` the loss of the hold cancels the block, and the statement raises :class:`LockLost` instead
    of the cancellation.
    """

    async def acquire(self, blocking: bool = True, timeout: float | None = None) -> AsyncHold | None:
        """See :meth:`Lock.acquire`. A cancelled acquisition is taken back in the background."""
        client = self._client
        hold: AsyncHold | None = await client._acquire(
            self, client._user(), client._box(), self._wait(blocking, timeout)
        )
        return hold

    async def release(self, keep: float | None = None) -> None:
        """See :meth:`Lock.release`. A cancelled release is completed in the background."""
        await self._client._release_current(self, self._client._user(), keep)

    def _block(self) -> _Block:
        return _Block(self)

    async def __aenter__(self) -> AsyncHold:
        leave = entering(self)
        block: _Block = self._block() if leave is None else leave.args[0]
        hold = await self.acquire()
        if hold is None:
            raise self._timed_out()
        block.hold = hold
        hold._blocks.append(block)
        return hold

    async def _leave_current(self, kind: object, error: BaseException | None, trace: object) -> None:
        task = self._client._user()
        hold = self._client._current(self, task)
        blocks = [block for block in (hold._blocks if hold else ()) if block.task is task]
        if blocks:
            await _leave_block(blocks[-1], kind, error, trace)
        elif error is None:
            raise RuntimeError(f"this task does not hold {self._target}; hold.release() works in any")

    if TYPE_CHECKING:

        async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None: ...

    else:
        __aexit__ = Exit(_leave_block, _leave_current)


class AsyncSemaphore(AsyncLock):
    """A number of permits. Each acquisition takes its own, also by the same task."""

    async def init(self, permits: int, idle: float | None = None) -> bool:
        """See :meth:`Semaphore.init`."""
        return await self._init(permits, idle)


AsyncRLockClient._lock_class, AsyncRLockClient._semaphore_class = AsyncLock, AsyncSemaphore
