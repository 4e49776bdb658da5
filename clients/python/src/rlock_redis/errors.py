"""The errors of this package. All derive from :class:`LockError`."""

from __future__ import annotations

import re
from typing import Any


class LockError(Exception):
    """Base class of all errors of this package.

    ``code`` is the first word of the server's error, or an empty string.
    """

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class LockTimeout(LockError, TimeoutError):
    """Another owner held the lock until the timeout was over. Also a :class:`TimeoutError`."""


class LockLost(LockError):
    """The hold ended before its owner released it. ``hold`` is that hold; a pickled error has none."""

    hold: Any = None

    @classmethod
    def of(cls, hold: Any, message: str) -> LockLost:
        error = cls(message)
        error.hold = hold
        return error

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.code)


class Closed(LockError):
    """The client was closed."""


class Unavailable(LockError):
    """The server could not be reached or cannot serve the request now; a later attempt may succeed.

    ``code`` is empty if the connection failed.
    """

    @property
    def retry_after(self) -> float | None:
        """The pause in seconds that the server asked for, if it named one."""
        found = re.search(r"(\d+) ms", str(self)) if self.code == "QUARANTINE" else None
        return int(found[1]) / 1000 if found else None


class Refused(LockError):
    """The server refused the request, and would refuse it again."""


class Deadlock(Refused):
    """The owner would wait for itself in a circle of owners. Release what it holds, and begin again."""


class Superseded(Refused):
    """A newer request of the same owner ended this one: two users share one owner name."""


class ModuleMissing(Refused):
    """The server does not know the commands of rlock: the module is not loaded."""


class ModuleTooOld(Refused):
    """The server's rlock module does not know an option that this package needs."""


class NotOwner(LockError):
    """Internal: the server answered ``NOTOWNER``."""


class Stopped(LockError):
    """Internal: nobody waits any more."""


_TYPES: dict[str, type[LockError]] = {"NOTOWNER": NotOwner, "DEADLOCK": Deadlock, "SUPERSEDED": Superseded}
_RETRYABLE = (
    "UNBLOCKED READONLY LOADING MASTERDOWN MISCONF OOM BUSY CLUSTERDOWN TRYAGAIN QUARANTINE NOREPLICAS MOVED ASK"
)
_CLASSES = {  # redis-py and valkey-py keep the first word of these errors only in the class.
    "AskError": "ASK",
    "AuthenticationError": "NOAUTH",
    "BusyLoadingError": "LOADING",
    "ClusterCrossSlotError": "CROSSSLOT",
    "ClusterDownError": "CLUSTERDOWN",
    "MasterDownError": "MASTERDOWN",
    "MovedError": "MOVED",
    "NoPermissionError": "NOPERM",
    "OutOfMemoryError": "OOM",
    "ReadOnlyError": "READONLY",
    "TryAgainError": "TRYAGAIN",
}


def code_of(error: BaseException) -> str:
    """The first word of a server's error, and an empty string if the server did not answer."""
    code = getattr(error, "status_code", None)
    if isinstance(code, str):
        return code
    names = [cls.__name__ for cls in type(error).__mro__]
    code = next((_CLASSES[name] for name in names if name in _CLASSES), "")
    if code == "NOAUTH" and str(error).startswith("invalid username-password pair"):
        return "WRONGPASS"
    if code or "ResponseError" not in names:
        return code
    word = (str(error).split() or ["ERR"])[0]
    return word if word.isupper() else "ERR"


def error_of(code: str, text: str) -> LockError:
    """The typed error for a server's error."""
    if not code or code in _RETRYABLE.split():
        return Unavailable(text, code)
    if code == "ERR" and "unknown command" in text:
        return ModuleMissing(text, code)
    if code == "ERR" and re.search(r"unknown option|is no option", text):
        return ModuleTooOld(text, code)
    return _TYPES.get(code, Refused)(text, code)


def typed(error: BaseException) -> LockError:
    """The typed error for an exception of the Redis client or of the network."""
    if isinstance(error, LockError):
        return error
    code, text = code_of(error), str(error) or type(error).__name__
    result = error_of(code, text if not code or text.startswith(code) else f"{code} {text}")
    result.__cause__ = error
    return result
