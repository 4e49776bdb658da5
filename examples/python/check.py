"""Provokes what goes wrong with locks, and looks whether the programs beside this one survive it. `make test-examples` runs it."""

import asyncio
import os
import subprocess
import sys
import threading
import time
import uuid
from unittest import mock

import redis
import redis.asyncio

from lock import Lock, NotGranted
from lock_asyncio import Locks
from session_lock import SessionLock

PORT, LOSING_PORT = int(os.environ["PORT"]), int(os.environ["LOSING_PORT"])
ROUNDS = int(os.environ.get("ROUNDS", "20"))
direct = redis.Redis(port=PORT)
losing = redis.Redis(port=LOSING_PORT)


def ok(what: str) -> None:
    print(f"ok  {what}", flush=True)


def assert_free(key: str) -> None:
    """No hold and no waiter was left behind: a stranger has it at once."""
    assert direct.execute_command("RLOCK.WAITERS", key) == [], "somebody waits"
    assert direct.execute_command("RLOCK.PTTL", key) == -2, direct.execute_command("RLOCK.INFO", key)


def holds(key: str, owner: str) -> int:
    return direct.execute_command("RLOCK.HOLDS", key, owner)


def requests() -> int:
    """How many requests for locks the server was sent."""
    stats = direct.info("commandstats")
    return sum(stats.get(f"cmdstat_rlock.{verb}", {"calls": 0})["calls"] for verb in ("acquire", "cancel", "release"))


def lost_replies_without_once() -> None:
    """The reason for ONCE: the library repeats the command, and counts two holds."""
    owner = str(uuid.uuid4())
    losing.execute_command("RLOCK.ACQUIRE", "cut:bare", owner)
    assert holds("cut:bare", owner) == 2, "redis-py does not repeat any more: this check proves nothing"
    direct.execute_command("RLOCK.FORCERELEASE", "cut:bare")
    ok("redis-py: repeats a command whose reply was lost; without ONCE that is a second hold")


def lost_replies() -> None:
    before = losing.execute_command("SPOILED")
    for _ in range(ROUNDS):
        lock = Lock(losing, "cut:sync")
        assert lock.acquire()
        assert holds(lock.key, lock.owner) == 1
        lock.release()
        assert_free(lock.key)
    assert losing.execute_command("SPOILED") - before == 2 * ROUNDS
    ok(f"redis-py: {ROUNDS} rounds with both replies lost: one hold, one RELEASE frees it")


def a_wait_longer_than_the_socket_timeout() -> None:
    holder, waiter = Lock(direct, "long"), Lock(direct, "long")
    holder.acquire()
    started = time.monotonic()
    threading.Timer(6.5, holder.release).start()
    assert waiter.acquire(wait_ms=8_000)
    assert time.monotonic() - started < 7.5
    assert waiter.release()
    assert_free("long")
    ok("redis-py: waits for 6.5 s of 8, beyond the socket timeout of 5 s")


def a_wait_that_ends() -> None:
    holder, waiter = Lock(direct, "short"), Lock(direct, "short")
    with holder.held():
        started = time.monotonic()
        assert not waiter.acquire(wait_ms=500)
        assert 0.4 < time.monotonic() - started < 1.5
    assert_free("short")
    ok("redis-py: a wait of 500 ms ends in time and leaves nothing behind")


def a_connection_cut_while_it_waits() -> None:
    holder, waiter = Lock(direct, "cutoff"), Lock(losing, "cutoff")
    holder.acquire()

    def cut_and_release() -> None:
        direct.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        time.sleep(0.3)
        holder.release()

    threading.Timer(0.5, cut_and_release).start()
    assert waiter.acquire(wait_ms=5_000)
    assert holds("cutoff", waiter.owner) == 1
    assert waiter.release()
    assert_free("cutoff")
    ok("redis-py: asks again when its connection is cut in the middle of a wait")


def renewal_and_loss() -> None:
    with Lock(direct, "renewed", lease_ms=1500).held() as lock:
        time.sleep(3.5)
        assert holds("renewed", lock.owner) == 1 and not lock.lost.is_set()
        direct.execute_command("RLOCK.FORCERELEASE", "renewed")
        assert lock.lost.wait(1), "it does not hear of its loss"
    try:
        with Lock(direct, "renewed").held(), Lock(direct, "renewed").held(wait_ms=100):
            raise AssertionError("two hold")
    except NotGranted:
        pass
    assert_free("renewed")
    ok("redis-py: held for longer than its lease; hears of it when it is lost")


def two_waiters_in_one_name() -> None:
    direct.execute_command("RLOCK.ACQUIRE", "in-one-name", "holder")
    outcomes, before = [], requests()

    def wait(lock: Lock) -> None:
        try:
            outcomes.append(lock.acquire(wait_ms=20_000))
        except redis.ResponseError as error:
            outcomes.append(str(error).split()[0])

    older, newer = Lock(direct, "in-one-name"), Lock(direct, "in-one-name")
    with mock.patch("uuid.uuid4", return_value="one-owner"):
        threading.Thread(target=wait, args=(older,), daemon=True).start()
        while not direct.execute_command("RLOCK.WAITERS", "in-one-name"):
            time.sleep(0.01)
        waiter = threading.Thread(target=wait, args=(newer,), daemon=True)
        waiter.start()
        time.sleep(5)
    assert requests() - before < 10, f"{requests() - before} requests in 5 s"
    assert outcomes == ["SUPERSEDED"], outcomes
    direct.execute_command("RLOCK.RELEASE", "in-one-name", "holder")
    waiter.join(5)
    assert outcomes == ["SUPERSEDED", True], outcomes
    assert newer.release()
    assert_free("in-one-name")
    ok("redis-py: of two that wait in one owner's name the newer goes on, and the older asks no more")


def sessions() -> None:
    pooled, url = redis.Redis(port=PORT), f"redis://127.0.0.1:{PORT}"
    pooled.execute_command("RLOCK.ACQUIRE", "session", "pooled", "SESSION", 0)
    pooled.connection_pool.disconnect()  # As it does with what idles.
    deadline = time.monotonic() + 5
    while holds("session", "pooled"):
        assert time.monotonic() < deadline, "a pool keeps the session: this check proves nothing"
    program = f"from session_lock import SessionLock\nimport time\nwith SessionLock('{url}', 'session').held(0): time.sleep(60)"
    died = subprocess.Popen([sys.executable, "-c", program], cwd=os.path.dirname(os.path.abspath(__file__)))
    while direct.execute_command("RLOCK.PTTL", "session") == -2:
        time.sleep(0.01)
    threading.Timer(0.5, died.kill).start()
    lock, started = SessionLock(url, "session", session_ms=0), time.monotonic()
    with lock.held(wait_ms=10_000):
        assert time.monotonic() - started < 2
        lock.renew()
    died.wait()
    assert_free("session")
    ok("redis-py: a session that a pool drops ends the hold; on a pinned connection it ends with the process, at once")


async def lost_replies_asyncio(locks: Locks) -> None:
    before = losing.execute_command("SPOILED")
    for _ in range(ROUNDS):
        hold = await locks.acquire("cut:asyncio", wait_ms=20_000)
        assert holds(hold.key, hold.owner) == 1
        await locks.release(hold)
        assert_free(hold.key)
    assert losing.execute_command("SPOILED") - before == 2 * ROUNDS
    ok(f"redis-py asyncio: {ROUNDS} rounds with both replies lost: one hold, one RELEASE frees it")


async def lost_replies_of_those_who_wait(locks: Locks) -> None:
    before = losing.execute_command("SPOILED")
    for done in range(ROUNDS):
        direct.execute_command("RLOCK.ACQUIRE", "cut:waits", "holder")
        waiter = asyncio.create_task(locks.acquire("cut:waits", wait_ms=20_000))
        while losing.execute_command("SPOILED") - before == 2 * done or not direct.execute_command("RLOCK.WAITERS", "cut:waits"):
            await asyncio.sleep(0.001)
        direct.execute_command("RLOCK.RELEASE", "cut:waits", "holder")
        hold = await waiter
        assert holds(hold.key, hold.owner) == 1
        await locks.release(hold)
        assert_free(hold.key)
    assert losing.execute_command("SPOILED") - before == 2 * ROUNDS
    ok(f"redis-py asyncio: {ROUNDS} rounds of a wait with both replies lost: one hold, one RELEASE frees it")


async def many_waiters_over_one_connection() -> None:
    # One of them subscribes.
    client = redis.asyncio.Redis(connection_pool=redis.asyncio.BlockingConnectionPool(port=PORT, max_connections=2))
    locks = await Locks.on(client)
    tokens = []

    async def work() -> None:
        async with locks.held("shared", wait_ms=20_000) as hold:
            tokens.append(hold.token)

    first = await locks.acquire("shared", wait_ms=1_000)
    waiters = [asyncio.create_task(work()) for _ in range(100)]
    await asyncio.sleep(0.5)
    assert len(direct.execute_command("RLOCK.WAITERS", "shared")) == 100
    started = time.monotonic()
    await client.ping()
    assert time.monotonic() - started < 0.5, "the connection is stalled"
    assert await locks.release(first)
    await asyncio.gather(*waiters)
    assert len(tokens) == 100 and tokens == sorted(tokens)
    assert_free("shared")
    await locks.close()
    await client.aclose()
    ok("redis-py asyncio: 100 wait over one connection, which serves others meanwhile")


async def waits_that_end_asyncio(locks: Locks) -> None:
    first = await locks.acquire("ends", wait_ms=1_000)
    started = time.monotonic()
    assert await locks.acquire("ends", wait_ms=500) is None
    assert 0.4 < time.monotonic() - started < 1.5
    given_up = asyncio.create_task(locks.acquire("ends", wait_ms=20_000))
    await asyncio.sleep(0.3)
    given_up.cancel()
    await asyncio.gather(given_up, return_exceptions=True)
    assert direct.execute_command("RLOCK.WAITERS", "ends") == []
    await locks.release(first)
    assert_free("ends")
    ok("redis-py asyncio: a wait that ends, and one that is cancelled, leave nothing behind")


async def connections_cut_asyncio(locks: Locks) -> None:
    for kind in ("normal", "pubsub"):
        first = await locks.acquire("cutoff", wait_ms=1_000)
        waiter = asyncio.create_task(locks.acquire("cutoff", wait_ms=10_000))
        await asyncio.sleep(0.3)
        direct.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
        await locks.release(first)
        released = time.monotonic()
        hold = await waiter
        assert hold and time.monotonic() - released < 3.5
        assert await locks.release(hold)
        assert_free("cutoff")
    ok("redis-py asyncio: asks again when its connection, or its subscription, is cut in the middle of a wait")


async def two_waiters_in_one_name_asyncio() -> None:
    direct.execute_command("RLOCK.ACQUIRE", "in-one-name", "holder")
    before = requests()
    client = redis.asyncio.Redis(port=PORT)
    older, newer = await Locks.on(client), await Locks.on(client)
    with mock.patch("uuid.uuid4", return_value="one-owner"):
        superseded = asyncio.create_task(older.acquire("in-one-name", wait_ms=20_000))
        while not direct.execute_command("RLOCK.WAITERS", "in-one-name"):
            await asyncio.sleep(0.01)
        waiter = asyncio.create_task(newer.acquire("in-one-name", wait_ms=20_000))
        await asyncio.sleep(5)
    assert requests() - before < 10, f"{requests() - before} requests in 5 s"
    assert superseded.done() and str(superseded.exception()).startswith("SUPERSEDED ")
    direct.execute_command("RLOCK.RELEASE", "in-one-name", "holder")
    assert await newer.release(await waiter)
    assert_free("in-one-name")
    for locks in (older, newer):
        await locks.close()
    await client.aclose()
    ok("redis-py asyncio: of two that wait in one owner's name the newer goes on, and the older asks no more")


async def loss_asyncio(locks: Locks) -> None:
    try:
        async with locks.held("lost", lease_ms=1500, wait_ms=100):
            await asyncio.sleep(3.5)
            direct.execute_command("RLOCK.FORCERELEASE", "lost")
            await asyncio.sleep(5)
        raise AssertionError("it does not hear of its loss")
    except asyncio.CancelledError:
        asyncio.current_task().uncancel()
    ok("redis-py asyncio: held for longer than its lease; cancelled when it is lost")


async def main_asyncio() -> None:
    client = redis.asyncio.Redis(port=LOSING_PORT)
    locks = await Locks.on(client)
    await lost_replies_asyncio(locks)
    await lost_replies_of_those_who_wait(locks)
    if "ROUNDS" not in os.environ:
        await many_waiters_over_one_connection()
        await waits_that_end_asyncio(locks)
        await connections_cut_asyncio(locks)
        await two_waiters_in_one_name_asyncio()
        await loss_asyncio(locks)
    await locks.close()
    await client.aclose()


lost_replies_without_once()
lost_replies()
if "ROUNDS" not in os.environ:  # Else only what takes that many rounds.
    a_wait_longer_than_the_socket_timeout()
    a_wait_that_ends()
    a_connection_cut_while_it_waits()
    renewal_and_loss()
    two_waiters_in_one_name()
    sessions()
asyncio.run(main_asyncio())
