"""What the synchronous and the asyncio client share.

How to wait, to read an answer and to run in the background is added by the two clients.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, cast

from ._attempt import Attempt, Mailbox
from ._clock import CLOSE_WITHIN, FOREVER, SHORT_PAUSE, SteadyClock
from ._commands import Command, Message, Target, encoded, first, milliseconds, slot_of, tag_of
from ._connections import Route, done
from ._hold import GONE, Engine, Errand, Hold, Item, log
from ._options import LockOptions, Options, duration, limit, whole
from ._request_ids import clients
from .errors import Closed, LockError, LockLost, LockTimeout, Stopped, Unavailable, code_of, typed

if TYPE_CHECKING:
    from typing_extensions import Unpack

H = TypeVar("H", bound=Hold)
L = TypeVar("L")
S = TypeVar("S")

MAX_IDLE = 16  # Connections kept open, for each server.


class Base(Generic[H, L, S]):
    """What the clients share."""

    _hold_class: Any
    _lock_class: Any
    _semaphore_class: Any
    _subscriber_class: Any
    _disconnect: ClassVar[dict[str, bool]] = {}
    # The two clients do these in their own way.
    _user: Callable[[], Any]  # The current thread or task.
    _box: Callable[[], Mailbox]
    _receive: Callable[[Mailbox, float], Coroutine[Any, Any, Message | None]]
    _sleep: Callable[[float], Coroutine[Any, Any, None]]
    _read: Callable[[Any, float], Coroutine[Any, Any, Any]]
    _spawn: Callable[[Coroutine[Any, Any, Any]], Any]  # Runs it in the background.
    _wake: Callable[[], None]  # Lets the timer call `_poll` soon.

    def __init__(
        self,
        redis: Any,
        *,
        key_prefix: str | bytes = "",
        command_timeout: float | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.is_cluster = hasattr(redis, "get_node_from_key")
        if not self.is_cluster and not hasattr(redis, "connection_pool"):
            raise TypeError(f"expected a client of redis-py or valkey-py, not {type(redis).__name__}")
        self.redis, self.closed, self._prefix = redis, False, encoded(key_prefix)
        self.clock: Callable[[], float] = clock or SteadyClock()
        configured = None if self.is_cluster else redis.connection_pool.connection_kwargs.get("socket_timeout")
        if command_timeout is not None:
            duration("command_timeout", command_timeout, 0.01)
        self.command_timeout = float(command_timeout or configured or 5.0)
        self._begin()
        clients.add(self)

    def _begin(self) -> None:
        """A new identity, at the start and after a fork."""
        self.id = secrets.token_hex(16)
        self._engine, self._lock, self._numbers = Engine(self.clock), threading.Lock(), itertools.count(1)
        self._held: dict[str, dict[tuple[str, bytes], list[H]]] = {}  # For each owner.
        self._names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()  # Of threads and tasks.
        self._channels: dict[int, str] = {}
        self._boxes: set[Mailbox] = set()
        self._turns: dict[str, list[Mailbox]] = {}  # Requests of each owner, which it sends one after the other.
        self._subscribers: dict[str, Any] = {}
        self._idle: dict[str, list[tuple[float, Any]]] = {}  # With the time of its last answer.
        self._is_refreshing = self._is_ended = False

    # -- the locks

    def lock(self, key: str | bytes, **options: Unpack[LockOptions]) -> L:
        """A mutex. The keyword arguments are those of :class:`LockOptions`, all times in seconds."""
        return self._make("mutex", [key], options)

    def fair_lock(self, key: str | bytes, **options: Unpack[LockOptions]) -> L:
        """A mutex whose queue survives restarts and failovers of the server."""
        return self._make("fair", [key], options)

    def read_lock(self, key: str | bytes, **options: Unpack[LockOptions]) -> L:
        """The reading side of a read-write lock."""
        return self._make("read", [key], options)

    def write_lock(self, key: str | bytes, **options: Unpack[LockOptions]) -> L:
        """The writing side of a read-write lock."""
        return self._make("write", [key], options)

    def multi_lock(self, keys: Iterable[str | bytes], **options: Unpack[LockOptions]) -> L:
        """Several mutexes, acquired all or none in one step. In a cluster the keys need one hash tag."""
        return self._make("many", keys, options)

    def semaphore(self, key: str | bytes, permits: int = 1, **options: Unpack[LockOptions]) -> S:
        """A semaphore, of which each acquisition takes ``permits``. It has to be made once, with its ``init``."""
        return cast(S, self._make("semaphore", [key], options, permits))

    def _make(self, kind: str, keys: Iterable[str | bytes], options: LockOptions, permits: int = 1) -> L:
        target = Target(kind, tuple(self._prefix + encoded(key) for key in keys), whole(permits))
        if not target.keys:
            raise ValueError("at least one key is needed")
        make = self._semaphore_class if kind == "semaphore" else self._lock_class
        return cast(L, make(self, target, Options(**options)))

    # -- requests

    async def _route(self, key: bytes) -> Route:
        redis = self.redis
        if not self.is_cluster:
            return Route("", redis.connection_pool.connection_class, redis.connection_pool.connection_kwargs)
        try:
            if hasattr(redis, "initialize") and not redis.nodes_manager.slots_cache:
                await asyncio.wait_for(redis.initialize(), self.command_timeout)
            node = redis.get_node_from_key(key)
        except Exception as error:
            self._refresh()
            raise Unavailable(f"no node serves the key: {error}") from error
        # The synchronous clusters of redis-py and valkey-py; a node of asyncio is its own pool.
        connection = getattr(redis, "get_redis_connection", None) or getattr(redis, "get_valkey_connection", None)
        pool = connection(node).connection_pool if connection else node
        return Route(node.name, pool.connection_class, pool.connection_kwargs)

    async def _call(
        self, key: bytes, commands: Sequence[Command], timeout: float, box: Mailbox | None = None
    ) -> list[Any]:
        """The replies, with the server's errors among them. Raises :class:`Unavailable` if there are none."""
        end = time.monotonic() + timeout
        try:
            route = await self._route(key)
            name, replies = route.name, await self._exchange(route, commands, end)
            for at, reply in enumerate(replies if self.is_cluster else ()):
                for _ in range(3):
                    code = code_of(reply) if isinstance(reply, Exception) else ""
                    if code not in ("MOVED", "ASK"):
                        break
                    self._refresh()
                    there = route.at(*self.redis.nodes_manager.remap_host_port(reply.host, reply.port))
                    name, asking = there.name, [("ASKING",)] if code == "ASK" else []
                    reply = (await self._exchange(there, [*asking, commands[at]], end))[-1]
                replies[at] = reply
            if box is not None:
                box.asked = name
            return replies
        except Exception as error:
            self._refresh()
            raise typed(error) from error

    async def _exchange(self, route: Route, commands: Sequence[Command], end: float) -> list[Any]:
        with self._lock:
            idle = self._idle.setdefault(route.name, [])
            connection = idle.pop()[1] if idle else route.connection(max(SHORT_PAUSE, end - time.monotonic()))
        replies: list[Any] = []
        began, left_over = time.monotonic(), [connection]
        try:
            await done(connection.connect())
            await done(connection.send_packed_command(connection.pack_commands(commands), check_health=False))
            for _ in commands:
                try:
                    replies.append(await self._read(connection, end))
                except Exception as error:
                    if not code_of(error):
                        raise
                    replies.append(error)
            with self._lock:
                if len(idle) < MAX_IDLE and not self._is_ended:
                    idle.append((time.monotonic(), left_over.pop()))
            return replies
        except BaseException:
            with self._lock:  # Others may have been cut with it, unless they were heard of since.
                left_over += [other for heard, other in idle if heard < began]
                idle[:] = [(heard, other) for heard, other in idle if heard >= began]
            raise
        finally:
            for one in left_over:
                await done(one.disconnect(**self._disconnect))

    def _refresh(self) -> None:
        """Lets the application's client load the map of the cluster, in the background, once at a time."""
        if self.is_cluster and not self._is_refreshing and not self._is_ended:
            self._is_refreshing = True
            self._start(self._load_map(), [])

    async def _load_map(self) -> None:
        try:
            await done(self.redis.nodes_manager.initialize())
        except Exception as error:
            log.debug("the map of the cluster could not be loaded: %s", error)
        finally:
            self._is_refreshing = False

    async def _listen(self, key: bytes, box: Mailbox, timeout: float) -> str:
        """Subscribes for the answer to a request, and returns the channel."""
        self._check(box)
        route, channel = await self._route(key), f"rlock:{self.id}"
        if self.is_cluster:
            slot = slot_of(key)
            channel = self._channels.get(slot) or f"{channel}:{{{tag_of(slot)}}}"
            self._channels[slot] = channel
        with self._lock:
            if route.name not in self._subscribers:
                self._subscribers[route.name] = self._subscriber_class(self, route)
        await self._subscribers[route.name].subscribe(channel, timeout)
        box.channel, box.home = channel, route.name
        return channel

    def _check(self, box: Mailbox) -> None:
        if self.closed:
            raise Closed("the client was closed")
        if box.is_over:
            raise Stopped("the thread has left the wait")

    def _tell(self, channels: list[str], message: Message) -> None:
        for box in list(self._boxes):
            if box.channel in channels:
                box.put(message)

    def _silence(self, box: Mailbox) -> LockError:
        """Why a wait heard nothing at its end, when the server says that it is over."""
        error: LockError | None = getattr(self._subscribers.get(box.home), "_error", None)
        return error or Unavailable("the server did not answer in time")

    # -- the timer

    def _background(self, errand: Errand) -> None:
        self._engine.add(errand)
        self._wake()

    def _poll(self) -> float | None:
        """Tells losses and sends what is due. Returns the seconds until the next call, None for no limit."""
        lost, groups, pause = self._engine.poll()
        for hold in lost:
            hold._ended(True)
        for timeout, items in groups.items():
            self._start(self._send(timeout, items), items)
        return pause

    def _start(self, request: Coroutine[Any, Any, None], items: list[Item]) -> None:
        """Sends these items in the background, or later if no thread can be started."""
        try:
            self._spawn(request)
        except RuntimeError as error:
            request.close()
            self._is_refreshing = False  # This may have been the request.
            log.warning("a request in the background has to wait: %s", error)
            self._engine.failed(items)

    async def _send(self, timeout: float, items: list[Item]) -> None:
        servers: dict[str, list[Item]] = {}
        for item in items:
            try:
                servers.setdefault((await self._route(item.key)).name, []).append(item)
            except Unavailable:
                self._engine.failed([item])
        *others, last = servers.values() or [[]]
        for batch in others:  # No server delays the renewals of another one.
            self._start(self._send_batch(timeout, batch), batch)
        if last:
            await self._send_batch(timeout, last)

    async def _send_batch(self, timeout: float, items: list[Item]) -> None:
        sent = self.clock()
        try:
            commands = [command for item in items for command in item.commands()]
            self._engine.answered(items, await self._call(items[0].key, commands, timeout), sent)
        except BaseException as error:
            self._engine.failed(items)
            if not isinstance(error, LockError):  # The owner's next acquisition was cancelled meanwhile.
                raise
            log.debug("background request: %s", error)
        self._wake()

    # -- who holds what

    def _slots(self, target: Target) -> list[tuple[str, bytes]]:
        return [("mutex" if target.kind == "many" else target.kind, key) for key in target.keys]

    def _name(self, user: object) -> str:
        """The name of a thread or task. When that has ended, it can neither release nor acquire again."""
        with self._lock:
            name, client = self._names.get(user), weakref.ref(self)
            if name is None:
                name = self._names[user] = f"{self.id}:{next(self._numbers)}"
                weakref.finalize(user, lambda: (found := client()) and found._held.pop(name, None))
            return name

    def _scope(self, options: Options, name: str) -> str:
        return options.shared_owner or (f"{self.id}.{options.owner}" if options.owner else name)

    def _current(self, lock: LockBase[H], user: object) -> H | None:
        """The innermost hold of this owner; of permits under a named owner, that of this thread or task first."""
        name = self._names.get(user, "")
        stack = self._held.get(self._scope(lock._options, name), {}).get(self._slots(lock._target)[0], ())
        holds = [hold for hold in reversed(stack) if hold._target == lock._target]
        return max(holds, key=lambda hold: len(holds) > 1 and hold._user == name, default=None)

    def _reenter(self, target: Target, scope: str) -> H | None:
        """The hold that this owner has already, counted once more. Those that it has lost are released first."""
        if target.kind == "semaphore":
            return None
        with self._lock:
            held = self._held.get(scope, {})
            found = [hold for slot in self._slots(target) for hold in held.get(slot, ())]
            for lost in [hold for hold in found if not hold.held and hold._settlement is None]:
                lost._settlement = lost._release_errand(None)
                self._engine.add(lost._settlement)
            found = [hold for hold in found if hold.held]
            if any(hold._target != target for hold in found):
                raise RuntimeError(f"this owner already holds {found[0]._target}, and asks for {target}")
            for hold in found[-1:]:
                hold._count += 1
                return hold
            return None

    def _leave(self, hold: H, keep: float | None) -> Errand | None:
        """What the last release of the hold has to send. The owner's next request comes after that."""
        target = hold._target
        with self._lock:
            if hold._count == 0 or hold._process != self.id:
                raise RuntimeError(f"{target} was released before, or by the parent of this process")
            if keep is not None and (hold._count > 1 or target.kind not in ("mutex", "fair")):
                raise ValueError("keep is for the last release of a mutex or a fair lock")
            hold._count -= 1
            if hold._count > 0:
                return None
            held = self._held.get(hold._scope, {})  # Without it, if the thread or task has ended.
            for slot in self._slots(target):
                if hold in held.get(slot, ()):
                    held[slot].remove(hold)
                    if not held[slot]:
                        del held[slot]
            if not held:
                self._held.pop(hold._scope, None)
            if hold._settlement is None:
                hold._settlement = hold._release_errand(keep)
                hold._settlement.due = FOREVER
                self._engine.add(hold._settlement)
            return hold._settlement

    async def _acquire(self, lock: LockBase[H], user: object, box: Mailbox, wait: float | None) -> H | None:
        self._check(box)
        target, name = lock._target, self._name(user)
        scope = self._scope(lock._options, name)
        # A semaphore gives permits for each acquisition, so each is an owner of its own.
        owner = f"{scope}.{secrets.token_hex(8)}" if target.kind == "semaphore" else scope
        attempt = Attempt(lock, owner, box, wait)
        self._boxes.add(box)
        try:
            if hold := self._reenter(target, scope):
                return hold
            if not await attempt.turn() or (hold := self._reenter(target, scope)):
                return hold
            hold = cast("H | None", await attempt.acquire())
            if hold is not None:
                hold._scope, hold._user = scope, name
                with self._lock:
                    self._check(box)
                    attempt.uncertain = False
                    for slot in self._slots(target):
                        self._held.setdefault(scope, {}).setdefault(slot, []).append(hold)
                if self._engine.add(hold):
                    self._wake()
            return hold
        finally:
            self._settle(attempt)

    def _settle(self, attempt: Attempt) -> None:
        """Takes the request back, unless it is over, and lets the owner's next one begin."""
        box = attempt.box
        if attempt.uncertain:
            self._background(attempt.settlement())
        with self._lock:
            self._boxes.discard(box)
            turns = self._turns.get(box.owner, [])
            if box in turns:
                turns.remove(box)
            if not turns:
                self._turns.pop(box.owner, None)
        for other in turns:
            other.put(Message("turn"))

    async def _release_current(self, lock: LockBase[H], user: object, keep: float | None) -> None:
        if keep is not None:
            duration("keep", keep)
        hold = self._current(lock, user)
        if hold is None:
            raise RuntimeError(f"this thread or task does not hold {lock._target}; hold.release() works in any")
        await self._release(hold, keep)

    async def _release_block(self, lock: LockBase[H], user: object, hold: H) -> None:
        """The block may have released its hold, and may have acquired the lock again."""
        await (self._release(hold, None) if hold._count > 0 else self._release_current(lock, user, None))

    async def _release(self, hold: H, keep: float | None) -> None:
        if keep is not None:
            duration("keep", keep)
        errand = self._leave(hold, keep)
        if errand is None:
            return hold.check()
        was_held, is_done = self._engine.end(hold), False
        hold._ended(False)
        try:
            for _ in range(2 if was_held else 0):
                try:
                    replies = await self._call(hold.key, errand.commands(), hold.timeout)
                except LockError as error:
                    replies = [error]
                if is_done := errand.is_final(replies):
                    # A repeated one finds that the first has ended the hold.
                    was_held = errand.is_repeated or not any(code_of(reply) in GONE for reply in replies)
                    self._engine.done(errand)
                    break
                errand.is_repeated = True
        finally:  # Also if the caller was cancelled.
            if not is_done:
                errand.due = 0.0
                self._wake()
        if not was_held:
            hold._state = "lost"
            raise LockLost.of(hold, f"the hold of {hold._target} ended before its release")

    # -- the end

    async def _close(self) -> None:
        """Ends waits, releases holds, and waits until that has been answered, or 5 s have passed."""
        with self._lock:
            self.closed = True
        for hold in self._engine.holds():
            if self._engine.end(hold) is not None:
                hold._state, hold._settlement = "lost", hold._release_errand(None, CLOSE_WITHIN)
                hold._ended(True)
                self._background(hold._settlement)
        end = time.monotonic() + CLOSE_WITHIN
        while (self._boxes or self._engine.errands()) and time.monotonic() < end:
            for box in list(self._boxes):
                box.put(Message("end", error=Closed("the client was closed")))
            await self._sleep(0.01)
        with self._lock:
            self._is_ended = True
            idle, self._idle = self._idle, {}
        for _, connection in itertools.chain(*idle.values()):
            await done(connection.disconnect(**self._disconnect))


_entering = threading.local()


class Exit:
    """`__exit__` or `__aexit__` of a lock.

    A `with` statement reads it before it calls `__enter__`, and calls what it has read when it leaves its block. So
    each block has a callable of its own, which knows the hold of the block, whatever thread or task leaves it. Nothing
    else refers to the callable: if an exception that is raised into the thread keeps the statement from calling it, it
    is deleted.
    """

    def __init__(self, leave: Callable[..., Any], leave_current: Callable[..., Any]) -> None:
        self._leave, self._leave_current = leave, leave_current

    def __get__(self, lock: Any, _: type | None = None) -> Callable[..., Any]:
        if lock is None:  # As contextlib.ExitStack reads it.
            return self._leave_current
        leave = functools.partial(self._leave, lock._block())
        _entering.leave = weakref.ref(leave)
        return leave


def entering(lock: Any) -> Any:
    """What the `with` statement that calls `__enter__` has read, or None if there is no such statement."""
    read = getattr(_entering, "leave", None)
    _entering.leave = None
    leave = read and read()
    return leave if leave is not None and leave.args[0].lock is lock else None


class LockBase(Generic[H]):
    """What a lock object knows. It has no state of a hold, so threads and tasks can share it."""

    def __init__(self, client: Base[Any, Any, Any], target: Target, options: Options) -> None:
        self._client, self._target, self._options = client, target, options

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._target.kind} {self._target}>"

    @property
    def held(self) -> bool:
        """Whether the current thread or task holds this lock."""
        hold = self._client._current(self, self._client._user())
        return hold is not None and hold.held

    def _wait(self, blocking: bool, timeout: float | None) -> float | None:
        return limit(self._options.timeout if timeout is None else timeout) if blocking else 0

    def _timed_out(self) -> LockTimeout:
        return LockTimeout(f"{self!r} was not acquired within {self._options.timeout} s")

    async def _init(self, permits: int, idle: float | None) -> bool:
        words: Command = ("RSEMAPHORE.INIT", self._target.keys[0], whole(permits))
        words += () if idle is None else ("IDLE", milliseconds(duration("idle", idle)))
        return bool(first(await self._client._call(words[1], [words], self._client.command_timeout)))
