"""One acquisition, from the first request to a hold or its settlement."""

from __future__ import annotations

import contextlib
import logging
import math
import re
from typing import TYPE_CHECKING, Any

from ._clock import ASK_AGAIN, CLAIM, FOREVER, LONG_PAUSE, NIL_MARGIN, SHORT_PAUSE
from ._commands import WAITING, Command, Target, encoded, first, milliseconds, tokens_of
from ._hold import Errand, Hold, log
from ._options import Options
from ._request_ids import next_id
from .errors import LockError, NotOwner, Refused, Superseded, Unavailable, error_of

if TYPE_CHECKING:
    from ._base import Base


class Mailbox:
    """What an attempt hears while it waits. `messages` is a queue of the client's own kind."""

    def __init__(self, messages: Any) -> None:
        self.messages, self.put = messages, messages.put_nowait
        self.id, self.channel = 0, ""
        self.is_over = False  # Whether nobody waits any more. Requests that the owner begins later have higher ids.
        self.home = self.asked = ""  # The node of the subscription, and the node that answered the request.
        self.call: Any = None  # The request that is under way, where a cancelled caller leaves it behind.


class Attempt:
    """One acquisition: how it asks, and what has to be settled if it ends without a hold."""

    def __init__(self, client: Base[Any, Any, Any], target: Target, options: Options, owner: str, box: Mailbox) -> None:
        self.client, self.target, self.options, self.owner, self.box = client, target, options, owner, box
        self.lease = options.lease
        self.id, self._end = 0, FOREVER  # The first request draws the id.
        self.uncertain = self._lost_reply = False  # Whether the server may know of this attempt; and why.
        self._cause: LockError | None = None  # The last failure, if the server has not answered since.
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
        self.id = self.box.id = self.id or next_id()
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
        reply = first(await self.client._call(self.target.keys[0], [request], timeout, self.box))
        self._cause = None
        return reply

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
        self.uncertain, self._lost_reply, self.id = False, False, 0

    def _hold(self, tokens: list[int], sent: float, left: float = FOREVER) -> Hold | None:
        """None if the answer took longer than the hold lasts."""
        hold: Hold = self.client._hold_class(self, tokens, sent, left)
        return hold if hold.held else None

    async def acquire(self, wait: float | None) -> Hold | None:
        """Waits for at most so many seconds. With 0 it asks once, and repeats that if the reply was lost.

        None if another owner had the lock all the time. If the server was not there at the end, raises Unavailable.
        """
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
                    await self._pause(pause)
                    pause = min(LONG_PAUSE, 2 * pause)
                    continue
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
            except Refused as error:
                # The longest lease may have been lowered since the client learned it.
                with contextlib.suppress(Unavailable):
                    if error.code == "ERR" and await self._learn() < self.lease:
                        continue
                raise
            except Unavailable as error:
                if not waits and (error.code or clock() + pause >= self._end):
                    raise
                self._report(error)
                await self._pause(min(pause, self._end - clock()))
                pause = min(LONG_PAUSE, 2 * pause)
        if (cause := self._cause) is not None:
            raise Unavailable(f"{self.target} was not acquired within {wait} s: {cause}", cause.code) from cause
        return None

    def _report(self, error: LockError) -> None:
        # UNBLOCKED is no outage, because it comes from the server.
        outages = [one for one in (self._cause, error) if one is not None and one.code != "UNBLOCKED"]
        log.log(logging.WARNING if outages == [error] else logging.DEBUG, "acquiring %s: %s", self.target, error)
        self._cause = error

    async def _learn(self) -> float:
        """The longest lease that the server grants, if INFO tells it."""
        found = None
        with contextlib.suppress(Refused):
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
                return [int(token) for token in message.rest.split()]
            if message.what == "nil":
                self._denied()
                break
            error = error_of(message.rest.split(" ", 1)[0], message.rest)
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
        # A new request would only share this hold, as long as the server has not denied it.
        while clock() < self._end + NIL_MARGIN:
            sent = clock()
            try:
                left = int(await self._call(request, self._timeout())) / 1000
                if hold := self._hold(tokens, sent, left):
                    return hold
            except NotOwner:
                if target.kind == "many":  # One of the keys may still be held.
                    self.client._background(self.settlement())
                self._denied()
                return None
            except Unavailable as error:
                self._report(error)
                await self._pause(pause)
                pause = min(LONG_PAUSE, 2 * pause)
        return None
