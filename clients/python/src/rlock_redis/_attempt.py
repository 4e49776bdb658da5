"""One acquisition, from the first request to a hold or its settlement."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ._clock import ASK_AGAIN, CLAIM, FOREVER, LONG_PAUSE, NIL_MARGIN, SHORT_PAUSE, TICK
from ._commands import WAITING, Command, first, grant_of, milliseconds
from ._hold import Errand, Hold, log
from ._request_ids import next_id
from .errors import LockError, Superseded, Unavailable, error_of

if TYPE_CHECKING:
    from ._base import LockBase


class Mailbox:
    """What an attempt hears while it waits. `messages` is a queue of the client's own kind."""

    def __init__(self, messages: Any) -> None:
        self.messages, self.put = messages, messages.put_nowait
        self.id, self.channel, self.owner = 0, "", ""
        self.keys: frozenset[bytes] = frozenset()
        self.waits = False  # Whether the server has answered WAITING.
        self.is_over = False  # Whether nobody waits any more.
        self.home = self.asked = ""  # The node of the subscription, and the node that answered the request.
        self.call: Any = None  # The request that is under way, where a cancelled caller leaves it behind.


class Attempt:
    """One acquisition: how it asks, and what has to be settled if it ends without a hold.

    It waits for at most so many seconds. With 0 it asks once, and repeats that if the reply was lost.
    """

    def __init__(self, lock: LockBase[Any], owner: str, box: Mailbox, wait: float | None) -> None:
        client, target, options = lock._client, lock._target, lock._options
        self.client, self.target, self.options, self.owner, self.box = client, target, options, owner, box
        box.owner, box.keys = owner, frozenset(target.keys)
        self.claim = min(CLAIM, options.lease)
        self._wait, self._waits = wait, wait is None or wait > 0
        self._end = FOREVER if wait is None else client.clock() + (wait or client.command_timeout)
        self.id, self._first = 0, 0.0  # The first request draws the id, at this time.
        self.uncertain = False  # Whether the server may know of this attempt.
        self._lost_copy = False  # Whether a copy of the request may still be on its way.
        self._is_granted = False  # Whether a message said so.
        self._cause: LockError | None = None  # The last failure, if the server has not answered since.
        self._words: Command = ("PX", milliseconds(options.lease), "CLAIM", milliseconds(self.claim), "TIMED")
        self._words += () if options.session is None else ("SESSION", milliseconds(options.session))
        self._words += () if options.note is None else ("NOTE", options.note)
        if self._waits and options.grace is not None:
            self._words += ("GRACE", round(options.grace * 1000))

    def settlement(self) -> Errand:
        client, until = self.client, self.client.clock() + self.claim
        command = self.target.command("CANCEL", self.owner, "REQ", self.id)
        return Errand(self.target, self.owner, [command], until, client.command_timeout, "settling")

    async def turn(self) -> bool:
        """Waits for the end of the owner's earlier requests for these keys. False if the time is up."""
        with self.client._lock:
            turns = self.client._turns.setdefault(self.owner, [])
            turns.append(self.box)
        while ahead := [box for box in turns[: turns.index(self.box)] if not box.keys.isdisjoint(self.box.keys)]:
            left = self._end - self.client.clock()
            if left <= 0 or (ahead[0].waits and not self._waits):
                return False
            await self._pause(min(left, TICK))
        return True

    async def acquire(self) -> Hold | None:
        """None if another owner had the lock all the time. If the server was not there at the end, Unavailable."""
        clock, pause = self.client.clock, SHORT_PAUSE
        while clock() < self._end + (NIL_MARGIN if self._is_granted else 0):
            try:
                await self._end_former()
                options: Command = ()
                if self._waits:
                    channel = await self.client._listen(self.target.keys[0], self.box, self._timeout())
                    block = 0 if self._wait is None else math.ceil(max(1, (self._end - clock()) * 1000))
                    options = ("BLOCK", block, "NOTIFY", channel)
                sent = clock()
                grant = await self._ask(*options)
                if grant == WAITING:
                    pause, hold = SHORT_PAUSE, await self._answer()
                else:
                    hold = self._hold(grant[:-1], sent, grant[-1]) if grant else None
                if hold or not (grant or self._waits):
                    return hold
            except Unavailable as error:
                if not self._waits and (error.code or clock() + pause >= self._end):
                    raise
                self._report(error)
                await self._pause(min(pause, max(SHORT_PAUSE, self._end - clock())))
                pause = min(LONG_PAUSE, 2 * pause)
        if (cause := self._cause) is not None:
            raise Unavailable(f"{self.target} was not acquired within {self._wait} s: {cause}", cause.code) from cause
        return None

    async def _end_former(self) -> None:
        """Ends what the server may still have of this owner's former holds and requests, which it would re-enter."""
        engine, keys = self.client._engine, self.target.keys
        if former := engine.former(self.owner, keys):
            await self.client._send_batch(self._timeout(), former)
            if not set(former).isdisjoint(engine.errands()):
                raise Unavailable(f"a former hold of the owner of {self.target} is not released yet")

    async def _ask(self, *options: Any) -> list[int]:
        """One request. An error that proves that the server knows nothing of it clears `uncertain`."""
        self.client._check(self.box)
        if not self.id:
            self.id, self._first = next_id(), self.client.clock()
            self.box.id = self.id
        before, self.uncertain = self.uncertain, True
        request = self.target.command("ACQUIRE", self.owner, *self._words, *options, "REQ", self.id)
        try:
            grant = grant_of(first(await self.client._call(self.target.keys[0], [request], self._timeout(), self.box)))
        except LockError as error:
            self._lost_copy |= not error.code
            self.uncertain = (before or error.code in ("", "UNBLOCKED")) and not isinstance(error, Superseded)
            raise
        self._cause = None
        if not grant:
            self._denied()
        return grant

    async def _pause(self, seconds: float) -> None:
        """Ends early only if the attempt ends with it."""
        message = await self.client._receive(self.box, seconds) if seconds > 0 else None
        if message is not None and message.error is not None:
            raise message.error

    def _denied(self) -> None:
        """The server has said that this request holds nothing and waits no more."""
        self.uncertain, self._lost_copy, self._is_granted, self.id = False, False, False, 0

    def _hold(self, tokens: Sequence[int], sent: float, left_ms: int) -> Hold | None:
        """None if the answer took longer than the hold lasts. Then the same request is sent again."""
        hold: Hold = self.client._hold_class(self, tokens, sent, left_ms / 1000)
        return hold if hold.held else None

    def _report(self, error: LockError) -> None:
        # UNBLOCKED is no outage, because it comes from the server.
        outages = [one for one in (self._cause, error) if one is not None and one.code != "UNBLOCKED"]
        log.log(logging.WARNING if outages == [error] else logging.DEBUG, "acquiring %s: %s", self.target, error)
        self._cause = error

    def _timeout(self) -> float:
        """No request lasts so long that the wait would exceed its timeout by a second."""
        return max(SHORT_PAUSE, min(self.client.command_timeout, self._end - self.client.clock() + 0.4))

    async def _answer(self) -> Hold | None:
        """What the message grants; None if the request has to be sent again, with the same id or a new one."""
        clock, self._is_granted, self.box.waits = self.client.clock, False, True
        # A node that became a replica still accepts subscriptions, but its master does not see them, and undoes the
        # grants that it publishes.
        is_home = self.box.asked == self.box.home
        again = clock() + (ASK_AGAIN if is_home else LONG_PAUSE)
        if is_last := again > self._end:
            again = self._end + NIL_MARGIN
        while (left := again - clock()) > 0:
            message = await self.client._receive(self.box, left)
            if message is None and is_last:
                raise self.client._silence(self.box)
            if message is None or message.what == "again":
                break
            if message.error is not None:
                raise message.error
            if message.id != self.id:
                continue
            if message.what == "granted":
                self._is_granted = True
                *tokens, _, left_ms = message.rest.split()
                # The server counts from the receipt of the first request, so no delay makes the belief outlive the
                # hold. A session belongs to the connection of a request, which the server has to see.
                if self._lost_copy or self.options.session is not None:
                    break
                return self._hold([int(token) for token in tokens], self._first, int(left_ms))
            if message.what == "nil":
                self._denied()
                break
            error = error_of(message.rest.split(" ", 1)[0], message.rest)
            if error.code != "UNBLOCKED":
                self._denied()
            raise error
        return None
