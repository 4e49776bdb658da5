"""Holds, releases and settlements: requests that are sent in the background, and their timetable."""

from __future__ import annotations

import collections
import logging
import math
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from ._clock import FOREVER, LONG_PAUSE, SHORT_PAUSE, TICK
from ._commands import Command, Target, milliseconds
from ._request_ids import next_id
from .errors import LockLost, NotOwner, Refused, Unavailable, typed

if TYPE_CHECKING:
    from ._attempt import Attempt

log = logging.getLogger("rlock_redis")

MAX_SETTLEMENTS = 1000
GONE = ("NOTOWNER", "WRONGTYPE", "NOSEMAPHORE")  # To a RELEASE: the hold had ended, perhaps with its key.


class Item:
    """A request that is sent until it is answered or `until` has come."""

    key: bytes
    due = FOREVER
    slack = 0.0  # It may be sent so much before it is due, to share a pipeline.
    until = FOREVER
    timeout = 1.0
    pause = SHORT_PAUSE
    what = ""
    under_way = 0
    commands: Callable[[], Sequence[Command]]
    # Takes the replies, the time before the request was sent, and now; returns whether nothing more has to be sent.
    take: Callable[[Sequence[Any], float, float], bool]

    def retry(self, now: float) -> None:
        self.due, self.pause = min(self.due, on_grid(now + self.pause)), min(LONG_PAUSE, 2 * self.pause)


def on_grid(time: float) -> float:
    """Up to 50 ms later, so that requests that are due at different times share a pipeline."""
    return math.ceil(time / SHORT_PAUSE) * SHORT_PAUSE


class Errand(Item):
    """A settlement, or a release whose first attempt failed."""

    due = 0.0
    is_repeated = False  # Then the server may have carried it out before.

    def __init__(
        self, target: Target, owner: str, commands: Sequence[Command], until: float, timeout: float, what: str
    ) -> None:
        self.target, self.key, self.owner = target, target.keys[0], owner
        self._commands, self.until, self.timeout, self.what = commands, until, timeout, f"{what} {target}"

    def commands(self) -> Sequence[Command]:
        return self._commands

    def take(self, replies: Sequence[Any], sent: float, now: float) -> bool:
        if not (is_final := self.is_final(replies)):
            self.retry(now)
        return is_final

    def is_final(self, replies: Sequence[Any]) -> bool:
        problems = [typed(reply) for reply in replies if isinstance(reply, BaseException)]
        if any(isinstance(problem, Unavailable) for problem in problems):
            return False
        for problem in problems:
            # After STALE a newer request of this owner shares the hold.
            if isinstance(problem, Refused) and problem.code not in ("STALE", *GONE):
                log.warning("%s was refused: %s", self.what, problem)
        return True


class Hold(Item):
    """A lock that was acquired.

    ``token`` is the fencing token, ``tokens`` has one for each key, and ``owner`` is the name that the server knows.
    The client believes in the hold until its deadline: the moment before the last answered request was sent, plus
    the time that the server has answered, minus 1 % of that and 2 ms.
    """

    _scope = _user = ""  # The name under which it is held, and that of the thread or task that acquired it.
    _ended: Callable[[bool], None]  # Tells whoever waits for the end of this hold whether it was lost.

    def __init__(self, attempt: Attempt, tokens: Sequence[int], sent: float, left: float) -> None:
        self._target, self._options, self._client = attempt.target, attempt.options, attempt.client
        self._process, self._lease, self._count, self._state = self._client.id, self._options.lease, 1, "held"
        self.owner, self.tokens, self.token = attempt.owner, tuple(tokens), tokens[0]
        self._settlement: Errand | None = None  # What releases it, once it has been lost or released.
        self.key, now = self._target.keys[0], self._client.clock()
        self._limit = FOREVER if self._options.renew else now + self._lease
        self._believe(sent, left)
        # The server ends a hold that no renewal claims. A shorter hold is only released.
        self.due, self.slack = min(on_grid(now + SHORT_PAUSE), now + max(0.0, self.until - now) / 3), 0.0

    def _believe(self, sent: float, left: float) -> None:
        """Follows the answer to a request, also if that shortens the hold: the server may allow less than before."""
        # A connection may be lost without our notice, and the server then ends a session after its grace.
        left = min(left, self._options.session or FOREVER)
        self._sent, self.until = sent, min(sent + left * 0.99 - 0.002, self._limit)
        self.due = sent + left / 3 if sent + left < self._limit - 0.002 else FOREVER
        # Rounded down to one of a few values, so that holds with other leases share a pipeline.
        longest = min(self._client.command_timeout, max(self.until - self._client.clock(), 0.01) / 3)
        self.timeout = 1.25 ** math.floor(math.log(longest, 1.25))
        self.pause, self.slack = SHORT_PAUSE, self.timeout / 10

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
            raise LockLost.of(self, f"the hold of {self._target} has ended")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._target} token={self.token} held={self.held}>"

    def commands(self) -> Sequence[Command]:
        lease = milliseconds(max(0.001, min(self._lease, self._limit - self._client.clock())))
        word = "TOKENS" if self._target.kind == "many" else "TOKEN"
        return [self._target.command("RENEW", self.owner, "PX", lease, "TIMED", word, *self.tokens)]

    def take(self, replies: Sequence[Any], sent: float, now: float) -> bool:
        if isinstance(replies[0], BaseException):
            if isinstance(typed(replies[0]), NotOwner):
                self.until = -FOREVER
            else:
                self.retry(now)
        elif now < self.until and sent >= self._sent:
            self._believe(sent, int(replies[0]) / 1000)
        return False

    def _release_errand(self, keep: float | None, within: float = FOREVER) -> Errand:
        """For as long as the server may know the hold."""
        options: Command = () if keep is None else ("KEEP", milliseconds(keep))
        if self._options.shared_owner is not None:  # The server has counted others, too, and must know a repetition.
            options += ("REQ", next_id())
        until = self._client.clock() + min(self._lease, within)
        commands = self._target.releases(self.owner, self.tokens, *options)
        return Errand(self._target, self.owner, commands, until, self.timeout, "the release of")


class Engine:
    """The timetable of holds and errands. Thread-safe, and never locked while anything is sent.

    It does not keep a hold alive: a hold that nobody can release any more, because its thread or task has ended and no
    program refers to it, is not renewed.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._errands: dict[Errand, None] = {}  # In order: a newer request of an owner makes its older ones stale.
        self._holds: dict[weakref.ref[Hold], str] = {}
        self._forgotten: collections.deque[weakref.ref[Hold]] = collections.deque()
        self._next = FOREVER  # When the timer calls `poll`.

    def add(self, item: Errand | Hold) -> bool:
        """Whether it is due before the timer calls `poll`."""
        with self._lock:
            if isinstance(item, Hold):
                self._holds[weakref.ref(item, self._forgotten.append)] = str(item._target)
            elif len(self._errands) < MAX_SETTLEMENTS:  # The claim or the lease bounds what stays behind.
                self._errands[item] = None
            return item.due < self._next

    def errands(self) -> list[Errand]:
        return list(self._errands)

    def holds(self) -> list[Hold]:
        return [hold for reference in list(self._holds) if (hold := reference()) is not None]

    def _pop(self, item: Item) -> None:
        if isinstance(item, Hold):
            self._holds.pop(weakref.ref(item), None)
        else:
            self._errands.pop(cast(Errand, item), None)

    def poll(self) -> tuple[list[Hold], dict[float, list[Item]], float | None]:
        """Holds lost just now, requests to send now by their timeout, seconds until the next poll."""
        now, wake = self._clock(), TICK
        lost: list[Hold] = []
        groups: dict[float, list[Item]] = {}
        with self._lock:
            while self._forgotten:
                if target := self._holds.pop(self._forgotten.popleft(), None):
                    log.warning(
                        "%s was not released, and its thread or task has ended: the lease is not renewed", target
                    )
            for item in [*self.errands(), *self.holds()]:
                if now >= item.until:
                    self._pop(item)
                    if isinstance(item, Hold):
                        item._state = "lost"
                        lost.append(item)
                    else:
                        log.warning("%s did not reach the server", item.what)
                    continue
                if item.due <= now + item.slack and item.under_way < 2:
                    item.due = now + item.timeout + SHORT_PAUSE  # Unless an answer or an error comes first.
                    item.under_way += 1
                    groups.setdefault(item.timeout, []).append(item)
                wake = min(wake, item.until - now, item.due - now if item.under_way < 2 else FOREVER)
            # A renewal on its way may extend a hold that the clock has ended. The work stops during the pause.
            room = max(0, MAX_SETTLEMENTS - len(self._errands))
            for hold in [hold for hold in lost if hold.until > -FOREVER or len(hold.tokens) > 1][:room]:
                errand = hold._settlement = hold._release_errand(None)
                errand.due, errand.pause = FOREVER, min(1.0, hold._lease / 100)
                errand.retry(now)
                if errand.due < errand.until:
                    self._errands[errand] = None
                wake = min(wake, errand.due - now)
            wake = max(0.0, wake) if self._errands or self._holds else FOREVER
            self._next = now + wake
            return lost, groups, None if wake == FOREVER else wake

    def answered(self, items: Iterable[Item], replies: Sequence[Any], sent: float) -> None:
        """Takes the replies to all commands of these items, in order."""
        now, at = self._clock(), 0
        with self._lock:
            for item in items:
                count = len(item.commands())
                item.under_way -= 1
                try:
                    if item.take(replies[at : at + count], sent, now):
                        self._pop(item)
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
            for hold in self.holds():  # The lost connection may have been the last one of their session.
                if hold._options.session is not None and hold._options.renew:
                    hold.due = min(hold.due, now + hold.pause)

    def former(self, owner: str, keys: Collection[bytes]) -> list[Item]:
        """The errands of this owner for these keys, to be sent now."""
        with self._lock:
            left = [x for x in self.errands() if x.owner == owner and not set(keys).isdisjoint(x.target.keys)]
            for errand in left:
                errand.under_way, errand.is_repeated = errand.under_way + 1, True
            return [*left]

    def done(self, item: Item) -> None:
        with self._lock:
            self._pop(item)

    def end(self, hold: Hold) -> bool | None:
        """Ends the belief in a hold. Returns whether it was held until now, None if `poll` has ended it before."""
        with self._lock:
            if hold._state != "held":
                return None
            held = hold.held
            self._pop(hold)
            hold._state = "released" if held else "lost"
        return held
