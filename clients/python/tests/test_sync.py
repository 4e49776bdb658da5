from __future__ import annotations

import gc
import math
import os
import pickle
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from conftest import Clock, Proxy, Server, eventually, free_port

from rlock_redis import (
    Closed,
    Deadlock,
    Leader,
    LockError,
    LockLost,
    LockTimeout,
    ModuleMissing,
    Refused,
    RLockClient,
    Superseded,
    Unavailable,
    _attempt,
)
from rlock_redis._connections import run
from rlock_redis.errors import Stopped


@pytest.fixture
def client(server: Server) -> Iterator[RLockClient]:
    with RLockClient(redis.Redis(port=server.port)) as client:
        yield client


@pytest.fixture
def proxied(proxy: Proxy) -> Iterator[RLockClient]:
    with RLockClient(redis.Redis(port=proxy.port, socket_timeout=3)) as client:
        yield client
        proxy.stalled = proxy.deaf = proxy.halting = proxy.refuses = False


class Thread(threading.Thread):
    """Runs a function, and gives its result or error to `ended`."""

    def __init__(self, function: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._function, self.result, self.error = function, None, None
        self.start()

    def run(self) -> None:
        try:
            self.result = self._function()
        except BaseException as error:
            self.error = error

    def ended(self, within: float = 10) -> Any:
        self.join(within)
        assert not self.is_alive(), f"not ended within {within} s"
        if self.error is not None:
            raise self.error
        return self.result


def in_thread(function: Callable[[], Any]) -> Any:
    return Thread(function).ended()


def renewals(server: Server) -> int:
    return sum(stats["calls"] for name, stats in server.admin.info("commandstats").items() if "RENEW" in name)


KINDS = {
    "mutex": lambda c, **o: c.lock("k", **o),
    "fair": lambda c, **o: c.fair_lock("k", **o),
    "write": lambda c, **o: c.write_lock("k", **o),
    "semaphore": lambda c, **o: c.semaphore("k", **o),
    "many": lambda c, **o: c.multi_lock(["k", "l"], **o),
}


class TestKinds:
    @pytest.mark.parametrize("kind", KINDS)
    def test_belief_follows_a_limit_that_was_lowered_during_the_wait(
        self, kind: str, client: RLockClient, server: Server
    ) -> None:
        lock = KINDS[kind](client, lease=60)
        if kind == "semaphore":
            lock.init(1)
        before = server.admin.config_get("rlock.max-lease-ms")
        try:
            with lock:
                waiter = Thread(lock.acquire)
                eventually(lambda: server.waiters("k") == 1)
                server.admin.config_set("rlock.max-lease-ms", 3000)
            assert 0 < waiter.ended().remaining < 3
        finally:
            server.admin.config_set("rlock.max-lease-ms", before["rlock.max-lease-ms"])

    @pytest.mark.parametrize("timeout", [0, 5])
    def test_acquires_after_the_limit_was_lowered(self, timeout: float, client: RLockClient, server: Server) -> None:
        before = server.admin.config_get("rlock.max-lease-ms")
        client.lock("k", lease=60).acquire().release()
        try:
            server.admin.config_set("rlock.max-lease-ms", 1500)
            with client.lock("k", lease=60, timeout=timeout) as hold:
                assert 0 < hold.remaining < 1.5
        finally:
            server.admin.config_set("rlock.max-lease-ms", before["rlock.max-lease-ms"])

    @pytest.mark.parametrize("kind", KINDS)
    def test_each_kind_excludes_hands_over_and_leaves_nothing(
        self, kind: str, client: RLockClient, server: Server
    ) -> None:
        lock = KINDS[kind](client, note="build 7")
        if kind == "semaphore":
            assert lock.init(1)
            assert not lock.init(1)
        with lock as hold:
            assert hold.token > 0
            assert server.info("k")["holders"][0]
            assert in_thread(lambda: lock.acquire(blocking=False)) is None
            waiter = Thread(lock.acquire)
            eventually(lambda: server.waiters("k") == 1)
        assert waiter.ended().token > hold.token
        client.close()
        eventually(lambda: server.is_clean("k") and server.is_clean("l"))

    @pytest.mark.parametrize("kind", KINDS)
    def test_message_that_grants_is_enough_and_a_hold_that_goes_on_is_claimed(
        self, kind: str, client: RLockClient, server: Server
    ) -> None:
        lock = KINDS[kind](client)
        if kind == "semaphore":
            lock.init(1)
        server.admin.config_resetstat()
        with lock:
            waiter = Thread(lambda: [lock.acquire(), renewals(server)])
            eventually(lambda: server.waiters("k") == 1)
            eventually(lambda: renewals(server) == 1)
            server.admin.config_resetstat()
        hold, before = waiter.ended()
        assert before == 0
        assert server.admin.execute_command("RLOCK.PTTL", "k") <= 2000
        eventually(lambda: renewals(server) == 1)
        assert server.admin.execute_command("RLOCK.PTTL", "k") > 2000
        hold.release()
        server.admin.config_resetstat()
        for _ in range(10):
            lock.acquire()
            lock.release()
        time.sleep(0.2)
        assert renewals(server) < 10, "a short hold is only released"

    def test_readers_share_and_keep_writers_out(self, client: RLockClient) -> None:
        with client.read_lock("k"):
            assert in_thread(lambda: client.read_lock("k").acquire(blocking=False))
            assert in_thread(lambda: client.write_lock("k").acquire(blocking=False)) is None

    def test_semaphore_gives_permits_for_each_acquisition(self, client: RLockClient, server: Server) -> None:
        semaphore = client.semaphore("k")
        semaphore.init(3)
        with semaphore, semaphore:
            assert server.holders("k") == 2
            assert client.semaphore("k", permits=2).acquire(blocking=False) is None
        assert server.is_clean("k")

    def test_tokens_of_several_keys(self, client: RLockClient, server: Server) -> None:
        with client.multi_lock(["a", "b"]) as hold:
            for key, token in zip("ab", hold.tokens, strict=True):
                assert str(token) in str(server.info(key))

    def test_semaphore_that_was_not_made_is_refused(self, client: RLockClient) -> None:
        with pytest.raises(Refused) as raised:
            client.semaphore("k").acquire()
        assert raised.value.code == "NOSEMAPHORE"


class TestWaiting:
    def test_timeout_is_kept_and_leaves_no_waiter(self, client: RLockClient, server: Server) -> None:
        client.lock("k").acquire()
        began = time.monotonic()
        assert in_thread(lambda: client.lock("k").acquire(timeout=0.3)) is None
        assert 0.29 < time.monotonic() - began < 1.3
        with pytest.raises(LockTimeout):
            in_thread(lambda: client.lock("k", timeout=0.1).__enter__())
        eventually(lambda: server.waiters("k") == 0)

    @pytest.mark.parametrize("timeout", [math.inf, sys.float_info.max, 365 * 24 * 3600])
    def test_longest_timeouts_wait_until_the_lock_is_free(
        self, timeout: float, client: RLockClient, server: Server
    ) -> None:
        with client.lock("k") as hold:
            waiter = Thread(lambda: client.lock("k", timeout=timeout).acquire())
            eventually(lambda: server.waiters("k") == 1)
            watcher = Thread(lambda: hold.wait(timeout))
        assert waiter.ended()
        assert watcher.ended()

    def test_timeout_of_0_tries_once(self, client: RLockClient, server: Server) -> None:
        server.admin.execute_command("RLOCK.ACQUIRE", "k", "somebody")
        server.admin.config_resetstat()
        assert client.lock("k", timeout=0).acquire() is None
        assert client.lock("k").acquire(timeout=0) is None
        assert server.admin.info("commandstats")["cmdstat_RLOCK.ACQUIRE"]["calls"] == 2

    def test_period_of_0_is_none(self, client: RLockClient, server: Server) -> None:
        semaphore = client.semaphore("s")
        semaphore.init(1, idle=0.2)
        semaphore.init(1, idle=0)
        time.sleep(0.3)
        assert server.admin.exists("s")
        client.lock("k").acquire()
        client.lock("k").release(keep=0)
        assert server.is_clean("k")
        assert in_thread(lambda: client.lock("k").acquire(blocking=False))

    def test_longest_durations_are_understood_by_the_server(self, client: RLockClient) -> None:
        year = 365 * 24 * 3600
        with client.fair_lock("k", lease=year, session=year, grace=year, timeout=year):
            pass
        client.semaphore("s").init(1, idle=year)
        client.lock("l").acquire()
        client.lock("l").release(keep=year)

    @pytest.mark.parametrize("fault", ["stalled", "deaf", "halting", "refuses"])
    def test_wait_ends_in_time_whatever_the_network_does(self, fault: str, proxied: RLockClient, proxy: Proxy) -> None:
        proxied.lock("other").acquire()
        setattr(proxy, fault, True)
        if fault == "refuses":
            proxy.cut()
        began = time.monotonic()
        with pytest.raises(Unavailable):
            proxied.lock("k").acquire(timeout=0.5)
        assert time.monotonic() - began < 1.5 + 0.5  # The machine is busy.

    def test_first_wait_of_a_client_ends_in_time_too(self, proxied: RLockClient, proxy: Proxy) -> None:
        proxy.stalled = True
        began = time.monotonic()
        with pytest.raises(Unavailable):
            proxied.lock("k").acquire(timeout=0.5)
        assert time.monotonic() - began < 1.5 + 0.5  # The machine is busy.

    def test_outage_is_not_contention(self, caplog: pytest.LogCaptureFixture) -> None:
        with RLockClient(redis.Redis(port=free_port())) as client:
            for wait in (lambda: client.lock("k").acquire(timeout=0.3), client.lock("k", timeout=0.3).__enter__):
                caplog.clear()
                with pytest.raises(Unavailable, match=r"'k' was not acquired within 0.3 s: .*refused") as raised:
                    wait()
                assert isinstance(raised.value.__cause__, Unavailable)
                assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1

    def test_refusing_server_is_not_contention(self) -> None:
        replica = Server("--replicaof", "127.0.0.1", "1").ready()
        try:
            with RLockClient(redis.Redis(port=replica.port)) as client, pytest.raises(Unavailable) as raised:
                client.lock("k").acquire(timeout=0.3)
            assert raised.value.code == "READONLY"
        finally:
            replica.stop()

    @pytest.mark.parametrize("fault", ["stalled", "deaf", "refuses"])
    def test_outage_during_the_wait_is_not_contention(
        self, fault: str, proxied: RLockClient, proxy: Proxy, server: Server
    ) -> None:
        server.admin.execute_command("RLOCK.ACQUIRE", "k", "somebody")
        waiter = Thread(lambda: proxied.lock("k").acquire(timeout=1))
        eventually(lambda: server.waiters("k") == 1)
        setattr(proxy, fault, True)
        if fault == "refuses":
            proxy.cut()
        with pytest.raises(Unavailable):
            waiter.ended()

    def test_contention_after_an_outage_is_contention(self, proxied: RLockClient, proxy: Proxy, server: Server) -> None:
        server.admin.execute_command("RLOCK.ACQUIRE", "k", "somebody")
        proxy.refuses = True
        waiter = Thread(lambda: proxied.lock("k").acquire(timeout=2))
        time.sleep(0.2)
        proxy.refuses = False
        assert waiter.ended() is None

    def test_lost_reply_leaves_no_hold(self, proxied: RLockClient, proxy: Proxy, server: Server) -> None:
        proxied.lock("other").acquire()
        proxied.command_timeout = 0.5
        server.admin.config_resetstat()
        proxy.deaf = True
        with pytest.raises(Unavailable):
            proxied.lock("k").acquire(blocking=False)
        assert server.holders("k") == 1, "the server has granted it"
        proxy.cut()
        proxy.deaf = False
        eventually(lambda: server.is_clean("k"))
        assert server.admin.info("commandstats")["cmdstat_RLOCK.CANCEL"]["calls"] >= 1

    def test_settlement_spares_the_hold_of_another_client_with_the_same_owner_name(
        self, client: RLockClient, server: Server, proxy: Proxy
    ) -> None:
        with RLockClient(redis.Redis(port=proxy.port), command_timeout=1) as late:
            late.lock("other").acquire()
            proxy.deaf = True
            thread = Thread(lambda: late.lock("k", shared_owner="me").acquire(blocking=False))
            eventually(lambda: server.holders("k"))
            hold = client.lock("k", shared_owner="me").acquire()
            with pytest.raises(Unavailable):
                thread.ended()
            proxy.deaf = False
            eventually(lambda: not late._boxes and not late._engine.errands())
            assert hold
            assert hold.held
            assert server.holders("k") == 1

    def test_wait_survives_a_lost_subscriber(self, proxied: RLockClient, proxy: Proxy, server: Server) -> None:
        server.admin.execute_command("RLOCK.ACQUIRE", "k", "somebody")
        waiter = Thread(lambda: proxied.lock("k").acquire(timeout=20))
        eventually(lambda: server.waiters("k") == 1)
        proxy.cut()
        server.admin.execute_command("RLOCK.RELEASE", "k", "somebody")
        assert waiter.ended(15).token

    def test_idle_connections_that_were_cut_do_no_harm(self, server: Server) -> None:
        with RLockClient(redis.Redis(port=server.port), command_timeout=5) as client:
            # No request is answered before each has a connection of its own.
            server.admin.client_pause(10_000, all=False)
            threads = [Thread(lambda n=n: client.lock(f"k{n}").acquire(timeout=5)) for n in range(10)]
            eventually(lambda: server.admin.info("clients")["blocked_clients"] == 10)
            server.admin.client_unpause()
            for thread in threads:
                thread.ended(10)
            assert len(client._idle[""]) > 4
            server.admin.client_kill_filter(_type="normal", skipme=True)
            assert client.lock("k").acquire(blocking=False)

    def test_expired_claim_is_not_entered(
        self, client: RLockClient, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(_attempt, "CLAIM", 0.1)
        receive, slept = client._receive, []

        async def sleeps_through_the_grant(box: Any, timeout: float) -> Any:
            message = await receive(box, timeout)
            if message and message.what == "granted" and not slept:
                slept.append(message)
                eventually(lambda: server.holders("k") == 0)
                server.admin.execute_command("RLOCK.ACQUIRE", "k", "another")
            return message

        monkeypatch.setattr(client, "_receive", sleeps_through_the_grant)
        server.admin.execute_command("RLOCK.ACQUIRE", "k", "somebody")
        waiter = Thread(lambda: client.lock("k").acquire())
        eventually(lambda: server.waiters("k") == 1)
        server.admin.execute_command("RLOCK.RELEASE", "k", "somebody")
        eventually(lambda: slept and server.waiters("k") == 1)
        assert waiter.is_alive()
        server.admin.execute_command("RLOCK.RELEASE", "k", "another")
        assert waiter.ended().held

    def test_grant_of_several_keys_of_which_one_was_forced_open_is_lost_and_leaves_no_others_taken(
        self, client: RLockClient, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        receive, granted = client._receive, []

        async def receives(box: Any, timeout: float) -> Any:
            message = await receive(box, timeout)
            if message and message.what == "granted" and not granted:
                granted.append(message)
                server.admin.execute_command("RLOCK.FORCERELEASE", "a")
                server.admin.execute_command("RLOCK.ACQUIRE", "a", "another")
            return message

        monkeypatch.setattr(client, "_receive", receives)
        server.admin.execute_command("RLOCK.ACQUIRE", "a", "somebody")
        waiter = Thread(lambda: client.multi_lock("ab").acquire())
        eventually(lambda: server.waiters("a") == 1)
        server.admin.execute_command("RLOCK.RELEASE", "a", "somebody")
        assert waiter.ended().wait(5)
        eventually(lambda: server.holders("b") == 0)
        assert server.holders("a") == 1

    def test_signal_ends_a_wait_and_leaves_nothing(self, client: RLockClient, server: Server) -> None:
        server.admin.execute_command("RLOCK.ACQUIRE", "k", "somebody")

        def raises(*_: object) -> None:
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGUSR1, raises)
        main = threading.main_thread().ident
        assert main is not None
        Thread(lambda: eventually(lambda: server.waiters("k") == 1) and signal.pthread_kill(main, signal.SIGUSR1))
        try:
            with pytest.raises(KeyboardInterrupt):
                client.lock("k").acquire()
        finally:
            signal.signal(signal.SIGUSR1, before)
        eventually(lambda: server.waiters("k") == 0)
        server.admin.execute_command("RLOCK.RELEASE", "k", "somebody")
        assert server.is_clean("k")

    def test_circle_of_threads_is_a_deadlock(self, client: RLockClient, server: Server) -> None:
        client.lock("a").acquire()

        def other() -> None:
            client.lock("b").acquire()
            client.lock("a").acquire()

        thread = Thread(other)
        eventually(lambda: server.waiters("a") == 1)
        with pytest.raises(Deadlock):
            client.lock("b").acquire()
        client.lock("a").release()
        thread.ended()

    def test_same_owner_name_in_two_clients_is_superseded(self, client: RLockClient, server: Server) -> None:
        server.admin.execute_command("RLOCK.ACQUIRE", "k", "somebody")
        waiter = Thread(lambda: client.lock("k", shared_owner="x").acquire())
        eventually(lambda: server.waiters("k") == 1)
        with RLockClient(redis.Redis(port=server.port)) as second:
            assert second.lock("k", shared_owner="x").acquire(timeout=0.3) is None
            with pytest.raises(Superseded):
                waiter.ended()


class TestOwners:
    def test_reentry_is_counted_in_the_client(self, client: RLockClient, server: Server) -> None:
        lock = client.lock("k")
        with lock as outer:
            with client.lock("k") as inner:
                assert inner is outer
                assert server.admin.execute_command("RLOCK.HOLDS", "k", outer.owner) == 1
            assert outer.held
            assert lock.held
        assert server.is_clean("k")
        assert not lock.held

    def test_threads_share_a_lock_object(self, client: RLockClient, server: Server) -> None:
        lock, inside, most = client.lock("k"), [], []

        def work() -> None:
            for _ in range(10):
                with lock:
                    inside.append(1)
                    most.append(len(inside))
                    inside.pop()

        for thread in [Thread(work) for _ in range(8)]:
            thread.ended(30)
        assert max(most) == 1
        assert len(most) == 80
        assert server.is_clean("k")

    def test_only_the_owner_releases(self, client: RLockClient) -> None:
        lock = client.lock("k")
        with lock as hold:
            with pytest.raises(RuntimeError, match="does not hold"):
                in_thread(lock.release)
            assert hold.held

    @pytest.mark.parametrize(("held", "asked"), [("ab", "a"), ("a", "ab"), ("ab", "bc"), ("ab", "abc"), ("abc", "ab")])
    def test_owner_that_holds_some_of_the_keys_but_not_all_is_misuse(
        self, held: str, asked: str, client: RLockClient, server: Server
    ) -> None:
        def lock(keys: str) -> Any:
            return client.lock(keys) if keys == "a" else client.multi_lock(keys)

        with lock(held):
            with pytest.raises(RuntimeError, match="already holds"):
                lock(asked).acquire()
            assert [server.holders(key) for key in "abc"] == [key in held for key in "abc"]
        assert [server.holders(key) for key in "abc"] == [0, 0, 0]

    def test_writer_becomes_a_reader_and_a_writer_again(self, client: RLockClient, server: Server) -> None:
        read, write = client.read_lock("k"), client.write_lock("k")
        write.acquire()
        with read as hold:
            write.release()
            assert hold.held
            assert in_thread(lambda: client.write_lock("k").acquire(blocking=False)) is None
            other = Thread(lambda: (read.acquire() and write.acquire(timeout=0.2)) or read.release())
            other.ended()
            with write:
                assert in_thread(lambda: read.acquire(blocking=False)) is None
            assert hold.held
            assert server.holders("k") == 1
        assert server.is_clean("k")

    def test_permits_of_other_numbers_are_released_by_themselves(self, client: RLockClient, server: Server) -> None:
        one, two = client.semaphore("k"), client.semaphore("k", permits=2)
        one.init(4)
        with two, one:
            two.acquire(blocking=False)
            assert server.holders("k") == 2
            one.release()
            two.acquire()
            assert not one.held
            assert two.held
            two.release()
            one.acquire()
        assert server.is_clean("k")

    def test_threads_that_acquire_at_once_with_one_owner_name_share_the_hold(
        self, proxied: RLockClient, proxy: Proxy, server: Server
    ) -> None:
        lock = proxied.lock("k", owner="me")
        proxied.lock("other").acquire()
        server.admin.config_resetstat()
        proxy.deaf = True
        threads = [Thread(lambda: lock.acquire(blocking=False)) for _ in range(2)]
        eventually(lambda: server.holders("k") == 1 and len(proxied._boxes) == 2)
        proxy.deaf = False
        first, second = [thread.ended() for thread in threads]
        assert first is second
        assert server.admin.info("commandstats")["cmdstat_RLOCK.ACQUIRE"]["calls"] == 1
        lock.release()
        assert server.holders("k") == first.held == 1
        lock.release()
        assert server.is_clean("k")

    def test_attempt_beside_a_wait_of_its_owner_answers_at_once(self, client: RLockClient, server: Server) -> None:
        lock = client.lock("k", owner="me")
        server.admin.execute_command("RLOCK.ACQUIRE", "k", "somebody")
        waiter = Thread(lock.acquire)
        eventually(lambda: server.waiters("k") == 1)
        assert in_thread(lambda: lock.acquire(blocking=False)) is None
        assert in_thread(lambda: lock.acquire(timeout=0.1)) is None
        server.admin.execute_command("RLOCK.RELEASE", "k", "somebody")
        assert waiter.ended().held
        assert not client._turns

    def test_named_owner_belongs_to_its_client(self, client: RLockClient, server: Server) -> None:
        with RLockClient(redis.Redis(port=server.port)) as other, client.lock("k", owner="me") as hold:
            assert hold.owner == f"{client.id}.me"
            assert other.lock("k", owner="me").acquire(blocking=False) is None
            with pytest.raises(ValueError, match="exclude each other"):
                client.lock("k", owner="me", shared_owner="me")

    def test_shared_owner_is_counted_by_the_server(self, client: RLockClient, server: Server) -> None:
        lock = client.lock("k", shared_owner="me")
        with RLockClient(redis.Redis(port=server.port)) as other, lock as hold:
            assert hold.owner == "me"
            with lock, other.lock("k", shared_owner="me") as shared:
                assert shared.token == hold.token
                assert server.admin.execute_command("RLOCK.HOLDS", "k", "me") == 2
            assert server.admin.execute_command("RLOCK.HOLDS", "k", "me") == hold.held == 1
        assert server.is_clean("k")

    @pytest.mark.parametrize("owner", [None, "me"])
    @pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "semaphore"])
    def test_owner_of_a_lost_hold_gets_a_new_one(
        self, kind: str, owner: str | None, client: RLockClient, server: Server
    ) -> None:
        lock = KINDS[kind](client, lease=0.4, renew=False, owner=owner)
        lost = lock.acquire()
        assert lock.acquire() is lost
        assert lost.wait(5)
        hold = KINDS[kind](client, owner=owner).acquire(timeout=5)
        assert hold.token > lost.token
        assert hold.held
        lock.release()
        assert not hold.held
        assert server.is_clean("k")
        for release in (lost.release, lock.release):
            with pytest.raises(LockLost):
                release()
        assert lock.acquire(blocking=False)

    def test_hold_that_the_server_still_has_is_released_before_its_owner_acquires_again(self, server: Server) -> None:
        clock = Clock()
        with RLockClient(redis.Redis(port=server.port), clock=clock) as client:
            client._poll = lambda: 60.0  # As if the timer had not seen the loss.
            lock = client.lock("k")
            lost = lock.acquire()
            clock.ahead += 31
            hold = lock.acquire(blocking=False)
            assert hold.token > lost.token
            assert server.holders("k") == hold.held == 1
            with pytest.raises(LockLost):
                lost.release()
            assert hold.held
            del client._poll

    def test_forked_child_does_not_hold_and_can_lock(self, client: RLockClient, server: Server) -> None:
        with client.lock("k") as hold:
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    status = 10 * hold.held + (not client.lock("in-child").acquire(timeout=5))
                    assert client.lock("k").acquire(timeout=0.2) is None
                finally:
                    os._exit(status)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            assert hold.held
            assert server.holders("k") == 1
        owners = str(server.info("in-child"))
        assert client.id not in owners


class TestHolding:
    def test_stalled_server_is_told_as_a_loss_before_the_lease_ends(
        self, proxied: RLockClient, proxy: Proxy, server: Server
    ) -> None:
        lost: list[float] = []
        with (
            pytest.raises(LockLost),
            proxied.lock("k", lease=1, on_lost=lambda _: lost.append(time.monotonic())) as hold,
        ):
            proxy.stalled = True
            stalled = time.monotonic()
            assert hold.wait(5)
            assert hold.lost
            assert not hold.held
        eventually(lambda: lost)
        assert lost[0] - stalled < 1.0 + 0.3  # The machine is busy.

    def test_block_that_goes_on_after_its_deadline_is_no_success(self, server: Server) -> None:
        clock = Clock()
        with RLockClient(redis.Redis(port=server.port), clock=clock) as client:
            client._poll = lambda: 60.0  # As if no timer saw the loss.
            with pytest.raises(LockLost), client.lock("k"):
                clock.ahead += 31

    def test_error_of_the_block_is_not_replaced(self, client: RLockClient, server: Server) -> None:
        with pytest.raises(ZeroDivisionError), client.lock("k", lease=0.6) as hold:
            server.admin.execute_command("RLOCK.FORCERELEASE", "k")
            hold.wait(5)
            raise ZeroDivisionError

    def test_hold_survives_readonly(self) -> None:
        own = Server().ready()
        try:
            with RLockClient(redis.Redis(port=own.port)) as client, client.lock("k", lease=1.5) as hold:
                own.admin.replicaof("127.0.0.1", 1)
                time.sleep(0.8)  # A renewal is due.
                own.admin.replicaof("no", "one")
                assert not hold.wait(2)
                assert hold.held
        finally:
            own.stop()

    def test_lock_that_was_forced_open_is_lost_soon(self, client: RLockClient, server: Server) -> None:
        with pytest.raises(LockLost), client.lock("k", lease=3) as hold:
            server.admin.execute_command("RLOCK.FORCERELEASE", "k")
            assert hold.wait(2)

    def test_sixty_locks_at_200_ms_stay_held(self, proxied: RLockClient, proxy: Proxy) -> None:
        proxy.delay = 0.1
        threads = [Thread(lambda n=n: proxied.lock(f"k{n}", lease=2.5).acquire(timeout=20)) for n in range(60)]
        holds = [thread.ended(30) for thread in threads]
        time.sleep(4)
        assert [hold.held for hold in holds] == [True] * 60

    def test_many_holds_on_a_stalled_server_need_few_threads(self, proxied: RLockClient, proxy: Proxy) -> None:
        holds = [proxied.lock(f"k{n}", lease=1.5 + n / 200).acquire() for n in range(200)]
        proxy.stalled = True
        most = 0
        while any(hold is not None and hold.held for hold in holds):
            most = max(most, sum(thread.name == "rlock" for thread in threading.enumerate()))
            time.sleep(0.02)
        assert most < 100

    def test_stalled_server_does_not_lose_a_lock_on_another(
        self, proxied: RLockClient, proxy: Proxy, server: Server
    ) -> None:
        with RLockClient(redis.Redis(port=server.port)) as healthy, healthy.lock("healthy", lease=1) as hold:
            stalled = proxied.lock("k", lease=1).acquire()
            assert stalled
            proxy.stalled = True
            assert stalled.wait(5)
            assert not hold.wait(1.5)

    def test_clock_that_jumps_ends_the_hold_at_once_and_releases_it(self, server: Server) -> None:
        clock, lost = Clock(), threading.Event()
        with RLockClient(redis.Redis(port=server.port), clock=clock) as client:
            hold = client.lock("k", lease=30, on_lost=lambda _: lost.set()).acquire()
            assert hold
            assert hold.held
            clock.ahead += 31
            assert not hold.held
            assert lost.wait(2)
            eventually(lambda: server.is_clean("k") and not client._engine.errands())
            with pytest.raises(LockLost):
                client.lock("k").release()
            assert not client._engine.errands(), "it is released once"

    @pytest.mark.parametrize("blocking", [True, False])
    @pytest.mark.parametrize("keys", ["a", "ab", "bc"])
    def test_hold_that_the_clock_ended_is_released_before_its_owner_goes_on(
        self, keys: str, blocking: bool, server: Server
    ) -> None:
        clock = Clock()
        with RLockClient(redis.Redis(port=server.port), clock=clock) as client:
            former = client.multi_lock("ab").acquire()
            clock.ahead += 31
            assert former
            assert former.wait(3)
            with pytest.raises(LockLost):
                client.multi_lock("ab").release()
            hold = client.multi_lock(keys).acquire(blocking)
            assert hold
            assert hold.held
            eventually(lambda: not client._engine.errands())
            assert [server.holders(key) for key in "abc"] == [key in keys for key in "abc"]

    def test_lost_hold_of_a_thread_that_has_ended_is_forgotten(self, server: Server) -> None:
        clock = Clock()
        with RLockClient(redis.Redis(port=server.port), clock=clock) as client:
            hold = in_thread(client.lock("k").acquire)
            assert hold.held, "a thread that ends does not release"
            clock.ahead += 31
            assert hold.wait(3)
            left = weakref.ref(hold)
            del hold
            eventually(lambda: gc.collect() is not None and left() is None)

    def test_permits_of_a_hold_that_the_clock_ended_are_released_before_their_owner_goes_on(
        self, server: Server
    ) -> None:
        clock = Clock()
        with RLockClient(redis.Redis(port=server.port), clock=clock) as client:
            semaphore = client.semaphore("k", owner="me")
            semaphore.init(9)
            former = semaphore.acquire()
            clock.ahead += 31
            assert former
            assert former.wait(3)
            with pytest.raises(LockLost):
                semaphore.release()
            assert semaphore.acquire()
            eventually(lambda: not client._engine.errands())
            assert server.holders("k") == 1

    def test_losses_are_told_and_renewals_go_on_when_no_thread_can_be_started(
        self, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clock = Clock()

        def refuses(_: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        with RLockClient(redis.Redis(port=server.port), clock=clock) as client:
            locks = [client.lock(f"k{n}", lease=10, renew=False, on_lost=print) for n in range(3)]
            holds = [lock.acquire() for lock in locks]
            renewed = client.lock("renewed", lease=30).acquire()
            eventually(lambda: renewed.remaining > 28, 5)  # It was claimed.
            with monkeypatch.context() as patch:
                patch.setattr(threading.Thread, "start", refuses)
                clock.ahead += 11
                assert all(hold and hold.wait(3) for hold in holds)
                time.sleep(1)  # The timer polls several times.
            eventually(lambda: renewed.remaining > 28)
            assert renewed.under_way == 0
            eventually(lambda: all(server.is_clean(f"k{n}") for n in range(3)))

    def test_permits_of_one_owner_are_renewed_with_their_own_lease(self, client: RLockClient) -> None:
        client.semaphore("k").init(9)
        long = client.semaphore("k", owner="me", lease=60).acquire()
        short = client.semaphore("k", owner="me", lease=1, permits=2).acquire()
        assert long
        assert short
        time.sleep(0.2)
        assert run(client._call(b"k", long.commands(), 3))[0] > 59_900

    def test_acquisition_for_which_no_thread_can_be_started_leaves_nothing(
        self, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuses(_: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        with RLockClient(redis.Redis(port=server.port)) as client:
            for blocking in (False, True):
                with monkeypatch.context() as patch:
                    patch.setattr(threading.Thread, "start", refuses)
                    with pytest.raises(RuntimeError, match="start new thread"):
                        client.lock("k").acquire(blocking)
                assert server.is_clean("k")
            assert client.lock("k").acquire(blocking=False)

    def test_fixed_lease_ends(self, client: RLockClient, server: Server) -> None:
        hold = client.lock("k", lease=0.4, renew=False).acquire()
        assert hold
        assert hold.wait(3)
        eventually(lambda: server.is_clean("k"))

    def test_grant_with_a_session_is_asked_for_again_so_that_the_server_sees_its_connection(
        self, proxied: RLockClient, proxy: Proxy, server: Server
    ) -> None:
        server.admin.execute_command("RLOCK.ACQUIRE", "k", "somebody")
        waiter = Thread(lambda: proxied.lock("k", session=0.6).acquire())
        eventually(lambda: server.waiters("k") == 1)
        server.admin.execute_command("RLOCK.RELEASE", "k", "somebody")
        hold = waiter.ended()
        assert 0 < hold.remaining < 0.6
        assert server.admin.execute_command("RLOCK.PTTL", "k") > 2000, "it was claimed"
        proxy.refuses = True
        proxy.cut()
        eventually(lambda: server.is_clean("k"), 3)

    def test_fixed_lease_lasts_to_its_end_if_the_server_allows_less(self, client: RLockClient, server: Server) -> None:
        before = server.admin.config_get("rlock.max-lease-ms")
        try:
            server.admin.config_set("rlock.max-lease-ms", 300)
            hold = client.lock("k", lease=1.2, renew=False).acquire()
            assert not hold.wait(0.9)
            assert server.admin.execute_command("RLOCK.PTTL", "k") <= 300
            assert hold.wait(0.5)
        finally:
            server.admin.config_set("rlock.max-lease-ms", before["rlock.max-lease-ms"])

    def test_session_ends_the_hold_of_a_client_that_is_gone(
        self, proxied: RLockClient, proxy: Proxy, server: Server
    ) -> None:
        hold = proxied.lock("k", session=0.6).acquire()
        assert hold
        assert not hold.wait(1.5), "it is renewed"
        proxy.refuses = True
        proxy.cut()
        eventually(lambda: server.is_clean("k"), 3)
        assert hold.lost

    def test_loss_callback_that_blocks_delays_no_other_loss(self, client: RLockClient) -> None:
        ends = threading.Event()
        first = client.lock("a", lease=0.3, renew=False, on_lost=lambda _: ends.wait(20)).acquire()
        second = client.lock("b", lease=0.5, renew=False).acquire()
        assert first
        assert second
        assert second.wait(3)
        ends.set()


class TestReleasing:
    def test_release_with_keep_keeps_the_lock_closed(self, client: RLockClient, server: Server) -> None:
        hold = client.lock("k").acquire()
        client.lock("k").release(keep=0.5)
        assert hold
        assert not hold.held
        with pytest.raises(RuntimeError, match="does not hold"):
            client.lock("k").release()
        assert in_thread(lambda: client.lock("k").acquire(blocking=False)) is None
        assert in_thread(lambda: client.lock("k").acquire(timeout=5))

    def test_release_after_a_newer_request_of_its_owner_is_no_warning(
        self, client: RLockClient, server: Server, caplog: pytest.LogCaptureFixture
    ) -> None:
        client.lock("k", shared_owner="me").acquire()
        newer = int(time.time() * 1e6) + 3_600_000_000
        server.admin.execute_command("RLOCK.ACQUIRE", "k", "me", "ONCE", "REQ", newer)
        client.lock("k", shared_owner="me").release()
        assert not caplog.messages
        assert server.admin.execute_command("RLOCK.HOLDS", "k", "me") == 1

    @pytest.mark.parametrize("command", ["RLOCK.FORCERELEASE", "DEL"])
    def test_release_of_several_keys_of_which_one_was_forced_open_frees_the_others(
        self, command: str, client: RLockClient, server: Server
    ) -> None:
        with pytest.raises(LockLost), client.multi_lock(["a", "b", "c"]):
            server.admin.execute_command(command, "a")
        assert [server.holders(key) for key in "abc"] == [0, 0, 0]

    def test_loss_of_several_keys_of_which_one_was_forced_open_frees_the_others(
        self, client: RLockClient, server: Server
    ) -> None:
        hold = client.multi_lock(["a", "b", "c"], lease=3).acquire()
        server.admin.execute_command("RLOCK.FORCERELEASE", "b")
        assert hold
        assert hold.wait(2.5)
        assert hold.remaining == 0
        eventually(lambda: not client._engine.errands())
        assert [server.holders(key) for key in "abc"] == [0, 0, 0]

    def test_settlement_of_several_keys_of_which_one_was_forced_open_frees_the_others(
        self, proxied: RLockClient, proxy: Proxy, server: Server
    ) -> None:
        proxied.lock("other").acquire()
        proxy.deaf = True
        thread = Thread(lambda: proxied.multi_lock(["a", "b"]).acquire(timeout=0.2))
        eventually(lambda: server.holders("b"))
        server.admin.execute_command("RLOCK.FORCERELEASE", "a")
        proxy.refuses = True
        proxy.cut()
        with pytest.raises(Unavailable):
            thread.ended()
        proxy.deaf = proxy.refuses = False
        eventually(lambda: server.is_clean("a") and server.is_clean("b"))

    @pytest.mark.parametrize(("kind", "keep"), [*((kind, None) for kind in KINDS), ("mutex", 1), ("fair", 1)])
    @pytest.mark.parametrize("replacement", ["string", "other lock", "nothing"])
    def test_release_of_a_key_that_was_overwritten_reports_the_loss(
        self, kind: str, keep: float | None, replacement: str, client: RLockClient, server: Server
    ) -> None:
        lock = KINDS[kind](client)
        if kind == "semaphore":
            lock.init(1)
        lock.acquire()
        server.admin.delete("k")
        if replacement == "string":
            server.admin.set("k", "value")
        elif replacement == "other lock":
            other = ["RLOCK.ACQUIRE", "k", "other"] if kind == "write" else ["RRWLOCK.ACQUIRE", "k", "other", "READ"]
            server.admin.execute_command(*other)
        with pytest.raises(LockLost):
            lock.release(keep)
        assert server.holders("l") == 0

    def test_keep_is_refused_where_it_does_not_exist(self, client: RLockClient) -> None:
        with client.write_lock("k") as hold, pytest.raises(ValueError, match="keep"):
            client.write_lock("k").release(keep=1)
        with client.lock("m") as hold, client.lock("m"), pytest.raises(ValueError, match="keep"):
            client.lock("m").release(keep=1)
        assert not hold.held

    def test_release_that_does_not_get_through_is_completed_in_the_background(
        self, proxied: RLockClient, proxy: Proxy, server: Server
    ) -> None:
        with proxied.lock("k"):
            proxy.refuses = True
            proxy.cut()
        assert server.holders("k") == 1
        proxy.refuses = False
        eventually(lambda: server.is_clean("k"))

    def test_release_spares_the_next_hold_of_its_owner(self, client: RLockClient, server: Server) -> None:
        lock = client.lock("k", owner="x")
        hold = lock.acquire()
        assert hold
        hold._ended = lambda _: in_thread(lock.acquire)  # Called before the RELEASE is sent.
        lock.release()
        assert server.holders("k") == 1

    def test_release_spares_the_hold_of_another_client_with_the_same_owner_name(
        self, client: RLockClient, server: Server
    ) -> None:
        with RLockClient(redis.Redis(port=server.port)) as second:
            client.lock("k", shared_owner="x").acquire()
            hold = second.lock("k", shared_owner="x").acquire()
            client.lock("k", shared_owner="x").release()
            assert hold
            assert server.admin.execute_command("RLOCK.HOLDS", "k", "x") == hold.held == 1

    def test_repeated_release_counts_as_done(self, proxied: RLockClient, proxy: Proxy, server: Server) -> None:
        with proxied.lock("k"):
            proxy.deaf = True
            Thread(lambda: eventually(lambda: server.is_clean("k")) and (proxy.cut(), setattr(proxy, "deaf", False)))

    def test_close_ends_waits_releases_holds_and_leaves_no_thread_or_connection(self, server: Server) -> None:
        before, threads = len(server.admin.client_list()), threading.active_count()
        client = RLockClient(redis.Redis(port=server.port))
        client.lock("k").acquire()
        waiter = Thread(lambda: client.lock("k").acquire())
        eventually(lambda: server.waiters("k") == 1)
        client.close()
        with pytest.raises(Closed):
            waiter.ended()
        with pytest.raises(Closed):
            client.lock("k").acquire()
        eventually(lambda: server.is_clean("k"))
        eventually(lambda: threading.active_count() <= threads)
        eventually(lambda: len(server.admin.client_list()) <= before)

    def test_close_tells_holders_that_their_hold_is_lost(self, server: Server) -> None:
        told = threading.Event()
        client = RLockClient(redis.Redis(port=server.port))
        with pytest.raises(LockLost), client.lock("k", on_lost=lambda _: told.set()) as hold:
            client.close()
            assert hold.lost
            assert told.wait(5)
            assert server.is_clean("k")

    def test_close_tells_a_loss_that_the_timer_has_not_seen(self, server: Server) -> None:
        clock, told = Clock(), threading.Event()
        client = RLockClient(redis.Redis(port=server.port), clock=clock)
        client._poll = lambda: 60.0  # It sees none.
        hold = client.lock("k", on_lost=lambda _: told.set()).acquire()
        clock.ahead += 31
        del client._poll
        client.close()
        assert hold
        assert hold.wait(0)
        assert told.wait(5)
        assert server.is_clean("k")


class TestConnections:
    def test_database_user_password_and_prefix_are_those_of_the_application(self, server: Server) -> None:
        server.admin.execute_command("ACL SETUSER locker on >secret ~app:* &rlock:* +@all")
        app = redis.Redis.from_url(f"redis://locker:secret@127.0.0.1:{server.port}/3")
        with RLockClient(app, key_prefix="app:") as client:
            third = redis.Redis(port=server.port, db=3, decode_responses=True)
            with client.lock("k"):
                assert third.keys() == ["app:k"]
                assert server.admin.keys() == []
                waiter = Thread(lambda: client.lock("k").acquire(timeout=10))
                eventually(lambda: third.execute_command("RLOCK.WAITERS", "app:k"))
            assert waiter.ended()
            third.close()

    def test_missing_rights_are_refused_at_once(self, server: Server) -> None:
        server.admin.execute_command("ACL SETUSER mute on >secret ~* resetchannels +@all")
        app = redis.Redis(port=server.port, username="mute", password="secret")
        server.admin.execute_command("RLOCK.ACQUIRE", "k", "somebody")
        began = time.monotonic()
        with RLockClient(app) as client, pytest.raises(Refused) as raised:
            client.lock("k").acquire(timeout=9)
        assert raised.value.code == "NOPERM"
        assert time.monotonic() - began < 3

    def test_decoded_replies_are_understood(self, server: Server) -> None:
        app = redis.Redis(port=server.port, decode_responses=True)
        with RLockClient(app) as client:
            with client.lock("k") as hold:
                waiter = Thread(lambda: client.lock("k").acquire(timeout=10))
                eventually(lambda: server.waiters("k") == 1)
            assert waiter.ended().token > hold.token

    def test_server_without_the_module_is_named(self) -> None:
        own = Server(module=False).ready()
        try:
            with (
                RLockClient(redis.Redis(port=own.port)) as client,
                pytest.raises(ModuleMissing, match="unknown command"),
            ):
                client.lock("k").acquire()
        finally:
            own.stop()

    def test_valkey_client_works(self, server: Server) -> None:
        valkey = pytest.importorskip("valkey")
        with RLockClient(valkey.Valkey(port=server.port)) as client, client.lock("k") as hold:
            assert in_thread(lambda: client.lock("k").acquire(timeout=0.1)) is None
            assert hold.held
            server.admin.set("string", "x")
            with pytest.raises(Refused) as raised:
                client.lock("string").acquire()
            assert raised.value.code == "WRONGTYPE"


def test_one_leader_at_a_time(client: RLockClient, server: Server) -> None:
    now, most, terms = [], [], []

    def work(hold: Any) -> None:
        now.append(1)
        most.append(len(now))
        hold.wait(0.05)
        now.pop()
        terms.append(threading.get_ident())

    leaders = [client.leader("k", work) for _ in range(3)]
    threads = [Thread(leader.run) for leader in leaders]
    eventually(lambda: len(set(terms)) == 3)
    for leader in leaders:
        leader.stop()
    for thread in threads:
        thread.ended()
    assert max(most) == 1
    eventually(lambda: server.is_clean("k"))


@pytest.mark.parametrize("error", [LockTimeout, LockLost, Unavailable, Stopped, Refused])
def test_error_of_the_work_of_a_leader_ends_it(error: type[LockError], client: RLockClient, server: Server) -> None:
    def work(_: Any) -> None:
        terms.append(1)
        raise error("of another lock")

    terms: list[int] = []
    with pytest.raises(error, match="of another lock"):
        client.leader("k", work).run()
    assert len(terms) == 1
    assert server.is_clean("k")


def test_loss_of_another_lock_ends_a_leader(client: RLockClient, server: Server) -> None:
    def work(_: Any) -> None:
        with client.lock("other"):
            server.admin.execute_command("RLOCK.FORCERELEASE", "other")

    with pytest.raises(LockLost) as raised:
        client.leader("k", work).run()
    assert "other" in str(raised.value)


@pytest.mark.parametrize("checks", [False, True])
def test_leader_that_loses_the_lead_stands_again(checks: bool, client: RLockClient, server: Server) -> None:
    def work(hold: Any) -> None:
        terms.append(hold)
        if len(terms) == 3:
            leader.stop()
            return
        server.admin.execute_command("RLOCK.FORCERELEASE", "k")
        assert hold.wait(5)
        if checks:
            hold.check()

    terms: list[Any] = []
    leader = client.leader("k", work, lease=0.6)
    leader.run()
    assert len(set(terms)) == 3


def test_leader_with_a_timeout_outlasts_an_outage(proxied: RLockClient, proxy: Proxy) -> None:
    proxy.refuses = True
    leader = proxied.leader("k", lambda _: leader.stop(), timeout=0.3)
    thread = Thread(leader.run)
    thread.join(1)
    assert thread.is_alive()
    proxy.refuses = False
    thread.ended(20)


def test_error_with_a_hold_can_be_pickled(client: RLockClient, server: Server) -> None:
    with pytest.raises(LockLost) as raised, client.lock("k") as hold:
        server.admin.execute_command("RLOCK.FORCERELEASE", "k")
    assert raised.value.hold is hold
    copy = pickle.loads(pickle.dumps(raised.value))
    assert (type(copy), str(copy), copy.hold) == (LockLost, str(raised.value), None)


def test_leader_that_was_stopped_before_does_not_stand(client: RLockClient, server: Server) -> None:
    lock = client.lock("k")
    leader = Leader(lock, lambda hold: pytest.fail("it was elected"))
    leader.stop()
    leader.run()
    with lock as hold:
        assert hold.held


def test_stop_ends_the_wait_of_a_leader(client: RLockClient, server: Server) -> None:
    server.admin.execute_command("RLOCK.ACQUIRE", "k", "somebody")
    leader = client.leader("k", lambda hold: None)
    thread = Thread(leader.run)
    eventually(lambda: server.waiters("k") == 1)
    leader.stop()
    thread.ended(3)
    eventually(lambda: server.waiters("k") == 0)
