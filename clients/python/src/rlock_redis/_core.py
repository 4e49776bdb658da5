"""What the synchronous and the asyncio client share.

Nothing here waits or sends by itself: the methods of :class:`Base` that do are made by the two clients. The
asyncio client runs the coroutines of this module in tasks. In the synchronous client whatever they await has
been done when it returns, so one ``send`` carries them out (:func:`run`).
"""

from __future__ import annotations

import binascii
import contextlib
import inspect
import itertools
import logging
import math
import re
import secrets
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar, cast

from .errors import (
    Closed,
    LockError,
    LockLost,
    LockTimeout,
    ModuleTooOld,
    NotOwner,
    Refused,
    Stopped,
    Superseded,
    Unavailable,
    code_of,
    error_of,
    typed,
)

T = TypeVar("T")
H = TypeVar("H", bound="Hold")
L = TypeVar("L")
S = TypeVar("S")
Client = Any  # A `Base` of any hold and lock.

log = logging.getLogger("rlock_redis")

CLAIM = 2.0  # A grant that nobody confirms ends after so many seconds.
ASK_AGAIN = 30.0  # A message may be lost, so a waiting request is repeated so often.
CLOSE_WITHIN = 5.0
SHORT_PAUSE, LONG_PAUSE = 0.05, 1.0  # Between attempts, doubled each time.
NIL_MARGIN = 0.2  # The server's own "nil" comes so much later than its timeout at most; else we settle.
TICK = 0.25  # Timers of the platform do not count suspend, so the clock is read so often.
PING = 10.0  # A subscriber that hears nothing for so long asks whether the server is there.
MAX_SETTLEMENTS = 1000
MAX_IDLE = 16  # Connections kept open, for each server.
FOREVER = math.inf

# An owner's ids must rise, also over a restart of the process.
_ids = itertools.count(time.time_ns() // 1000)


def next_id() -> int:
    return next(_ids)


class SteadyClock:
    """Seconds on a clock that never steps back and goes on during suspend."""

    def __init__(self) -> None:
        self._boottime: int | None = getattr(time, "CLOCK_BOOTTIME", None)
        self._lock = threading.Lock()
        self._last = (time.monotonic(), time.time())
        self._total = 0.0

    def __call__(self) -> float:
        if self._boottime is not None:
            return time.clock_gettime(self._boottime)
        with self._lock:
            now = (time.monotonic(), time.time())
            steady, wall = now[0] - self._last[0], now[1] - self._last[1]
            # Below 50 ms the difference is noise; above it the machine slept or the wall clock stepped.
            self._total += wall if wall > steady + 0.05 else steady
            self._last = now
            return self._total


@dataclass(frozen=True)
class Target:
    """What is locked: the kind of lock, its keys with their prefix, and the permits of a semaphore."""

    kind: str
    keys: tuple[bytes, ...]
    permits: int = 1

    _FAMILIES: ClassVar[dict[str, str]] = {
        "mutex": "RLOCK",
        "many": "RLOCK.M",
        "fair": "RFAIRLOCK",
        "read": "RRWLOCK",
        "write": "RRWLOCK",
        "semaphore": "RSEMAPHORE",
    }

    def command(self, verb: str, owner: str, *options: Any) -> tuple[Any, ...]:
        if self.kind == "many" and verb != "CANCEL":  # CANCEL of one key ends the wait on all of them.
            return (f"RLOCK.M{verb}", len(self.keys), *self.keys, owner, *options)
        family = self._FAMILIES[self.kind].removesuffix(".M")
        words: tuple[Any, ...] = (f"{family}.{verb}", self.keys[0], owner)
        if verb != "CANCEL" and self.kind in ("read", "write"):
            words += (self.kind.upper(),)
        if verb in ("ACQUIRE", "RELEASE") and self.kind == "semaphore":
            words += ("PERMITS", self.permits)
        return words + options

    def with_tokens(self, tokens: Sequence[int]) -> tuple[Any, ...]:
        return ("TOKENS" if self.kind == "many" else "TOKEN", *tokens)


@dataclass(frozen=True)
class Options:
    """How a lock is held. All times are in seconds."""

    lease: float = 30.0
    renew: bool = True
    timeout: float | None = None
    session: float | None = None
    grace: float | None = None
    owner: str | None = None
    note: str | None = None
    on_lost: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        if not self.lease > 0:
            raise ValueError(f"lease must be above 0 seconds, not {self.lease!r}")
        if self.session is not None and not self.session > 0:
            raise ValueError(f"session must be above 0 seconds, not {self.session!r}")
        if self.timeout is not None and self.timeout < 0:
            raise ValueError(f"timeout must be 0 or more seconds, not {self.timeout!r}")


def encoded(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


def milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))


@dataclass(frozen=True)
class Message:
    """What a channel said: ``granted``, ``nil``, ``error``; ``again`` and ``end`` come from the client itself."""

    what: str
    id: int = 0
    rest: str = ""
    error: LockError | None = None


def parse_message(data: bytes) -> Message | None:
    what, _, rest = data.decode("utf-8", "replace").partition(" ")
    number, _, rest = rest.partition(" ")
    return Message(what, int(number), rest) if number.isdigit() else None


WAITING: list[int] = [-1]


def tokens_of(reply: Any) -> list[int]:
    """The tokens of a reply, an empty list for nil, and :data:`WAITING`."""
    if reply is None:
        return []
    if reply in (b"WAITING", "WAITING"):
        return WAITING
    try:
        tokens = [int(token) for token in (reply if isinstance(reply, list) else [reply])]
    except (TypeError, ValueError):
        raise Refused(f"the server answered {reply!r} instead of a token") from None
    if not all(token > 0 for token in tokens):
        raise ModuleTooOld(f"the server answered {reply!r} instead of a token: its module is too old")
    return tokens


def first(replies: Sequence[Any]) -> Any:
    """The only reply, raised if it is an error."""
    if isinstance(replies[0], BaseException):
        raise typed(replies[0])
    return replies[0]


async def done(result: Any) -> Any:
    """The result of a method of the Redis client, whether that is the asyncio one or not."""
    return await result if inspect.isawaitable(result) else result


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise RuntimeError("a coroutine of the synchronous client was suspended")


# ---- what the engine sends by itself


class Item:
    """A request that is sent in the background until it is answered or `until` has come."""

    key: bytes
    due: float = FOREVER
    until: float = FOREVER
    timeout: float = 1.0
    pause: float = SHORT_PAUSE

    def commands(self) -> Sequence[tuple[Any, ...]]:
        raise NotImplementedError

    def answered(self, replies: Sequence[Any], sent: float, now: float) -> bool:
        """Whether nothing more has to be sent."""
        raise NotImplementedError


class Errand(Item):
    """A settlement or a release whose first attempt failed."""

    due = 0.0

    def __init__(
        self, key: bytes, commands: Sequence[tuple[Any, ...]], until: float, timeout: float, what: str
    ) -> None:
        self.key, self._commands, self.until, self.timeout, self.what = key, commands, until, timeout, what

    def commands(self) -> Sequence[tuple[Any, ...]]:
        return self._commands

    def answered(self, replies: Sequence[Any], sent: float, now: float) -> bool:
        errors = [typed(reply) for reply in replies if isinstance(reply, BaseException)]
        for error in errors:
            if isinstance(error, Refused) and error.code != "STALE":
                log.warning("%s was refused: %s", self.what, error)
        return not any(isinstance(error, Unavailable) for error in errors)


class Hold(Item):
    """A lock that was acquired.

    The hold is believed in until its deadline: the moment before the last answered request was sent,
    plus the lease, minus 1 % of the lease and 2 ms.
    """

    def __init__(self, attempt: Attempt, tokens: list[int], sent: float) -> None:
        self._target, self._owner, self._options = attempt.target, attempt.owner, attempt.options
        self._client: Base[Any, Any, Any] = attempt.client
        self._process = self._client.id
        self._tokens = tuple(tokens)
        self._lease = attempt.lease
        self._state = "held"
        self._count = 1
        self.key = self._target.keys[0]
        # With a session the server may end the hold so long after a connection that has been lost
        # without our notice, so the belief is always the shorter one.
        self._belief = min(self._lease, self._options.session or FOREVER)
        self.until = self._deadline(sent)
        if self._options.renew:
            self.due = sent + self._belief / 3
        self.timeout = min(self._client.command_timeout, self._belief / 3)

    def _deadline(self, sent: float) -> float:
        return sent + self._belief * 0.99 - 0.002

    @property
    def token(self) -> int:
        """The fencing token; of several keys, that of the first."""
        return self._tokens[0]

    @property
    def tokens(self) -> tuple[int, ...]:
        """The fencing tokens, one for each key."""
        return self._tokens

    @property
    def owner(self) -> str:
        """The owner name that the server knows."""
        return self._owner

    @property
    def remaining(self) -> float:
        """Seconds until the deadline; 0 if the hold has ended."""
        return max(0.0, self.until - self._client.clock()) if self.held else 0.0

    @property
    def held(self) -> bool:
        """Whether the hold is still believed in. Compares the clock itself and asks no server."""
        return self._state == "held" and self._client.clock() < self.until and self._process == self._client.id

    @property
    def lost(self) -> bool:
        """Whether the hold ended before its owner released it."""
        return self._state == "lost" or (self._state == "held" and not self.held)

    def check(self) -> None:
        """Raises :class:`LockLost` unless the hold is held."""
        if not self.held:
            raise LockLost(f"the hold of {self._client.shown(self._target)} has ended")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._client.shown(self._target)} token={self.token} held={self.held}>"

    # -- for the engine

    def commands(self) -> Sequence[tuple[Any, ...]]:
        return [self._target.command("RENEW", self._owner, *self._target.with_tokens(self._tokens))]

    def answered(self, replies: Sequence[Any], sent: float, now: float) -> bool:
        if isinstance(replies[0], BaseException):
            if isinstance(typed(replies[0]), NotOwner):
                self.until = -FOREVER
            else:
                self.due, self.pause = now + self.pause, min(LONG_PAUSE, 2 * self.pause)
            return False
        if now < self.until:
            self.until = max(self.until, self._deadline(sent))
            self.due, self.pause = sent + self._belief / 3, SHORT_PAUSE
        return False

    def _release_command(self, keep: float | None) -> tuple[Any, ...]:
        options: tuple[Any, ...] = ("REQ", next_id(), *self._target.with_tokens(self._tokens))
        if keep is not None:
            options += ("KEEP", milliseconds(keep))
        return self._target.command("RELEASE", self._owner, *options)

    def _ended(self, lost: bool) -> None:
        """Tells whoever waits for the end of this hold."""


class Engine:
    """The timetable of holds and errands. Thread-safe, and never locked while anything is sent."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._items: set[Item] = set()

    def add(self, item: Item) -> None:
        with self._lock:
            if (
                isinstance(item, Errand)
                and len(self._items) > MAX_SETTLEMENTS
                and len(self.errands()) >= MAX_SETTLEMENTS
            ):
                return  # The claim or the lease bounds what stays behind.
            self._items.add(item)

    def errands(self) -> list[Item]:
        return [item for item in list(self._items) if isinstance(item, Errand)]

    def poll(self) -> tuple[list[Hold], dict[float, list[Item]], float | None]:
        """Holds lost just now, requests to send now by their timeout, seconds until the next poll."""
        now, wake = self._clock(), FOREVER
        lost: list[Hold] = []
        groups: dict[float, list[Item]] = {}
        with self._lock:
            for item in list(self._items):
                if now >= item.until:
                    self._items.discard(item)
                    if isinstance(item, Hold):
                        item._state = "lost"
                        lost.append(item)
                    else:
                        log.warning("%s did not reach the server", getattr(item, "what", item))
                    continue
                # Requests that are due soon share the pipeline of those that are due now.
                if item.due <= now + item.timeout / 10:
                    item.due = now + item.timeout + SHORT_PAUSE  # Unless an answer or an error comes first.
                    groups.setdefault(item.timeout, []).append(item)
                wake = min(wake, item.until, item.due)
            pause = min(TICK, max(0.0, wake - now)) if self._items else None
        return lost, groups, pause

    def answered(self, items: Iterable[Item], replies: Sequence[Any], sent: float) -> None:
        """Takes the replies to all commands of these items, in order."""
        now, at = self._clock(), 0
        with self._lock:
            for item in items:
                count = len(item.commands())
                if item in self._items:
                    if item.answered(replies[at : at + count], sent, now):
                        self._items.discard(item)
                    elif isinstance(item, Errand):
                        self._failed(item, now)
                at += count

    def failed(self, items: Iterable[Item]) -> None:
        """No answer came: the connection was lost or was too slow."""
        now = self._clock()
        with self._lock:
            for item in items:
                self._failed(item, now)
            for item in self._items:  # The lost connection may have been the last one of their session.
                if isinstance(item, Hold) and item._options.session is not None and item._options.renew:
                    item.due = min(item.due, now + item.pause)

    def _failed(self, item: Item, now: float) -> None:
        item.due, item.pause = min(item.due, now + item.pause), min(LONG_PAUSE, 2 * item.pause)

    def end(self, hold: Hold) -> bool:
        """Ends the belief in a hold. Returns whether it was held until now."""
        with self._lock:
            held = hold.held
            self._items.discard(hold)
            if hold._state == "held":
                hold._state = "released" if held else "lost"
        return held


class Mailbox:
    """What an attempt hears while it waits. `messages` is a queue of the client's own kind."""

    def __init__(self, messages: Any, stopped: Any) -> None:
        self.put = messages.put_nowait
        self.messages, self.stopped = messages, stopped
        self.id, self.channel = 0, ""
        self.call: Any = None  # The request that is under way, where a cancelled caller leaves it behind.


class Attempt:
    """One acquisition: how it asks, and what has to be settled if it ends without a hold."""

    def __init__(self, client: Base[Any, Any, Any], target: Target, options: Options, owner: str, box: Mailbox) -> None:
        self.client, self.target, self.options, self.owner, self.box = client, target, options, owner, box
        self.lease = min(options.lease, client.max_lease)
        self.id = next_id()
        self.uncertain = False  # Whether the server may know of this attempt.
        self._lost_reply = False
        self._end = FOREVER
        self._words: tuple[Any, ...] = ("PX", milliseconds(self.lease))
        if options.session is not None:
            self._words += ("SESSION", milliseconds(options.session))
        if options.note is not None:
            self._words += ("NOTE", options.note)

    def settlement(self) -> Errand:
        client, target = self.client, self.target
        commands = [
            target.command("CANCEL", self.owner, "REQ", self.id),
            target.command("RELEASE", self.owner, "REQ", next_id()),
        ]
        what = f"settling {client.shown(target)}"
        return Errand(target.keys[0], commands, client.clock() + self.lease, client.command_timeout, what)

    async def _ask(self, timeout: float, *options: Any) -> list[int]:
        """One request. An error that proves that the server knows nothing of it clears `uncertain`."""
        self.uncertain = True
        request = self.target.command("ACQUIRE", self.owner, *self._words, *options, "REQ", self.id)
        try:
            tokens = tokens_of(await self._call(request, timeout))
        except LockError as error:
            self._failed(error)
            raise
        if not tokens:
            self._denied()
        return tokens

    async def _call(self, request: tuple[Any, ...], timeout: float) -> Any:
        self.client._check(self.box)
        return first(await self.client._call(self.target.keys[0], [request], timeout, self.box))

    async def _pause(self, seconds: float) -> None:
        """Ends early only if the attempt ends with it."""
        message = await self.client._receive(self.box, seconds) if seconds > 0 else None
        if message is not None and message.error is not None:
            raise message.error

    def _failed(self, error: LockError) -> None:
        self._lost_reply |= not error.code or error.code == "UNBLOCKED"
        self.uncertain = self._lost_reply and not isinstance(error, Superseded)

    def _denied(self) -> None:
        """The server has said that this request holds nothing and waits no more."""
        self.uncertain = self._lost_reply = False
        self.id = next_id()

    def _hold(self, tokens: list[int], sent: float) -> Hold | None:
        """None if the answer took longer than the hold lasts."""
        hold: Hold = self.client._hold_class(self, tokens, sent)
        return hold if hold.held else None

    async def attempt(self) -> Hold | None:
        """Asks once. A lost reply is repeated for as long as a command may take."""
        clock, pause = self.client.clock, SHORT_PAUSE
        end = clock() + self.client.command_timeout
        while True:
            sent = clock()
            try:
                tokens = await self._ask(max(SHORT_PAUSE, end - sent))
                hold = self._hold(tokens, sent) if tokens else None
                if hold or not tokens or clock() >= end:
                    return hold
            except Unavailable as error:
                if error.code or clock() + pause >= end:
                    raise
            await self._pause(pause)
            pause *= 2

    async def wait(self, seconds: float | None) -> Hold | None:
        """Waits for the lock, for at most `seconds`."""
        clock, pause = self.client.clock, SHORT_PAUSE
        self._end = FOREVER if seconds is None else clock() + seconds
        self._words += ("CLAIM", milliseconds(min(CLAIM, self.lease)))
        if self.options.grace is not None:
            self._words += ("GRACE", round(self.options.grace * 1000))
        while clock() < self._end:
            try:
                channel = await self.client._listen(self.target.keys[0], self.box, self.id, self._timeout())
                sent = clock()
                block = 0 if self._end == FOREVER else math.ceil(max(1, (self._end - sent) * 1000))
                tokens = await self._ask(self._timeout(), "BLOCK", block, "NOTIFY", channel)
                if tokens == WAITING:
                    pause = SHORT_PAUSE
                    tokens = await self._answer()
                    hold = await self._confirm(tokens) if tokens else None
                else:
                    hold = self._hold(tokens, sent) if tokens else None
                if hold:
                    return hold
            except Unavailable as error:
                log.debug("waiting for %s: %s", self.client.shown(self.target), error)
                await self._pause(min(pause, self._end - clock()))
                pause = min(LONG_PAUSE, 2 * pause)
        return None

    def _timeout(self) -> float:
        """No request lasts so long that the wait would exceed its timeout by a second."""
        return max(SHORT_PAUSE, min(self.client.command_timeout, self._end - self.client.clock() + 0.4))

    async def _answer(self) -> list[int]:
        """The tokens of the message; empty if the request has to be sent again, with the same id or a new one."""
        clock = self.client.clock
        again = min(clock() + ASK_AGAIN, self._end + NIL_MARGIN)
        while (left := again - clock()) > 0:
            message = await self.client._receive(self.box, left)
            if message is None or message.what == "again":
                break
            if message.error is not None:
                raise message.error
            if message.id != self.id:
                continue
            if message.what == "granted":
                return [int(token) for token in message.rest.split()]
            if message.what == "nil":
                self._denied()
                break
            error = error_of(message.rest.split(" ", 1)[0], message.rest)
            self._failed(error)
            if error.code != "UNBLOCKED":
                self.id = next_id()
            raise error
        return []

    async def _confirm(self, tokens: list[int]) -> Hold | None:
        """Claims a grant. None if the claim has expired, or the time is up."""
        clock, pause, target = self.client.clock, SHORT_PAUSE, self.target
        request = target.command("RENEW", self.owner, *target.with_tokens(tokens))
        # A new request before the server has denied this hold would count it twice.
        while clock() < self._end + NIL_MARGIN:
            sent = clock()
            try:
                await self._call(request, self._timeout())
                hold = self._hold(tokens, sent)
                if hold:
                    return hold
            except NotOwner:
                if target.kind == "many":  # One of the keys may still be held.
                    for key, token in zip(target.keys, tokens, strict=True):
                        with contextlib.suppress(NotOwner):
                            await self._call(("RLOCK.RELEASE", key, self.owner, "TOKEN", token), self._timeout())
                self._denied()
                return None
            except Unavailable:
                await self._pause(pause)
                pause = min(LONG_PAUSE, 2 * pause)
        return None


# ---- connections


def slot_of(key: bytes) -> int:
    start = key.find(b"{")
    end = key.find(b"}", start + 1)
    if start >= 0 and end > start + 1:
        key = key[start + 1 : end]
    return binascii.crc_hqx(key, 0) % 16384


def tag_of(slot: int) -> str:
    """A hash tag of this slot. Keys may have bytes that no tag can have, numbers have not."""
    return next(tag for tag in map(str, itertools.count()) if slot_of(tag.encode()) == slot)


@dataclass(frozen=True)
class Route:
    """How to connect to one server, as the application's client does."""

    name: str
    connection_class: Any
    settings: dict[str, Any]

    def at(self, host: str, port: int) -> Route:
        return Route(f"{host}:{port}", self.connection_class, {**self.settings, "host": host, "port": port})

    def connection(self, timeout: float) -> Any:
        """A connection that is not open yet. It does not decode, does not repeat anything, and has this timeout."""
        settings = {
            name: value
            for name, value in self.settings.items()
            if "maint_notifications" not in name and not name.startswith("retry")
        }
        settings.update(decode_responses=False, protocol=2, health_check_interval=0, socket_timeout=timeout)
        if "path" not in settings:
            settings["socket_connect_timeout"] = timeout
        return self.connection_class(**settings)


class Subscriber:
    """One connection that hears the answers of one server. The clients add what reads it."""

    def __init__(self, client: Client, route: Route) -> None:
        self._client, self._route = client, route
        self._command = "SSUBSCRIBE" if client.is_cluster else "SUBSCRIBE"
        self._ready: dict[str, Any] = {}  # An event for each channel, set while it is subscribed.
        self._error: LockError | None = None

    def _connection(self) -> Any:
        return self._route.connection(min(2.0, self._client.command_timeout))

    def _failed(self, error: Exception) -> None:
        """The connection was lost, or could not be made."""
        self._error = typed(error)
        log.debug("subscriber: %s", self._error)
        if self._client.is_cluster:
            self._client._refresh()
        ready, channels = list(self._ready.values()), list(self._ready)
        if self._client.is_cluster or not isinstance(self._error, Unavailable):
            self._ready.clear()  # Another node may serve them now.
            for event in ready:
                event.set()
            self._client._tell(channels, Message("again"))
        else:
            for event in ready:
                event.clear()

    def _heard(self, reply: Any) -> None:
        self._error = None
        what, channel = reply[0], (reply[1] or b"").decode()
        if what in (b"subscribe", b"ssubscribe"):
            self._client._tell([channel], Message("again"))  # What was said in between is lost.
            if channel in self._ready:
                self._ready[channel].set()
        elif what == b"sunsubscribe":  # The slot has moved.
            self._ready.pop(channel, None)
            self._client._refresh()
            self._client._tell([channel], Message("again"))
        elif what in (b"message", b"smessage"):
            message = parse_message(reply[2])
            for box in list(self._client._boxes) if message else ():
                if message and box.id == message.id:
                    box.put(message)

    def _confirmed(self, channel: str, is_ready: bool) -> None:
        if not is_ready or self._error is not None:
            raise self._error or Unavailable("the subscription was not confirmed in time")


# ---- clients


class Base(Generic[H, L, S]):
    """What the clients share."""

    _hold_class: Any
    _lock_class: Any
    _semaphore_class: Any
    _lock_type: Any = threading.Lock
    _disconnect: dict[str, bool] = {}  # noqa: RUF012

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
        self.redis = redis
        self.clock: Callable[[], float] = clock or SteadyClock()
        self._prefix = encoded(key_prefix)
        configured = None if self.is_cluster else redis.connection_pool.connection_kwargs.get("socket_timeout")
        self.command_timeout = float(command_timeout or configured or 5.0)
        self.closed = False
        self._begin()

    def _begin(self) -> None:
        """A new identity, at the start and after a fork."""
        self.id = secrets.token_hex(16)
        self.engine = Engine(self.clock)
        self.max_lease = 0.0  # Not known yet.
        self.held: dict[tuple[str, bytes, str], list[H]] = {}
        self.owners = itertools.count(1)
        self._lock = threading.Lock()
        self._channels: dict[int, str] = {}
        self._boxes: set[Mailbox] = set()
        self._subscribers: dict[str, Any] = {}
        self._idle: dict[str, list[Any]] = {}
        self._is_refreshing = self._is_ended = False

    # -- the locks

    def lock(self, key: str | bytes, **options: Any) -> L:
        """A mutex. The keyword arguments are those of :class:`Options`, all times in seconds."""
        return self._make("mutex", [key], options)

    def fair_lock(self, key: str | bytes, **options: Any) -> L:
        """A mutex whose queue survives restarts and failovers.

        ``grace`` is for how many seconds a waiter keeps its place without a connection.
        """
        return self._make("fair", [key], options)

    def read_lock(self, key: str | bytes, **options: Any) -> L:
        """The reading side of a read-write lock."""
        return self._make("read", [key], options)

    def write_lock(self, key: str | bytes, **options: Any) -> L:
        """The writing side of a read-write lock."""
        return self._make("write", [key], options)

    def multi_lock(self, keys: Iterable[str | bytes], **options: Any) -> L:
        """Several mutexes, acquired all or none in one step. In a cluster the keys need one hash tag."""
        return self._make("many", keys, options)

    def semaphore(self, key: str | bytes, permits: int = 1, **options: Any) -> S:
        """A semaphore, of which each acquisition takes ``permits``."""
        semaphore: S = self._semaphore_class(self, self._target("semaphore", [key], permits), Options(**options))
        return semaphore

    def _make(self, kind: str, keys: Iterable[str | bytes], options: dict[str, Any]) -> L:
        lock: L = self._lock_class(self, self._target(kind, keys), Options(**options))
        return lock

    def _target(self, kind: str, keys: Iterable[str | bytes], permits: int = 1) -> Target:
        prefixed = tuple(self._prefix + encoded(key) for key in keys)
        if not prefixed:
            raise ValueError("at least one key is needed")
        return Target(kind, prefixed, permits)

    def shown(self, target: Target) -> str:
        return ", ".join(repr(key.decode("utf-8", "backslashreplace")) for key in target.keys)

    # -- what the two clients do in their own way

    def _scope(self) -> str:
        """The name of the current thread or task."""
        raise NotImplementedError

    def _box(self) -> Mailbox:
        raise NotImplementedError

    async def _receive(self, box: Mailbox, timeout: float) -> Message | None:
        raise NotImplementedError

    async def _sleep(self, seconds: float) -> None:
        raise NotImplementedError

    async def _read(self, connection: Any, end: float) -> Any:
        raise NotImplementedError

    def _subscriber(self, route: Route) -> Any:
        raise NotImplementedError

    def _spawn(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Runs the coroutine in the background."""
        raise NotImplementedError

    def _wake(self) -> None:
        """Lets the timer call :meth:`_poll` soon."""
        raise NotImplementedError

    # -- requests

    async def _route(self, key: bytes) -> Route:
        redis = self.redis
        if not self.is_cluster:
            return Route("", redis.connection_pool.connection_class, redis.connection_pool.connection_kwargs)
        try:
            if hasattr(redis, "initialize"):
                await redis.initialize()
            node = redis.get_node_from_key(key)
        except Exception as error:
            self._refresh()
            raise Unavailable(f"no node serves the key: {error}") from error
        pool = redis.get_redis_connection(node).connection_pool if hasattr(redis, "get_redis_connection") else node
        return Route(node.name, pool.connection_class, pool.connection_kwargs)

    async def _call(
        self, key: bytes, commands: Sequence[tuple[Any, ...]], timeout: float, asks: Mailbox | None = None
    ) -> list[Any]:
        """The replies, with the server's errors among them. Raises :class:`Unavailable` if there are none."""
        end = time.monotonic() + timeout
        try:
            route = await self._route(key)
            replies = await self._exchange(route, commands, end)
            for at, reply in enumerate(replies):
                for _ in range(3):
                    code = code_of(reply) if isinstance(reply, Exception) else ""
                    if code not in ("MOVED", "ASK"):
                        break
                    self._refresh()
                    there = route.at(*self.redis.nodes_manager.remap_host_port(reply.host, reply.port))
                    asking = [("ASKING",)] if code == "ASK" else []
                    reply = (await self._exchange(there, [*asking, commands[at]], end))[-1]
                replies[at] = reply
            return replies
        except Exception as error:
            if self.is_cluster:
                self._refresh()
            raise typed(error) from error

    async def _exchange(self, route: Route, commands: Sequence[tuple[Any, ...]], end: float) -> list[Any]:
        with self._lock:
            idle = self._idle.get(route.name)
            connection = idle.pop() if idle else None
        if connection is None:
            connection = route.connection(max(SHORT_PAUSE, end - time.monotonic()))
        replies: list[Any] = []
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
        except BaseException:
            with self._lock:  # The others may have been cut with it.
                broken = [connection, *self._idle.pop(route.name, [])]
            for one in broken:
                await done(one.disconnect(**self._disconnect))
            raise
        with self._lock:
            idle = self._idle.setdefault(route.name, [])
            is_kept = len(idle) < MAX_IDLE and not self._is_ended
            if is_kept:
                idle.append(connection)
        if not is_kept:
            await done(connection.disconnect(**self._disconnect))
        return replies

    def _refresh(self) -> None:
        """Lets the application's client load the map of the cluster, in the background, once at a time."""
        if not self._is_refreshing and not self._is_ended:
            self._is_refreshing = True
            self._spawn(self._load_map())

    async def _load_map(self) -> None:
        try:
            await done(self.redis.nodes_manager.initialize())
        except Exception as error:
            log.debug("the map of the cluster could not be loaded: %s", error)
        finally:
            self._is_refreshing = False

    async def _listen(self, key: bytes, box: Mailbox, number: int, timeout: float) -> str:
        """Subscribes for the answer to a request, and returns the channel."""
        self._check(box)
        route, channel = await self._route(key), f"rlock:{self.id}"
        if self.is_cluster:
            slot = slot_of(key)
            channel = self._channels.get(slot) or f"{channel}:{{{tag_of(slot)}}}"
            self._channels[slot] = channel
        with self._lock:
            subscriber = self._subscribers.get(route.name)
            if subscriber is None:
                subscriber = self._subscribers[route.name] = self._subscriber(route)
        await subscriber.subscribe(channel, timeout)
        box.id, box.channel = number, channel
        return channel

    def _check(self, box: Mailbox) -> None:
        if self.closed:
            raise Closed("the client was closed")
        if box.stopped is not None and box.stopped.is_set():
            raise Stopped("the wait was stopped")

    def _tell(self, channels: list[str], message: Message) -> None:
        for box in list(self._boxes):
            if box.channel in channels:
                box.put(message)

    # -- the timer

    def _background(self, errand: Errand) -> None:
        self.engine.add(errand)
        self._wake()

    def _poll(self) -> float | None:
        """Tells losses and sends what is due. Returns the seconds until the next call, None for no limit."""
        lost, groups, pause = self.engine.poll()
        for hold in lost:
            hold._ended(lost=True)
        for timeout, items in groups.items():
            self._spawn(self._send(timeout, items))
        return pause

    async def _send(self, timeout: float, items: list[Item]) -> None:
        servers: dict[str, list[Item]] = {}
        for item in items:
            try:
                servers.setdefault((await self._route(item.key)).name, []).append(item)
            except Unavailable:
                self.engine.failed([item])
        for batch in servers.values():  # No server delays the renewals of another one.
            self._spawn(self._send_batch(timeout, batch))

    async def _send_batch(self, timeout: float, items: list[Item]) -> None:
        sent = self.clock()
        try:
            commands = [command for item in items for command in item.commands()]
            self.engine.answered(items, await self._call(items[0].key, commands, timeout), sent)
        except LockError as error:
            log.debug("background request: %s", error)
            self.engine.failed(items)
        self._wake()

    # -- who holds what

    def _slots(self, target: Target, scope: str) -> list[tuple[str, bytes, str]]:
        family = "mutex" if target.kind == "many" else target.kind
        return [(family, key, scope) for key in target.keys]

    def _reenter(self, target: Target, scope: str) -> H | None:
        """The hold that this owner has already, counted once more."""
        with self._lock:
            found = [self.held[slot][-1] for slot in self._slots(target, scope) if slot in self.held]
            if not found or target.kind == "semaphore":
                return None
            if len({id(hold) for hold in found}) > 1 or found[0]._target != target:
                raise RuntimeError(f"this owner already holds {self.shown(found[0]._target)}")
            found[0].check()
            found[0]._count += 1
            return found[0]

    def _leave(self, target: Target, scope: str) -> tuple[H, bool]:
        """The innermost hold of this owner, and whether this release is the last one."""
        with self._lock:
            slots = self._slots(target, scope)
            hold = next((h for h in reversed(self.held.get(slots[0], [])) if h._target == target), None)
            if hold is None:
                raise RuntimeError(f"this thread or task does not hold {self.shown(target)}")
            hold._count -= 1
            for slot in slots if hold._count == 0 else []:
                self.held[slot].remove(hold)
                if not self.held[slot]:
                    del self.held[slot]
            return hold, hold._count == 0

    async def _acquire(self, target: Target, options: Options, scope: str, wait: float | None) -> H | None:
        hold: H | None = self._reenter(target, scope)
        if hold is not None:
            return hold
        box = self._box()
        self._boxes.add(box)
        attempt = None
        try:
            self._check(box)
            if not self.max_lease:
                await self._learn(target.keys[0])
            # A semaphore gives permits for each acquisition, so each is an owner of its own.
            fresh = target.kind == "semaphore" and not options.owner
            attempt = Attempt(self, target, options, f"{scope}.{next(self.owners)}" if fresh else scope, box)
            granted = await (attempt.attempt() if wait is not None and wait <= 0 else attempt.wait(wait))
            if granted is None:
                return None
            hold = cast(H, granted)
            with self._lock:
                self._check(box)
                for slot in self._slots(target, scope):
                    self.held.setdefault(slot, []).append(hold)
            self.engine.add(hold)
            attempt.uncertain = False
            self._wake()
            return hold
        finally:
            if attempt is not None and attempt.uncertain:
                self._settle(attempt)
            else:
                self._boxes.discard(box)

    def _settle(self, attempt: Attempt) -> None:
        self._background(attempt.settlement())
        self._boxes.discard(attempt.box)

    async def _learn(self, key: bytes) -> None:
        """The longest lease that the server grants, if INFO tells it."""
        self.max_lease = FOREVER
        with contextlib.suppress(LockError):
            reply = first(await self._call(key, [("INFO", "rlock")], self.command_timeout))
            found = re.search(rb"rlock_max_lease_ms:(\d+)", encoded(reply))
            if found and int(found[1]):
                self.max_lease = int(found[1]) / 1000

    async def _release(self, target: Target, scope: str, keep: float | None) -> None:
        hold, is_last = self._leave(target, scope)
        if not is_last:
            hold.check()
            return
        was_held = self.engine.end(hold)
        hold._ended(lost=False)
        command = hold._release_command(keep)
        errand, is_done = self._errand(hold, command), False
        try:
            is_done = was_held and await self._release_now(hold, command)
        finally:  # Also if the caller was cancelled.
            if not is_done:
                self._background(errand)
        if not was_held:
            raise LockLost(f"the hold of {self.shown(target)} ended before its release")

    async def _release_now(self, hold: Hold, command: tuple[Any, ...]) -> bool:
        """Whether the release has reached the server."""
        for is_repeated in (False, True):
            try:
                first(await self._call(hold.key, [command], hold.timeout))
                return True
            except NotOwner:
                if not is_repeated:
                    hold._state = "lost"
                    raise LockLost(f"the hold of {self.shown(hold._target)} ended before its release") from None
                return True
            except Unavailable as error:
                log.debug("the release of %s: %s", self.shown(hold._target), error)
            except LockError as error:
                log.warning("the release of %s was refused: %s", self.shown(hold._target), error)
                return True
        return False

    def _errand(self, hold: Hold, command: tuple[Any, ...], within: float = FOREVER) -> Errand:
        """A release in the background, for as long as the server may know the hold."""
        now = self.clock()
        until = min(hold.until if hold.until > now else now + hold._lease, now + within)
        return Errand(hold.key, [command], until, hold.timeout, f"the release of {self.shown(hold._target)}")

    # -- the end

    async def _close(self) -> None:
        """Ends waits, releases holds, and waits until that has been answered, or 5 s have passed."""
        with self._lock:
            self.closed = True
            holds = {id(hold): hold for stack in self.held.values() for hold in stack}
            self.held.clear()
        for hold in holds.values():
            if self.engine.end(hold):
                hold._ended(lost=False)
                self._background(self._errand(hold, hold._release_command(None), CLOSE_WITHIN))
        end = time.monotonic() + CLOSE_WITHIN
        while (self._boxes or self.engine.errands()) and time.monotonic() < end:
            for box in list(self._boxes):
                box.put(Message("end", error=Closed("the client was closed")))
            await self._sleep(0.01)
        with self._lock:
            self._is_ended = True
            connections = [connection for idle in self._idle.values() for connection in idle]
            self._idle.clear()
        for connection in connections:
            await done(connection.disconnect(**self._disconnect))


class LockBase(Generic[H]):
    """What a lock object knows. It has no state of a hold, so threads and tasks can share it."""

    def __init__(self, client: Client, target: Target, options: Options) -> None:
        self._client, self._target, self._options = client, target, options
        self._entered: dict[str, list[H]] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._target.kind} {self._client.shown(self._target)}>"

    @property
    def held(self) -> bool:
        """Whether the current thread or task holds this lock."""
        stack = self._client.held.get(self._client._slots(self._target, self._scope())[0], [])
        return any(hold._target == self._target and hold.held for hold in list(stack))

    def _scope(self) -> str:
        return self._options.owner or self._client._scope()

    async def _acquire(self, blocking: bool, timeout: float | None) -> H | None:
        wait = 0 if not blocking else self._options.timeout if timeout is None else timeout
        hold: H | None = await self._client._acquire(self._target, self._options, self._scope(), wait)
        return hold

    async def _release(self, keep: float | None) -> None:
        await self._client._release(self._target, self._scope(), keep)

    async def _enter(self) -> H:
        hold = await self._acquire(True, None)
        if hold is None:
            raise LockTimeout(f"{self!r} was not acquired within {self._options.timeout} s")
        self._entered.setdefault(self._scope(), []).append(hold)
        return hold

    async def _exit(self, error: BaseException | None, lost_instead: Callable[[H], bool]) -> None:
        """Never replaces an error of the block, other than a cancellation by the loss itself."""
        stack = self._entered.get(self._scope(), [])
        hold = stack.pop() if stack else None
        if not stack:
            self._entered.pop(self._scope(), None)
        try:
            if hold is None or hold._process != self._client.id:
                raise LockLost("the lock belongs to the parent process, or to another thread or task")
            replaces = lost_instead(hold)
            if self._client.closed:
                raise LockLost("the client was closed")
            if hold._state != "released":  # By the block itself, as with `keep`.
                await self._release(None)
        except LockError:
            if error is None or (hold is not None and replaces):
                raise

    async def _init(self, permits: int, idle: float | None) -> bool:
        words: tuple[Any, ...] = ("RSEMAPHORE.INIT", self._target.keys[0], permits)
        words += () if idle is None else ("IDLE", milliseconds(idle))
        return bool(first(await self._client._call(words[1], [words], self._client.command_timeout)))
