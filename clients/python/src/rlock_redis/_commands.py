"""The commands of the module, their replies and messages, and the slots of their keys."""

from __future__ import annotations

import binascii
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from .errors import LockError, ModuleTooOld, typed

Command = tuple[Any, ...]


@dataclass(frozen=True)
class Target:
    """What is locked: the kind of lock, its keys with their prefix, and the permits of a semaphore."""

    kind: str
    keys: tuple[bytes, ...]
    permits: int = 1

    _FAMILIES: ClassVar[dict[str, str]] = {"fair": "RFAIRLOCK", "read": "RRWLOCK", "write": "RRWLOCK"}

    def command(self, verb: str, owner: str, *options: Any) -> Command:
        if self.kind == "many" and verb != "RELEASE":
            return (f"RLOCK.M{verb}", len(self.keys), *self.keys, owner, *options)
        family = self._FAMILIES.get(self.kind, "RSEMAPHORE" if self.kind == "semaphore" else "RLOCK")
        words: Command = (f"{family}.{verb}", self.keys[0], owner)
        if verb != "CANCEL" and self.kind in ("read", "write"):
            words += (self.kind.upper(),)
        if verb in ("ACQUIRE", "RELEASE") and self.kind == "semaphore":
            words += ("PERMITS", self.permits)
        return words + options

    def releases(self, owner: str, tokens: Sequence[int], *options: Any) -> list[Command]:
        """One for each key, because MRELEASE frees none if one of them was overwritten."""
        each = [Target("mutex", (key,)) for key in self.keys] if self.kind == "many" else [self]
        return [
            one.command("RELEASE", owner, "TOKEN", token, *options) for one, token in zip(each, tokens, strict=True)
        ]

    def __str__(self) -> str:
        return ", ".join(repr(key.decode("utf-8", "backslashreplace")) for key in self.keys)


def encoded(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


def milliseconds(seconds: float) -> int:
    return round(seconds * 1000) or int(seconds > 0)


@dataclass(frozen=True)
class Message:
    """What a channel said: ``granted``, ``nil`` or ``error``; ``again`` and ``end`` come from the client itself."""

    what: str
    id: int = 0
    rest: str = ""
    error: LockError | None = None


WAITING: list[int] = [-1]


def grant_of(reply: Any) -> list[int]:
    """The tokens and the milliseconds of a reply, an empty list for nil, and :data:`WAITING`."""
    if reply in (None, b"WAITING"):
        return WAITING if reply else []
    numbers = [int(word) for word in reply if str(int(word)).isdecimal()] if isinstance(reply, list) else []
    if len(numbers) < 2:
        raise ModuleTooOld(f"the server answered {reply!r} instead of tokens and a time: its module is too old")
    return numbers


def first(replies: Sequence[Any]) -> Any:
    """The only reply, raised if it is an error."""
    if isinstance(replies[0], BaseException):
        raise typed(replies[0])
    return replies[0]


def slot_of(key: bytes) -> int:
    start = key.find(b"{")
    end = key.find(b"}", start + 1)
    if start >= 0 and end > start + 1:
        key = key[start + 1 : end]
    return binascii.crc_hqx(key, 0) % 16384


def tag_of(slot: int) -> str:
    """A hash tag of this slot. A key may have bytes that no tag can have; a number has none of them."""
    return next(tag for tag in map(str, itertools.count()) if slot_of(tag.encode()) == slot)
