"""The synchronous client, on redis-py or valkey-py."""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import contextvars
import copy
import queue
import selectors
import socket
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, cast

from ._attempt import Attempt, Mailbox
from ._base import Base, Exit, LockBase, entering
from ._clock import CLOSE_WITHIN, FOREVER, LONG_PAUSE, PING, SHORT_PAUSE, TICK
from ._commands import Message
from ._connections import Route, Subscriber, run
from ._hold import Hold, log
from ._options import LockOptions, limit
from .errors import LockError, LockLost, LockTimeout, Stopped, Unavailable

if TYPE_CHECKING:
    from typing_extensions import Unpack


MAX_IDLE_WORKERS = 8

_thread_of = threading.local()
_user: contextvars.ContextVar[_User] = contextvars.ContextVar("rlock_redis_user")


class _User:
    """A thread, in one context: those of `asyncio.to_thread` and of web frameworks run many requests in a thread."""

    def __init__(self, thread: object) -> None:
        self.thread = thread


def _current_user() -> _User:
    thread = getattr(_thread_of, "itself", None)
    if thread is None:
        thread = _thread_of.itself = object()
    user = _user.get(None)
    if user is None or user.thread is not thread:  # Contexts are copied to other threads.
        user = _User(thread)
        _user.set(user)
    return user


def _started(target: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=target, name="rlock", daemon=True)
    thread.start()
    return thread


def _get(messages: queue.SimpleQueue[Any], timeout: float | None = None, before: Callable[[], Any] = bool) -> Any:
    """In steps, because not everything that raises into a thread interrupts its wait. Raises `queue.Empty`."""
    end = FOREVER if timeout is None else time.monotonic() + timeout
    while True:
        before()
        left = end - time.monotonic()
        try:
            return messages.get(timeout=max(0.0, min(TICK, left)))
        except queue.Empty:
            if left <= TICK:
                raise


class _Call:
    """What a worker does for a thread that waits.

    A signal handler, a soft time limit or a debugger may raise an exception into that thread: wherever a function
    begins, after each call of a function that is written in C, and in loops. So the thread only hands the call over,
    by one such function, and waits. It shares no lock with the workers, and its exception is none of theirs.
    """

    box = Mailbox(queue.SimpleQueue())  # Only acquisitions have one of their own.

    def __init__(self, work: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any) -> None:
        self._work: list[Callable[[], Any]] = [lambda: run(work(*arguments))]
        self.outcomes: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self.value: Any = None

    def __call__(self) -> None:
        """Only once, because a thread that was interrupted hands it over again."""
        with contextlib.suppress(IndexError):
            work, error = self._work.pop(), None
            try:
                self.value = work()
            except BaseException as raised:
                error = raised
            self.outcomes.put(error)

    def end(self) -> None:
        """Called when an exception was raised into the thread that waits."""
        self()


class _Acquisition(_Call):
    """An acquisition, and the block of a `with` statement, where there is one."""

    watch: weakref.ref[Any] | None = None  # Of what the statement calls at the end.

    def __init__(self, lock: Lock, blocking: bool = True, timeout: float | None = None) -> None:
        self.lock, self.box, self._user = lock, lock._box(), _current_user()
        super().__init__(lock._client._acquire, lock, self._user, self.box, lock._wait(blocking, timeout))

    def __call__(self) -> None:
        super().__call__()
        if self.box.is_over:
            self.end()

    def end(self) -> None:
        self.box.put(Message("end", error=Stopped("the thread has left the wait")))
        try:
            run(self.leave())
        except (LockError, RuntimeError) as error:
            log.debug("%s", error)

    async def leave(self) -> None:
        """Releases what was acquired, once."""
        client = self.lock._client
        with client._lock:
            hold, self.value, self.box.is_over = self.value, None, True
            client._blocks.pop(self.watch, None)
            self.watch = None
        if hold is not None:
            await client._release_block(self.lock, self._user, hold)


class SyncHold(Hold):
    """A lock that a thread holds."""

    _client: RLockClient

    def __init__(self, attempt: Attempt, tokens: Sequence[int], sent: float, left: float) -> None:
        super().__init__(attempt, tokens, sent, left)
        self._has_ended, self._waits = False, set[queue.SimpleQueue[None]]()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the hold has ended, by loss or release, for at most ``timeout`` seconds.

        Returns whether it has ended. Any thread can watch for the loss with this. None, and more than 365 days, is
        no limit.
        """
        longest, end = limit(timeout), queue.SimpleQueue[None]()
        try:
            self._waits.add(end)
            if not self._has_ended:
                _get(end, longest)
        except queue.Empty:
            pass
        finally:
            self._waits.discard(end)
        return self._has_ended

    def release(self, keep: float | None = None) -> None:
        """Releases this acquisition, in any thread. Otherwise as :meth:`Lock.release`."""
        call, hand_over = None, self._client._jobs.put
        try:
            call = _Call(self._client._release, self, keep)
            self._client._carry_out(call)
        except BaseException:  # If it was handed over before, it is not carried out twice.
            hand_over(call or _Call(self._client._release, self, keep))
            raise

    def _ended(self, lost: bool) -> None:
        self._has_ended = True
        for end in list(self._waits):
            end.put(None)
        if lost and (on_lost := self._options.on_lost) is not None:
            try:
                self._client._post(lambda: on_lost(self))  # It may block, and must not delay another loss.
            except RuntimeError:
                log.exception("on_lost could not be called: no thread can be started")


class _Subscriber(Subscriber):
    """The thread alone uses the connection: TLS connections do not read and write in two threads."""

    def __init__(self, client: RLockClient, route: Route) -> None:
        super().__init__(client, route)
        self._asked: set[threading.Event] = set()
        self._is_closed = False
        self._wake, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        self._thread = _started(self._run)

    async def subscribe(self, channel: str, timeout: float) -> None:
        """Returns when the server has confirmed the subscription."""
        ready = self._ready.setdefault(channel, threading.Event())
        if not ready.is_set():
            self._wake.send(b".")
        self._confirmed(ready.wait(timeout))

    def close(self) -> None:
        self._is_closed = True
        self._wake.send(b".")
        self._thread.join(CLOSE_WITHIN)
        self._wake.close()

    def _run(self) -> None:
        pause = SHORT_PAUSE
        while not self._is_closed:
            connection = self._connection()
            try:
                connection.connect()
                self._asked.clear()
                self._read(connection)
            except Exception as error:
                if self._error is None:
                    pause = SHORT_PAUSE
                self._failed(error)
            connection.disconnect()
            if not self._is_closed:
                time.sleep(pause)
                pause = min(LONG_PAUSE, 2 * pause)
        self._woken.close()

    def _read(self, connection: Any) -> None:
        """Returns when the subscriber is closed."""
        is_asked = False
        with selectors.DefaultSelector() as selector:
            selector.register(connection._sock, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while not self._is_closed:
                for channel, event in list(self._ready.items()):
                    if event not in self._asked:
                        self._asked.add(event)
                        connection.send_command(self._command, channel, check_health=False)
                while connection.can_read(0):
                    is_asked = False
                    self._heard(connection.read_response())
                self._asked &= set(self._ready.values())
                if not selector.select(min(PING, self._client.command_timeout) if is_asked else PING):
                    if is_asked:
                        raise Unavailable("the subscriber's server does not answer")
                    connection.send_command("PING", check_health=False)
                    is_asked = True
                with contextlib.suppress(BlockingIOError):
                    self._woken.recv(4096)


class RLockClient(Base[SyncHold, "Lock", "Semaphore"]):
    """Locks on a server with the rlock module, for threads.

    The owner of a lock is the thread that acquired it, or a context of its own (``contextvars``) in the thread. The
    client makes connections of its own, with the settings of ``redis`` (address, database, credentials, TLS, Sentinel,
    cluster); ``redis`` itself stays open. After a fork the child has a new identity and none of its parent's locks.

    :param redis: a client of redis-py or valkey-py: ``Redis``, ``RedisCluster``, or one of a Sentinel.
    :param key_prefix: put before each key.
    :param command_timeout: seconds to wait for the answer of a command, from 0.01 to 365 days; by default the
        ``socket_timeout`` of ``redis``, or 5.
    :param clock: for tests: a function that returns seconds, on a clock that never stands still.
    """

    _hold_class, _subscriber_class = SyncHold, _Subscriber

    _user = staticmethod(_current_user)

    def _begin(self) -> None:
        super()._begin()
        self._timer: threading.Thread | None = None
        self._poke = threading.Event()
        # Calls for the workers, and the `watch` of each block that its statement has dropped.
        self._jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._idle_workers = 0
        self._blocks: dict[weakref.ref[Any] | None, _Acquisition] = {}

    def leader(self, key: str | bytes, work: Callable[[SyncHold], Any], **options: Unpack[LockOptions]) -> Leader:
        """Runs ``work(hold)`` in one process at a time, see :class:`Leader`."""
        return Leader(self.lock(key, **options), work)

    def __enter__(self) -> RLockClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends waits with :class:`Closed`, releases holds, and ends threads and connections, within about 5 s."""
        self._carry_out(_Call(self._shut))

    async def _shut(self) -> None:
        await self._close()
        self._poke.set()
        if self._timer is not None:
            self._timer.join(CLOSE_WITHIN)
        while self._subscribers:
            self._subscribers.popitem()[1].close()
        self._jobs.put(bool)  # An idle worker looks whether the client has ended.

    def _box(self) -> Mailbox:
        return Mailbox(queue.SimpleQueue())

    async def _acquire(self, *arguments: Any) -> SyncHold | None:
        if self._timer is None:
            self._wake()  # If no thread can be started, nothing is acquired.
        return await super()._acquire(*arguments)

    # -- the workers

    def _finish(self, call: _Call) -> Any:
        """Lets a worker carry out a call. Returns its error; what is raised here was raised into this thread."""
        hand_over = self._jobs.put
        try:
            hand_over(call)
            return _get(call.outcomes, before=self._staff)
        except BaseException:
            call.box.is_over = True
            hand_over(call.end)
            raise

    def _carry_out(self, call: _Call) -> Any:
        error = self._finish(call)
        if error is not None:
            raise error
        return call.value

    def _staff(self) -> None:
        """Lets a worker begin, unless one is idle. Takes no lock."""
        if not self._idle_workers:
            _thread.start_new_thread(self._hire, ())

    def _hire(self) -> None:
        with self._lock:
            self._idle_workers += 1
        try:
            _started(self._work)
        except RuntimeError:
            self._work()

    def _work(self) -> None:
        """Before a worker does a job, it makes sure that another one is idle: no job waits for the end of another."""
        with contextlib.suppress(queue.Empty):
            while True:
                job = self._jobs.get(timeout=0 if self._is_ended else None)
                try:
                    with self._lock:
                        self._idle_workers -= 1
                    if not self._is_ended:
                        self._staff()
                except RuntimeError as error:
                    log.debug("%s", error)
                try:
                    if isinstance(job, weakref.ref):
                        job = getattr(self._blocks.get(job), "end", bool)
                    job()
                except Exception:
                    log.exception("a job failed")
                del job  # It refers to a hold.
                with self._lock:
                    if self._idle_workers >= MAX_IDLE_WORKERS:
                        return
                    self._idle_workers += 1
        with self._lock:
            self._idle_workers -= 1
            if self._idle_workers:
                self._jobs.put(bool)  # The next one looks, too.

    def _post(self, job: Callable[[], Any]) -> None:
        self._staff()
        self._jobs.put(job)

    async def _receive(self, box: Mailbox, timeout: float) -> Message | None:
        try:
            message: Message = box.messages.get(timeout=None if timeout == FOREVER else timeout)
            return message
        except queue.Empty:
            return None

    async def _sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251

    async def _read(self, connection: Any, end: float) -> Any:
        if not connection.can_read(max(0.0, end - time.monotonic())):
            raise Unavailable("the server did not answer in time")
        connection._sock.settimeout(max(SHORT_PAUSE, end - time.monotonic()))  # The rest of the answer may be late.
        return connection.read_response()

    def _spawn(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._post(lambda: run(coroutine))

    def _wake(self) -> None:
        with self._lock:
            if self._timer is None:
                self._timer = _started(self._time)
        self._poke.set()

    def _time(self) -> None:
        """The timer. It sends nothing itself, so no server can keep it from telling a loss."""
        while not self._is_ended:
            self._poke.clear()
            try:
                self._staff()
                pause = self._poll()
            except Exception:  # As when no thread can be started.
                log.exception("the timer goes on")
                pause = LONG_PAUSE
            self._poke.wait(pause)


def _leave_block(block: _Acquisition, _kind: object, error: BaseException | None, _trace: object) -> None:
    block.lock._leave(_Call(block.leave), error)


class Lock(LockBase[SyncHold]):
    """A lock of any kind, made by the methods of :class:`RLockClient`.

    Threads may share the object: the thread that acquires is the owner. A thread that holds the lock may acquire it
    again, and releases it as often. Other threads can leave its ``with`` block, and release its hold.
    """

    _client: RLockClient

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> SyncHold | None:
        """Acquires the lock, and returns the hold, or None if another owner held the lock until the time was up.

        With ``blocking=False``, or a timeout of 0, the server tries once. Otherwise the call waits for ``timeout``
        seconds, or those of the lock's options, or without limit. A signal handler that raises ends the wait, and the
        client takes the request back in the background.

        :raises LockLost: this thread held the lock before and has lost it; release it first.
        :raises Refused: the server refused the request; also its subclasses :class:`Deadlock`, :class:`Superseded`,
            :class:`ModuleMissing` and :class:`ModuleTooOld`.
        :raises Unavailable: the server cannot serve a request that does not wait, or when the time of a wait was up,
            the server could not be reached, did not answer, or refused; the cause is the last failure.
        :raises Closed: the client was closed.
        :raises RuntimeError: in an event loop, unless the lock has an ``owner``.
        """
        return self._enter(_Acquisition(self, blocking, timeout))

    def _enter(self, acquisition: _Acquisition) -> SyncHold | None:
        names = (self._options.owner, self._options.shared_owner)
        if names == (None, None) and asyncio._get_running_loop() is not None:
            raise RuntimeError(
                f"{self!r} would block the event loop, and each task of this thread would be its owner: use "
                "AsyncRLockClient, or asyncio.to_thread with a function that acquires and releases the lock"
            )
        hold: SyncHold | None = self._client._carry_out(acquisition)
        return hold  # Without a call between: an exception that it raised would leave the lock held.

    def release(self, keep: float | None = None) -> None:
        """Releases the lock. With ``keep`` it stays closed to everybody for so many seconds, up to 365 days.

        Returns when the server has answered. If it does not, the client goes on in the background until the lease
        has passed.

        :raises LockLost: the hold had ended before.
        :raises RuntimeError: this thread does not hold the lock.
        """
        call, hand_over = None, self._client._jobs.put
        try:
            call = _Call(self._client._release_current, self, _current_user(), keep)
            self._client._carry_out(call)
        except BaseException:  # If it was handed over before, it is not carried out twice.
            hand_over(call or _Call(self._client._release_current, self, _current_user(), keep))
            raise

    def _box(self) -> Mailbox:
        return self._client._box()

    def _block(self) -> _Acquisition:
        return _Acquisition(self)

    def __enter__(self) -> SyncHold:
        leave, client = entering(self), self._client
        block: _Acquisition = self._block() if leave is None else leave.args[0]
        if leave is not None:
            block.watch = weakref.ref(leave, client._jobs.put)
            client._blocks[block.watch] = block
        hold = self._enter(block)
        if hold is None:
            raise self._timed_out()
        return hold

    def _leave(self, release: _Call, error: BaseException | None) -> None:
        problem = self._client._finish(release)
        if problem is not None and error is None:
            raise problem

    def _leave_current(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._leave(_Call(self._client._release_current, self, _current_user(), None), error)

    if TYPE_CHECKING:

        def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None: ...

    else:
        __exit__ = Exit(_leave_block, _leave_current)


class Semaphore(Lock):
    """A number of permits. Each acquisition takes its own, also by the same thread."""

    def init(self, permits: int, idle: float | None = None) -> bool:
        """Makes the semaphore with so many permits unless it exists; returns whether it was made.

        With ``idle`` the server deletes it when nobody has used it for so many seconds, up to 365 days; 0 takes that
        back.

        :raises LockError: the server did not answer, or refused.
        """
        return cast(bool, self._client._carry_out(_Call(self._init, permits, idle)))


class Leader:
    """Runs ``work(hold)`` whenever this process is elected, until :meth:`stop`.

    ``work`` is called in the thread of :meth:`run`. It has to return when ``hold.held`` is false or :attr:`stopped`
    is set. When it returns, the process resigns and stands for election again.
    """

    def __init__(self, lock: Lock, work: Callable[[SyncHold], Any]) -> None:
        self._lock, self._work, self._current = copy.copy(lock), work, lock._box()
        self._lock._box = self._box  # type: ignore[method-assign]
        #: Set by :meth:`stop`.
        self.stopped = threading.Event()

    def run(self) -> None:
        """Stands for election and works, until :meth:`stop` is called.

        An error of ``work`` ends it, except for the :class:`LockLost` of the leadership itself.
        """
        while not self.stopped.is_set():
            hold = None
            try:
                with self._lock as hold:
                    self._work(hold)
            except (LockTimeout, Unavailable, Stopped):
                if hold is not None:  # Then it is an error of `work`.
                    raise
            except LockLost as error:
                if error.hold is not hold:
                    raise

    def _box(self) -> Mailbox:
        self._current = self._lock._client._box()
        if self.stopped.is_set():
            raise Stopped("the leader was stopped")
        return self._current

    def stop(self) -> None:
        """Ends :meth:`run`, from any thread. Returns at once."""
        self._lock._client._carry_out(_Call(self._stop))

    async def _stop(self) -> None:
        self.stopped.set()
        self._current.put(Message("end", error=Stopped("the leader was stopped")))


RLockClient._lock_class, RLockClient._semaphore_class = Lock, Semaphore
