"""What the synchronous and the asyncio client share.

Nothing here waits or sends by itself: the two clients add what does. The asyncio client runs the coroutines of
this module in tasks. In the synchronous client, whatever they await is done when it returns, so :func:`run`
carries them out in one step.
"""

from __future__ import annotations

import asyncio
import binascii
import contextlib
import inspect
import itertools
import logging
import math
import os
import re
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypedDict, TypeVar, cast

from . import errors as e
from .errors import LockError, LockLost, NotOwner, Unavailable, typed

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")
H = TypeVar("H", bound="Hold")
L = TypeVar("L")
S = TypeVar("S")
Command = tuple[Any, ...]

log = logging.getLogger("rlock_redis")

CLAIM = 2.0  # A grant that nobody confirms ends after so many seconds.
ASK_AGAIN = 30.0  # A message may be lost, so a waiting request is repeated so often.
CLOSE_WITHIN = 5.0
SHORT_PAUSE, LONG_PAUSE = 0.05, 1.0  # Between attempts, doubled each time.
NIL_MARGIN = 0.2  # The server's own "nil" may come so much after its timeout; then we settle.
TICK = 0.25  # Timers of the platform do not count suspend, so the clock is read so often.
PING = 10.0  # A subscriber that hears nothing for so long asks whether the server is there.
MAX_SETTLEMENTS = 1000
MAX_IDLE = 16  # Connections kept open, for each server.
FOREVER = math.inf

# The ids of an owner must rise, also over a restart of the process. The id after each drawn one belongs to it: the
# RELEASE of an acquisition uses it. So that RELEASE has a lower id than all later acquisitions of the process.
_ids = itertools.count(time.time_ns() // 1000, 2)
_clients: weakref.WeakSet[Base[Any, Any, Any]] = weakref.WeakSet()


def _after_fork() -> None:
    global _ids
    # A child that is replaced by another one has used ids above the parent's.
    _ids = itertools.count(max(next(_ids), time.time_ns() // 1000), 2)
    for client in _clients:
        client._begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class SteadyClock:
    """Seconds on a clock that never steps back and goes on during suspend."""

    def __init__(self) -> None:
        self._boottime: int | None = getattr(time, "CLOCK_BOOTTIME", None)
        self._lock = threading.Lock()
        self._last, self._total = (time.monotonic(), time.time()), 0.0

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

    _FAMILIES: ClassVar[dict[str, str]] = {"fair": "RFAIRLOCK", "read": "RRWLOCK", "write": "RRWLOCK"}

    def command(self, verb: str, owner: str, *options: Any) -> Command:
        if self.kind == "many" and verb in ("ACQUIRE", "RENEW"):
            return (f"RLOCK.M{verb}", len(self.keys), *self.keys, owner, *options)
        family = self._FAMILIES.get(self.kind, "RSEMAPHORE" if self.kind == "semaphore" else "RLOCK")
        words: Command = (f"{family}.{verb}", self.keys[0], owner)
        if verb != "CANCEL" and self.kind in ("read", "write"):
            words += (self.kind.upper(),)
        if verb in ("ACQUIRE", "RELEASE") and self.kind == "semaphore":
            words += ("PERMITS", self.permits)
        return words + options

    def releases(self, owner: str, number: int, tokens: Sequence[int], *options: Any) -> list[Command]:
        """One for each key, because MRELEASE frees none if one of them is not held."""
        each = [Target("mutex", (key,)) for key in self.keys] if self.kind == "many" else [self]
        ends: list[Command] = [("TOKEN", token, *options) for token in tokens] or [()] * len(each)
        return [one.command("RELEASE", owner, "REQ", number, *end) for one, end in zip(each, ends, strict=True)]

    def renewal(self, owner: str, tokens: Sequence[int]) -> Command:
        return self.command("RENEW", owner, "TOKENS" if self.kind == "many" else "TOKEN", *tokens)

    def __str__(self) -> str:
        return ", ".join(repr(key.decode("utf-8", "backslashreplace")) for key in self.keys)


class LockOptions(TypedDict, total=False):
    """The keyword arguments of the methods that make locks. All times are in seconds.

    ``lease``: after so long without renewal the server ends the hold (30). ``renew``: whether the client renews
    it (True). ``timeout``: how long to wait; None, the default, means no limit. ``session``: the server ends the
    hold so long after its last connection was lost. ``grace``: a waiter on a fair lock keeps its place so long
    without a connection. ``owner``: a name instead of that of the thread or task. ``note``: a text for people,
    stored with the hold. ``on_lost``: called with the hold when it is lost.
    """

    lease: float
    renew: bool
    timeout: float | None
    session: float | None
    grace: float | None
    owner: str | None
    note: str | None
    on_lost: Callable[[Any], Any] | None


@dataclass(frozen=True)
class Options:
    lease: float = 30.0
    renew: bool = True
    timeout: float | None = None
    session: float | None = None
    grace: float | None = None
    owner: str | None = None
    note: str | None = None
    on_lost: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        for name, value, least in (("lease", self.lease, 0.001), ("session", self.session, 0.01)):
            if value is not None and not value >= least:
                raise ValueError(f"{name} must be {least} seconds or more, not {value!r}")
        if self.session is not None and not self.renew:
            raise ValueError("session needs a lease that is renewed, not renew=False")


def encoded(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


def milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))


@dataclass(frozen=True)
class Message:
    """What a channel said: ``granted``, ``nil`` or ``error``; ``again`` and ``end`` come from the client itself."""

    what: str
    id: int = 0
    rest: str = ""
    error: LockError | None = None


WAITING: list[int] = [-1]


def tokens_of(reply: Any) -> list[int]:
    """The tokens of a reply, an empty list for nil, and :data:`WAITING`."""
    if reply in (None, b"WAITING"):
        return WAITING if reply else []
    words = [str(word, "utf-8", "replace") if isinstance(word, bytes) else str(word) for word in _list(reply)]
    if not all(word.isdecimal() for word in words):
        raise e.Refused(f"the server answered {reply!r} instead of a token")
    if not all(int(word) for word in words):
        raise e.ModuleTooOld(f"the server answered {reply!r} instead of a token: its module is too old")
    return [int(word) for word in words]


def _list(reply: Any) -> list[Any]:
    return reply if isinstance(reply, list) else [reply]


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
        return cast(T, stop.value)
    raise RuntimeError("a coroutine of the synchronous client was suspended")


# ---- what is sent in the background


class Item:
    """A request that is sent until it is answered or `until` has come."""

    key: bytes
    due = FOREVER
    until = FOREVER
    timeout = 1.0
    pause = SHORT_PAUSE
    what = ""
    under_way = 0
    commands: Callable[[], Sequence[Command]]
    # Takes the replies, the time before the request was sent, and now; returns whether nothing more has to be sent.
    take: Callable[[Sequence[Any], float, float], bool]

    def retry(self, now: float) -> None:
        # On a common grid, so that requests that failed at different times share a pipeline.
        due = math.ceil((now + self.pause) / SHORT_PAUSE) * SHORT_PAUSE
        self.due, self.pause = min(self.due, due), min(LONG_PAUSE, 2 * self.pause)


class Errand(Item):
    """A settlement, or a release whose first attempt failed."""

    due = 0.0

    def __init__(
        self, target: Target, owner: str, commands: Sequence[Command], until: float, timeout: float, what: str
    ) -> None:
        self.target, self.key, self.owner = target, target.keys[0], owner
        self._commands, self.until, self.timeout, self.what = commands, until, timeout, f"{what} {target}"

    def commands(self) -> Sequence[Command]:
        return self._commands

    def take(self, replies: Sequence[Any], sent: float, now: float) -> bool:
        problems = [typed(reply) for reply in replies if isinstance(reply, BaseException)]
        if any(isinstance(problem, Unavailable) for problem in problems):
            self.retry(now)
            return False
        for problem in problems:
            # After STALE a newer request of this owner shares the hold.
            if isinstance(problem, e.Refused) and problem.code != "STALE":
                log.warning("%s was refused: %s", self.what, problem)
        return True


class Hold(Item):
    """A lock that was acquired.

    ``token`` is the fencing token, ``tokens`` has one for each key, and ``owner`` is the name that the server knows.
    The client believes in the hold until its deadline: the moment before the last answered request was sent, plus
    the lease, minus 1 % of the lease and 2 ms.
    """

    _ended: Callable[[bool], None]  # Tells whoever waits for the end of this hold whether it was lost.

    def __init__(self, attempt: Attempt, tokens: list[int], sent: float) -> None:
        self._target, self._options, self._client = attempt.target, attempt.options, attempt.client
        self._process, self._lease, self._count, self._state = self._client.id, attempt.lease, 1, "held"
        self.owner, self.tokens, self.token = attempt.owner, tuple(tokens), tokens[0]
        self._user = self._client._scope()
        self._release_id = attempt.id + 1  # Below that of a newer request of the owner, which may share the hold.
        self._is_settled = False  # Whether the engine releases it, because the clock has ended it.
        self.key = self._target.keys[0]
        # A connection may be lost without our notice, and the server then ends a session after its grace. So the
        # belief is always the shorter of lease and grace.
        self._belief = min(self._lease, self._options.session or FOREVER)
        self.until = self._deadline(sent)
        if self._options.renew:
            self.due = sent + self._belief / 3
        # Rounded down to one of a few values, so that holds with other leases share a pipeline.
        self.timeout = 1.25 ** math.floor(math.log(min(self._client.command_timeout, self._belief / 3), 1.25))

    def _deadline(self, sent: float, left: float = FOREVER) -> float:
        return sent + min(self._belief, left) * 0.99 - 0.002

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
            raise LockLost(f"the hold of {self._target} has ended")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._target} token={self.token} held={self.held}>"

    def commands(self) -> Sequence[Command]:
        return [self._target.renewal(self.owner, self.tokens)]

    def take(self, replies: Sequence[Any], sent: float, now: float) -> bool:
        if isinstance(replies[0], BaseException):
            if isinstance(typed(replies[0]), NotOwner):
                self.until = -FOREVER
            else:
                self.retry(now)
        elif now < self.until:
            self.until = max(self.until, self._deadline(sent, int(replies[0]) / 1000))
            self.due, self.pause = sent + self._belief / 3, SHORT_PAUSE
        return False

    def _release_errand(self, keep: float | None, within: float = FOREVER) -> Errand:
        """For as long as the server may know the hold."""
        options: Command = () if keep is None else ("KEEP", milliseconds(keep))
        now = self._client.clock()
        # While its connection is open, a hold with a session lasts longer than the belief in it.
        may_outlast = self.until <= now or self._options.session is not None
        until = min(now + self._lease if may_outlast else self.until, now + within)
        commands = self._target.releases(self.owner, self._release_id, self.tokens, *options)
        return Errand(self._target, self.owner, commands, until, self.timeout, "the release of")


class Engine:
    """The timetable of holds and errands. Thread-safe, and never locked while anything is sent."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._items: dict[Item, None] = {}  # In order: a newer request of an owner makes its older ones stale.

    def add(self, item: Item) -> None:
        with self._lock:
            # The claim or the lease bounds what stays behind.
            if isinstance(item, Hold) or len(self.errands()) < MAX_SETTLEMENTS:
                self._items[item] = None

    def errands(self) -> list[Errand]:
        return [item for item in list(self._items) if isinstance(item, Errand)]

    def poll(self) -> tuple[list[Hold], dict[float, list[Item]], float | None]:
        """Holds lost just now, requests to send now by their timeout, seconds until the next poll."""
        now, wake = self._clock(), TICK
        lost: list[Hold] = []
        groups: dict[float, list[Item]] = {}
        with self._lock:
            for item in list(self._items):
                if now >= item.until:
                    self._items.pop(item, None)
                    if isinstance(item, Hold):
                        item._state = "lost"
                        lost.append(item)
                    else:
                        log.warning("%s did not reach the server", item.what)
                    continue
                # Requests that are due soon share the pipeline of those that are due now.
                if item.due <= now + item.timeout / 10 and item.under_way < 2:
                    item.due = now + item.timeout + SHORT_PAUSE  # Unless an answer or an error comes first.
                    item.under_way += 1
                    groups.setdefault(item.timeout, []).append(item)
                wake = min(wake, item.until - now, item.due - now if item.under_way < 2 else FOREVER)
            # A renewal on its way may extend a hold that the clock has ended. The work stops during the pause; a poll
            # sends what is due within a tenth of the timeout.
            room = max(0, MAX_SETTLEMENTS - len(self.errands())) if lost else 0
            for hold in [hold for hold in lost if hold.until > -FOREVER or len(hold.tokens) > 1][:room]:
                errand, hold._is_settled = hold._release_errand(None), True
                errand.due, errand.pause = FOREVER, min(1.0, hold._belief / 100) + errand.timeout / 10
                errand.retry(now)
                if errand.due < errand.until:
                    self._items[errand] = None
                wake = min(wake, errand.due - now)
            return lost, groups, max(0.0, wake) if self._items else None

    def answered(self, items: Iterable[Item], replies: Sequence[Any], sent: float) -> None:
        """Takes the replies to all commands of these items, in order."""
        now, at = self._clock(), 0
        with self._lock:
            for item in items:
                count = len(item.commands())
                item.under_way -= 1
                try:
                    if item in self._items and item.take(replies[at : at + count], sent, now):
                        self._items.pop(item, None)
                except Exception as error:  # The other items have to hear their answers.
                    log.warning("the answer %r was not understood: %s", replies[at : at + count], error)
                    item.retry(now)
                at += count

    def failed(self, items: Iterable[Item]) -> None:
        """No answer came: the connection was lost or was too slow."""
        now = self._clock()
        with self._lock:
            for item in items:
                item.under_way -= 1
                item.retry(now)
            for item in self._items:  # The lost connection may have been the last one of their session.
                if isinstance(item, Hold) and item._options.session is not None and item._options.renew:
                    item.due = min(item.due, now + item.pause)

    def hasten(self, owner: str, keys: Sequence[bytes]) -> bool:
        """Whether errands of this owner for these keys are left. They become due at once."""
        with self._lock:
            left = [x for x in self.errands() if x.owner == owner and not set(keys).isdisjoint(x.target.keys)]
            for errand in left:
                errand.due = 0.0
            return bool(left)

    def end(self, hold: Hold) -> bool | None:
        """Ends the belief in a hold. Returns whether it was held until now, None if `poll` has ended it before."""
        with self._lock:
            if hold._state != "held":
                return None
            held = hold.held
            self._items.pop(hold, None)
            hold._state = "released" if held else "lost"
        return held


# ---- acquiring


class Mailbox:
    """What an attempt hears while it waits. `messages` is a queue of the client's own kind."""

    def __init__(self, messages: Any, stopped: Any = None) -> None:
        self.messages, self.put, self.stopped = messages, messages.put_nowait, stopped
        self.id, self.channel = 0, ""
        self.home = self.asked = ""  # The node of the subscription, and the node that answered the request.
        self.call: Any = None  # The request that is under way, where a cancelled caller leaves it behind.


class Attempt:
    """One acquisition: how it asks, and what has to be settled if it ends without a hold."""

    def __init__(self, client: Base[Any, Any, Any], target: Target, options: Options, owner: str, box: Mailbox) -> None:
        self.client, self.target, self.options, self.owner, self.box = client, target, options, owner, box
        self.lease = options.lease
        self.id, self._end = 0, FOREVER  # The first request draws the id.
        self.uncertain = self._lost_reply = False  # Whether the server may know of this attempt; and why.
        self._words: Command = () if options.session is None else ("SESSION", milliseconds(options.session))
        self._words += () if options.note is None else ("NOTE", options.note)

    def settlement(self) -> Errand:
        client, until = self.client, self.client.clock() + self.lease
        commands = [  # CANCEL of one key ends the wait on all of them.
            self.target.command("CANCEL", self.owner, "REQ", self.id),
            *self.target.releases(self.owner, self.id + 1, ()),
        ]
        return Errand(self.target, self.owner, commands, until, client.command_timeout, "settling")

    async def _ask(self, timeout: float, *options: Any) -> list[int]:
        """One request. An error that proves that the server knows nothing of it clears `uncertain`."""
        self.id = self.box.id = self.id or next(_ids)
        self.uncertain = True
        # The server may still know a former hold of this owner, whose release it has not accepted yet. ONCE shares it,
        # so one release ends it.
        words: Command = ("PX", milliseconds(self.lease), *self._words, *options, "REQ", self.id, "ONCE")
        request = self.target.command("ACQUIRE", self.owner, *words)
        try:
            tokens = tokens_of(await self._call(request, timeout))
        except LockError as error:
            self._failed(error)
            raise
        if not tokens:
            self._denied()
        return tokens

    async def _call(self, request: Command, timeout: float) -> Any:
        self.client._check(self.box)
        return first(await self.client._call(self.target.keys[0], [request], timeout, self.box))

    async def _pause(self, seconds: float) -> None:
        """Ends early only if the attempt ends with it."""
        message = await self.client._receive(self.box, seconds) if seconds > 0 else None
        if message is not None and message.error is not None:
            raise message.error

    def _failed(self, error: LockError) -> None:
        self._lost_reply |= not error.code or error.code == "UNBLOCKED"
        self.uncertain = self._lost_reply and not isinstance(error, e.Superseded)

    def _denied(self) -> None:
        """The server has said that this request holds nothing and waits no more."""
        self.uncertain, self._lost_reply, self.id = False, False, 0

    def _hold(self, tokens: list[int], sent: float) -> Hold | None:
        """None if the answer took longer than the hold lasts."""
        hold: Hold = self.client._hold_class(self, tokens, sent)
        return hold if hold.held else None

    async def acquire(self, wait: float | None) -> Hold | None:
        """Waits for at most so many seconds. With 0 it asks once, and repeats that if the reply was lost."""
        clock, pause = self.client.clock, SHORT_PAUSE
        waits = wait is None or wait > 0
        self._end = FOREVER if wait is None else clock() + (wait if waits else self.client.command_timeout)
        if waits and self.options.grace is not None:
            self._words += ("GRACE", round(self.options.grace * 1000))
        while clock() < self._end:
            try:
                # A RELEASE that arrives after this request would be stale, and leave what this request does not share.
                has_time = clock() + pause < self._end and (waits or pause == SHORT_PAUSE)
                if has_time and self.client._engine.hasten(self.owner, self.target.keys):
                    self.client._wake()
                    raise Unavailable("a former hold of this owner has not been released yet")
                self.lease = min(self.options.lease, self.client.max_lease or await self._learn())
                options: Command = ()
                if waits:
                    channel = await self.client._listen(self.target.keys[0], self.box, self._timeout())
                    block = 0 if wait is None else math.ceil(max(1, (self._end - clock()) * 1000))
                    options = ("BLOCK", block, "NOTIFY", channel, "CLAIM", milliseconds(min(CLAIM, self.lease)))
                sent = clock()
                tokens = await self._ask(self._timeout(), *options)
                if tokens == WAITING:
                    pause, tokens = SHORT_PAUSE, await self._answer()
                    hold = await self._confirm(tokens) if tokens else None
                else:
                    hold = self._hold(tokens, sent) if tokens else None
                if hold or not (tokens or waits):
                    return hold
            except Unavailable as error:
                if not waits and (error.code or clock() + pause >= self._end):
                    raise
                log.debug("%s: %s", self.target, error)
                await self._pause(min(pause, self._end - clock()))
                pause = min(LONG_PAUSE, 2 * pause)
        return None

    async def _learn(self) -> float:
        """The longest lease that the server grants, if INFO tells it."""
        found = None
        with contextlib.suppress(e.Refused):
            found = re.search(
                rb"rlock_max_lease_ms:(\d+)", encoded(await self._call(("INFO", "rlock"), self._timeout()))
            )
        self.client.max_lease = int(found[1]) / 1000 if found and int(found[1]) else FOREVER
        return self.client.max_lease

    def _timeout(self) -> float:
        """No request lasts so long that the wait would exceed its timeout by a second."""
        return max(SHORT_PAUSE, min(self.client.command_timeout, self._end - self.client.clock() + 0.4))

    async def _answer(self) -> list[int]:
        """The tokens of the message; empty if the request has to be sent again, with the same id or a new one."""
        clock = self.client.clock
        # A node that became a replica still accepts subscriptions, but its master does not see them, and undoes the
        # grants that it publishes.
        is_home = self.box.asked == self.box.home
        again = min(clock() + (ASK_AGAIN if is_home else LONG_PAUSE), self._end + NIL_MARGIN)
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
            error = e.error_of(message.rest.split(" ", 1)[0], message.rest)
            if error.code == "UNBLOCKED":
                self._failed(error)
            else:
                self._denied()
            raise error
        return []

    async def _confirm(self, tokens: list[int]) -> Hold | None:
        """Claims a grant. None if the claim has expired, or the time is up."""
        clock, pause, target = self.client.clock, SHORT_PAUSE, self.target
        request = target.renewal(self.owner, tokens)
        # A new request before the server has denied this hold would count it twice.
        while clock() < self._end + NIL_MARGIN:
            sent = clock()
            try:
                await self._call(request, self._timeout())
                if hold := self._hold(tokens, sent):
                    return hold
            except NotOwner:
                if target.kind == "many":  # One of the keys may still be held.
                    self.client._background(self.settlement())
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
    """A hash tag of this slot. A key may have bytes that no tag can have; a number has none of them."""
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
        left_out = ("retry", "retry_on_timeout", "retry_on_error")
        settings = {k: v for k, v in self.settings.items() if k not in left_out and "maint_notifications" not in k}
        settings.update(decode_responses=False, protocol=2, health_check_interval=0, socket_timeout=timeout)
        settings |= dict.fromkeys({"lib_name", "lib_version", "driver_info"} & settings.keys())  # Two round trips less.
        if "path" not in settings:
            settings["socket_connect_timeout"] = timeout
        return self.connection_class(**settings)


class Subscriber:
    """One connection that hears the answers of one server. The clients add what reads it."""

    def __init__(self, client: Base[Any, Any, Any], route: Route) -> None:
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
        ready = dict(self._ready)
        if self._client.is_cluster or not isinstance(self._error, Unavailable):
            self._client._refresh()
            self._ready.clear()  # Another node may serve them now.
            for event in ready.values():
                event.set()
            self._client._tell(list(ready), Message("again"))
        else:
            for event in ready.values():
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
            found = re.fullmatch(r"(granted|nil|error) (\d+) ?(.*)", reply[2].decode("utf-8", "replace"), re.DOTALL)
            for box in list(self._client._boxes) if found else ():
                if found and box.id == int(found[2]):
                    box.put(Message(found[1], box.id, found[3]))

    def _confirmed(self, is_ready: bool) -> None:
        if not is_ready or self._error is not None:
            raise self._error or Unavailable("the subscription was not confirmed in time")


# ---- clients


class Base(Generic[H, L, S]):
    """What the clients share."""

    _hold_class: Any
    _lock_class: Any
    _semaphore_class: Any
    _subscriber_class: Any
    _disconnect: ClassVar[dict[str, bool]] = {}
    # The two clients do these in their own way.
    _scope: Callable[[], str]  # The name of the current thread or task.
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
        self.command_timeout = float(command_timeout or configured or 5.0)
        self._begin()
        _clients.add(self)

    def _begin(self) -> None:
        """A new identity, at the start and after a fork."""
        self.id = secrets.token_hex(16)
        self.max_lease = 0.0  # Not known yet.
        self._engine, self._lock, self._numbers = Engine(self.clock), threading.Lock(), itertools.count(1)
        self._held: dict[str, dict[tuple[str, bytes], list[H]]] = {}  # For each owner.
        self._channels: dict[int, str] = {}
        self._boxes: set[Mailbox] = set()
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
        target = Target(kind, tuple(self._prefix + encoded(key) for key in keys), permits)
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
                    code = e.code_of(reply) if isinstance(reply, Exception) else ""
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
                    if not e.code_of(error):
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
            raise e.Closed("the client was closed")
        if box.stopped is not None and box.stopped.is_set():
            raise e.Stopped("the wait was stopped")

    def _tell(self, channels: list[str], message: Message) -> None:
        for box in list(self._boxes):
            if box.channel in channels:
                box.put(message)

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
        except LockError as error:
            log.debug("background request: %s", error)
            self._engine.failed(items)
        self._wake()

    # -- who holds what

    def _slots(self, target: Target) -> list[tuple[str, bytes]]:
        return [("mutex" if target.kind == "many" else target.kind, key) for key in target.keys]

    def _named(self, user: object) -> str:
        """A new name for a thread or task. When that has ended, nothing of it can be released or acquired again."""
        name, client = f"{self.id}:{next(self._numbers)}", weakref.ref(self)
        weakref.finalize(user, lambda: (found := client()) and found._held.pop(name, None))
        return name

    def _current(self, target: Target, scope: str) -> H | None:
        """The innermost hold of this owner; of permits under a named owner, that of this thread or task first."""
        stack = self._held.get(scope, {}).get(self._slots(target)[0], ())
        holds = [hold for hold in reversed(stack) if hold._target == target]
        return max(holds, key=lambda hold: len(holds) > 1 and hold._user == self._scope(), default=None)

    def _reenter(self, target: Target, scope: str) -> H | None:
        """The hold that this owner has already, counted once more."""
        with self._lock:
            held = self._held.get(scope, {})
            found = [held[slot][-1] for slot in self._slots(target) if slot in held]
            if not found or target.kind == "semaphore":
                return None
            if any(hold._target != target for hold in found):
                raise RuntimeError(f"this owner already holds {found[0]._target}, and asks for {target}")
            found[0].check()
            found[0]._count += 1
            return found[0]

    def _leave(self, target: Target, scope: str, keep: float | None) -> tuple[H, bool]:
        """The hold that is released, and whether this release is the last one."""
        with self._lock:
            hold = self._current(target, scope)
            if hold is None:
                raise RuntimeError(f"this thread or task does not hold {target}")
            if keep is not None and (hold._count > 1 or target.kind not in ("mutex", "fair")):
                raise ValueError("keep is for the last release of a mutex or a fair lock")
            hold._count -= 1
            held = self._held[scope]
            for slot in self._slots(target) if hold._count == 0 else ():
                held[slot].remove(hold)
                if not held[slot]:
                    del held[slot]
            if not held:
                del self._held[scope]
            return hold, hold._count == 0

    async def _acquire(self, target: Target, options: Options, scope: str, wait: float | None) -> H | None:
        box, attempt = self._box(), None
        self._check(box)
        if hold := self._reenter(target, scope):
            return hold
        self._boxes.add(box)
        try:
            # A semaphore gives permits for each acquisition, so each is an owner of its own.
            owner = f"{scope}.{secrets.token_hex(8)}" if target.kind == "semaphore" else scope
            attempt = Attempt(self, target, options, owner, box)
            hold = cast("H | None", await attempt.acquire(wait))
            if hold is not None:
                with self._lock:
                    self._check(box)
                    attempt.uncertain = False
                    shared = self._current(target, scope)
                    if shared is not None and shared.held and shared.tokens == hold.tokens:
                        # Another thread or task has acquired it meanwhile, with this name of an owner.
                        shared._count, shared._release_id = shared._count + 1, max(shared._release_id, hold._release_id)
                        hold = shared
                    else:
                        for slot in self._slots(target):
                            self._held.setdefault(scope, {}).setdefault(slot, []).append(hold)
                        self._engine.add(hold)
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

    async def _release(self, target: Target, scope: str, keep: float | None) -> None:
        hold, is_last = self._leave(target, scope, keep)
        if not is_last:
            return hold.check()
        was_held = self._engine.end(hold)
        hold._ended(False)
        errand, is_done = hold._release_errand(keep), hold._is_settled
        try:
            for is_repeated in (False, True) if was_held else ():
                try:
                    replies = await self._call(hold.key, errand.commands(), hold.timeout)
                except LockError as error:
                    replies = [error]
                if is_done := errand.take(replies, 0.0, 0.0):
                    # A repeated one finds that the first has ended the hold.
                    was_held = is_repeated or not any(e.code_of(reply) == "NOTOWNER" for reply in replies)
                    break
        finally:  # Also if the caller was cancelled.
            if not is_done:
                self._background(errand)
        if not was_held:
            hold._state = "lost"
            raise LockLost(f"the hold of {target} ended before its release")

    # -- the end

    async def _close(self) -> None:
        """Ends waits, releases holds, and waits until that has been answered, or 5 s have passed."""
        with self._lock:
            self.closed = True
        for hold in [item for item in list(self._engine._items) if isinstance(item, Hold)]:
            if self._engine.end(hold) is not None:
                hold._state, hold._is_settled = "lost", True
                hold._ended(True)
                self._background(hold._release_errand(None, CLOSE_WITHIN))
        end = time.monotonic() + CLOSE_WITHIN
        while (self._boxes or self._engine.errands()) and time.monotonic() < end:
            for box in list(self._boxes):
                box.put(Message("end", error=e.Closed("the client was closed")))
            await self._sleep(0.01)
        with self._lock:
            self._is_ended = True
            idle, self._idle = self._idle, {}
        for _, connection in itertools.chain(*idle.values()):
            await done(connection.disconnect(**self._disconnect))


class LockBase(Generic[H]):
    """What a lock object knows. It has no state of a hold, so threads and tasks can share it."""

    def __init__(self, client: Base[Any, Any, Any], target: Target, options: Options) -> None:
        self._client, self._target, self._options = client, target, options

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._target.kind} {self._target}>"

    @property
    def held(self) -> bool:
        """Whether the current thread or task holds this lock."""
        hold = self._client._current(self._target, self._scope())
        return hold is not None and hold.held

    def _scope(self) -> str:
        return self._options.owner or self._client._scope()

    async def _acquire(self, blocking: bool = True, timeout: float | None = None) -> H | None:
        wait = 0 if not blocking else self._options.timeout if timeout is None else timeout
        return await self._client._acquire(self._target, self._options, self._scope(), wait)

    async def _release(self, keep: float | None = None) -> None:
        await self._client._release(self._target, self._scope(), keep)

    async def _enter(self) -> H:
        hold = await self._acquire()
        if hold is None:
            raise e.LockTimeout(f"{self!r} was not acquired within {self._options.timeout} s")
        return hold

    async def _exit(self, error: BaseException | None, replaces: bool = False) -> None:
        """Raises instead of an error of the block only if that is the cancellation by the loss itself."""
        try:
            await self._release()
        except (LockError, RuntimeError):
            if error is None or replaces:
                raise

    async def _init(self, permits: int, idle: float | None) -> bool:
        words: Command = ("RSEMAPHORE.INIT", self._target.keys[0], permits)
        words += () if idle is None else ("IDLE", milliseconds(idle))
        return bool(first(await self._client._call(words[1], [words], self._client.command_timeout)))
