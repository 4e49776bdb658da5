"""Exceptions that are raised into the thread that calls, as by Celery's soft time limit.

CPython raises them where a function begins, after each call of a function that is written in C, and in loops. A profile
function is called in the first two, so `raised_at` goes through all of these positions in turn. The storm meets those
that are left, and the waits themselves.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
import redis
from conftest import Server, eventually
from test_sync import Thread

import rlock_redis
from rlock_redis import RLockClient, SyncHold

PACKAGE = rlock_redis.__file__.rpartition("/")[0]


class SoftTimeLimit(Exception):
    """What the application raises. Not a kind of error that the package or a Redis client catches by its name."""


class LateError(TimeoutError):
    """Also an OSError, for which a Redis client would take it if it were raised in one of its functions."""


@pytest.fixture
def client(server: Server) -> Iterator[RLockClient]:
    with RLockClient(redis.Redis(port=server.port)) as client:
        yield client


def raised_at(position: int, operation: Callable[[], Any], error: type[BaseException], skips: Any = None) -> bool:
    """Raises an error at one of the positions in the package. Whether the operation has so many."""
    left = itertools.count(position, -1)

    def profile(frame: FrameType, event: str, _: Any) -> None:
        is_package = frame.f_code.co_filename.startswith(PACKAGE) and frame.f_code is not skips
        if is_package and event in ("call", "c_return") and next(left) == 0:
            sys.setprofile(None)
            raise error

    sys.setprofile(profile)
    try:
        operation()
    except error:
        return True
    finally:
        sys.setprofile(None)
    assert next(left) >= 0, "an error that was raised did not reach the caller"
    return False


def is_left_alone(client: RLockClient, server: Server) -> None:
    """Soon nothing is held, waited for, or about to be; and the client goes on."""
    engine = client._engine
    eventually(lambda: not (engine.holds() or engine.errands() or client._held or client._blocks or client._boxes))
    eventually(lambda: server.is_clean("k"))
    with client.lock("k", timeout=5):
        pass


@pytest.mark.parametrize("error", [SoftTimeLimit, LateError, KeyboardInterrupt])
def test_exception_at_any_position_of_a_block_reaches_the_caller_and_leaves_nothing(
    error: type[BaseException], client: RLockClient, server: Server
) -> None:
    lock = client.lock("k")

    def block() -> None:
        with lock:
            pass

    block()
    for position in itertools.count():
        if not raised_at(position, block, error):
            break
        is_left_alone(client, server)
    assert position > 30


def test_exception_at_any_position_of_an_acquisition_reaches_the_caller_and_leaves_nothing(
    client: RLockClient, server: Server
) -> None:
    lock = client.lock("k")
    for position in itertools.count():
        if not raised_at(position, lock.acquire, SoftTimeLimit):
            break
        is_left_alone(client, server)
    assert position > 10
    lock.release()


def test_exception_at_any_position_of_a_release_reaches_the_caller_and_leaves_nothing(
    client: RLockClient, server: Server
) -> None:
    lock = client.lock("k")
    for by_hold in (False, True):
        for position in itertools.count():
            hold = lock.acquire()
            release, code = (hold.release, SyncHold.release) if by_hold else (lock.release, type(lock).release)
            # An exception at the begin of the method itself is one before its call.
            if not raised_at(position, release, SoftTimeLimit, code.__code__ if position == 0 else None):
                break
            is_left_alone(client, server)
        assert position > 5


def test_exception_that_is_raised_into_a_waiting_thread_ends_its_wait(client: RLockClient, server: Server) -> None:
    server.admin.execute_command("RLOCK.ACQUIRE", "k", "somebody")
    waiter = Thread(client.lock("k").acquire)
    eventually(lambda: server.waiters("k") == 1)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(waiter.ident or 0), ctypes.py_object(SoftTimeLimit))
    with pytest.raises(SoftTimeLimit):
        waiter.ended()
    eventually(lambda: server.waiters("k") == 0)
    server.admin.execute_command("RLOCK.RELEASE", "k", "somebody")
    is_left_alone(client, server)


def test_request_of_a_wait_that_was_left_supersedes_no_later_one(
    client: RLockClient, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    listen, gate, boxes = client._listen, threading.Event(), []

    async def listens(key: bytes, box: Any, timeout: float) -> str:
        channel = await listen(key, box, timeout)
        boxes.append(box)
        assert box is not boxes[0] or gate.wait(20)
        return channel

    def acquires_twice() -> Any:
        with contextlib.suppress(SoftTimeLimit):
            lock.acquire()
        return lock.acquire()

    monkeypatch.setattr(client, "_listen", listens)
    server.admin.execute_command("RLOCK.ACQUIRE", "k", "somebody")
    lock = client.lock("k")
    waiter = Thread(acquires_twice)
    eventually(lambda: boxes)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(waiter.ident or 0), ctypes.py_object(SoftTimeLimit))
    eventually(lambda: len(client._boxes) == 2)
    gate.set()
    eventually(lambda: server.waiters("k") == 1)
    eventually(lambda: client._boxes == {boxes[1]})
    server.admin.execute_command("RLOCK.RELEASE", "k", "somebody")
    assert waiter.ended().held


def test_exception_in_an_inner_block_releases_no_outer_one(client: RLockClient, server: Server) -> None:
    lock = client.lock("k")

    def inner() -> None:
        with lock:
            pass

    for position in itertools.count():
        with lock as hold:
            more = raised_at(position, inner, SoftTimeLimit)
            eventually(lambda: not client._jobs.qsize() and len(client._blocks) == 1 and hold._count == 1)
            assert hold.held
            assert server.holders("k") == 1
        if not more:
            break
        is_left_alone(client, server)


def test_exception_at_any_position_of_a_watch_leaves_the_loss_to_be_told(client: RLockClient, server: Server) -> None:
    hold = client.lock("k").acquire()
    for position in itertools.count():
        if not raised_at(position, lambda: hold.wait(0.001), SoftTimeLimit):
            break
    watcher = Thread(hold.wait)
    client.lock("k").release()
    assert watcher.ended()
    assert not hold._waits


@contextlib.contextmanager
def alarms(error: type[BaseException]) -> Iterator[list[int]]:
    """The number of alarms that have raised, as the length of a list."""
    raised: list[int] = []

    def handler(*_: object) -> None:
        raised.append(1)
        raise error

    before = signal.signal(signal.SIGALRM, handler)
    try:
        yield raised
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("error", [SoftTimeLimit, LateError])
@pytest.mark.parametrize("is_contended", [False, True])
def test_storm_of_alarms(error: type[BaseException], is_contended: bool, client: RLockClient, server: Server) -> None:
    kept, ends = client.lock("kept", lease=3).acquire(), threading.Event()

    def contends() -> None:
        with RLockClient(redis.Redis(port=server.port)) as other:
            while not ends.is_set():
                with other.lock("k"):
                    time.sleep(random.random() / 500)

    lock, caught = client.lock("k"), 0
    others = [Thread(contends)] if is_contended else []

    def once() -> None:
        signal.setitimer(signal.ITIMER_REAL, 1e-6 + random.random() * 0.003)
        if random.random() < 0.5:
            with lock:
                pass
        else:
            lock.acquire()
            try:
                pass
            finally:
                lock.release()
        signal.setitimer(signal.ITIMER_REAL, 0)

    with alarms(error) as raised:
        for _ in range(2000):
            try:
                once()
            except error as late:
                caught += 1
                frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(late.__traceback__)]
                release = type(lock).release.__code__
                if frames[-2] == (release, release.co_firstlineno):  # Before its first step: as before the call.
                    lock.release()
            if len(raised) >= 300:
                break
    ends.set()
    for other in others:
        other.ended()
    assert caught == len(raised) >= 100
    assert kept.held
    client.lock("kept").release()
    is_left_alone(client, server)
