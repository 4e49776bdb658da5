"""Connections, and how coroutines use them in both clients.

The asyncio client runs coroutines in tasks. In the synchronous client, whatever they await is done when it returns, so
:func:`run` carries them out in one step.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ._commands import Message
from ._hold import log
from .errors import LockError, Unavailable, typed

if TYPE_CHECKING:
    from ._base import Base

T = TypeVar("T")


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
