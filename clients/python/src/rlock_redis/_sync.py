"""The synchronous client, on redis-py or valkey-py."""

from __future__ import annotations

import contextlib
import queue
import selectors
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, cast

from ._attempt import Attempt, Mailbox
from ._base import Base, LockBase
from ._clock import CLOSE_WITHIN, FOREVER, LONG_PAUSE, PING, SHORT_PAUSE
from ._commands import Message
from ._connections import Route, Subscriber, run
from ._hold import Hold, log
from ._options import LockOptions, limit
from .errors import LockLost, LockTimeout, Stopped, Unavailable

if TYPE_CHECKING:
    from typing_extensions import Unpack


def _thread(target: Callable[..., Any], *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=target, args=arguments, name="rlock", daemon=True)
    thread.start()
    return thread


class SyncHold(Hold):
    """A lock that a thread holds."""

    def __init__(self, attempt: Attempt, tokens: list[int], sent: float, left: float = FOREVER) -> None:
        super().__init__(attempt, tokens, sent, left)
        self._end_event = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the hold has ended, by loss or release, for at most ``timeout`` seconds.

        Returns whether it has ended. Any thread can watch for the loss with this. None, and more than 365 days, is
        no limit.
        """
        return self._end_event.wait(limit(timeout))

    def _ended(self, lost: bool) -> None:
        self._end_event.set()
        if lost and self._options.on_lost is not None:
            try:
                _thread(self._options.on_lost, self)  # It may block, and must not delay the loss of another hold.
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
        self._thread = _thread(self._run)

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


class _User:
    """Lives as long as its thread, and the client."""

    name: str


class RLockClient(Base[SyncHold, "Lock", "Semaphore"]):
    """Locks on a server with the rlock module, for threads.

    The owner of a lock is the thread that acquired it. The client makes connections of its own, with the settings
    of ``redis`` (address, database, credentials, TLS, Sentinel, cluster); ``redis`` itself stays open. After a fork
    the child has a new identity and none of its parent's locks.

    :param redis: a client of redis-py or valkey-py: ``Redis``, ``RedisCluster``, or one of a Sentinel.
    :param key_prefix: put before each key.
    :param command_timeout: seconds to wait for the answer of a command, from 0.01 to 365 days; by default the
        ``socket_timeout`` of ``redis``, or 5.
    :param clock: for tests: a function that returns seconds, on a clock that never stands still.
    """

    _hold_class, _subscriber_class = SyncHold, _Subscriber

    def _begin(self) -> None:
        super()._begin()
        self._local = threading.local()
        self._timer: threading.Thread | None = None
        self._poke = threading.Event()

    def leader(self, key: str | bytes, work: Callable[[SyncHold], Any], **options: Unpack[LockOptions]) -> Leader:
        """Runs ``work(hold)`` in one process at a time, see :class:`Leader`."""
        return Leader(self.lock(key, **options), work)

    def __enter__(self) -> RLockClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends waits with :class:`Closed`, releases holds, and ends threads and connections, within about 5 s."""
        run(self._close())
        self._poke.set()
        if self._timer is not None:
            self._timer.join(CLOSE_WITHIN)
        while self._subscribers:
            self._subscribers.popitem()[1].close()

    def _scope(self) -> str:
        user: _User | None = getattr(self._local, "user", None)
        if user is None:
            user = self._local.user = _User()
            user.name = self._named(user)
        return user.name

    def _box(self) -> Mailbox:
        if self._timer is None:
            self._wake()  # If no thread can be started, nothing is acquired.
        return Mailbox(queue.SimpleQueue(), getattr(self._local, "stopped", None))

    async def _receive(self, box: Mailbox, timeout: float) -> Message | None:
        try:
            message: Message = box.messages.get(timeout=None if timeout == FOREVER else timeout)
            return message
        except queue.Empty:
            return None

    async def _sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251

    async def _read(self, connection: Any, end: float) -> Any:
        while not connection.can_read(min(0.25, max(0.0, end - time.monotonic()))):
            # In steps, because not all platforms interrupt the system call for a signal.
            if time.monotonic() >= end:
                raise Unavailable("the server did not answer in time")
        connection._sock.settimeout(max(SHORT_PAUSE, end - time.monotonic()))  # The rest of the answer may be late.
        return connection.read_response()

    def _spawn(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        _thread(run, coroutine)

    def _wake(self) -> None:
        with self._lock:
            if self._timer is None:
                self._timer = _thread(self._time)
        self._poke.set()

    def _time(self) -> None:
        """The timer. It sends nothing itself, so no server can keep it from telling a loss."""
        while not self._is_ended:
            self._poke.clear()
            try:
                pause = self._poll()
            except Exception:  # As when no thread can be started.
                log.exception("the timer goes on")
                pause = LONG_PAUSE
            self._poke.wait(pause)


class Lock(LockBase[SyncHold]):
    """A lock of any kind, made by the methods of :class:`RLockClient`.

    Threads may share the object: the thread that acquires is the owner, and only it can release. A thread that
    holds the lock may acquire it again, and releases it as often.
    """

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
        """
        return run(self._acquire(blocking, timeout))

    def release(self, keep: float | None = None) -> None:
        """Releases the lock. With ``keep`` it stays closed to everybody for so many seconds, up to 365 days.

        Returns when the server has answered. If it does not, the client goes on in the background until the lease
        has passed.

        :raises LockLost: the hold had ended before.
        :raises RuntimeError: this thread does not hold the lock.
        """
        run(self._release(keep))

    def __enter__(self) -> SyncHold:
        return run(self._enter())

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        run(self._exit(error))


class Semaphore(Lock):
    """A number of permits. Each acquisition takes its own, also by the same thread."""

    def init(self, permits: int, idle: float | None = None) -> bool:
        """Makes the semaphore with so many permits unless it exists; returns whether it was made.

        With ``idle`` the server deletes it when nobody has used it for so many seconds, up to 365 days; 0 takes that
        back.

        :raises LockError: the server did not answer, or refused.
        """
        return run(self._init(permits, idle))


class Leader:
    """Runs ``work(hold)`` whenever this process is elected, until :meth:`stop`.

    ``work`` is called in the thread of :meth:`run`. It has to return when ``hold.held`` is false or :attr:`stopped`
    is set. When it returns, the process resigns and stands for election again.
    """

    def __init__(self, lock: Lock, work: Callable[[SyncHold], Any]) -> None:
        self._lock, self._work = lock, work
        #: Set by :meth:`stop`.
        self.stopped = threading.Event()

    def run(self) -> None:
        """Stands for election and works, until :meth:`stop` is called. An error of ``work`` ends it."""
        local = cast(RLockClient, self._lock._client)._local
        while not self.stopped.is_set():
            try:
                local.stopped = self.stopped
                with self._lock as hold:
                    local.stopped = None  # `work` may wait for other locks.
                    self._work(hold)
            except (LockLost, LockTimeout, Stopped):
                pass
            finally:
                local.stopped = None

    def stop(self) -> None:
        """Ends :meth:`run`, from any thread. Returns at once."""
        self.stopped.set()
        for box in list(self._lock._client._boxes):
            if box.stopped is self.stopped:
                box.put(Message("end", error=Stopped("the wait was stopped")))


RLockClient._lock_class, RLockClient._semaphore_class = Lock, Semaphore
