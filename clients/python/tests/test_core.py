"""What needs no server."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import os
import re
import socket
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from conftest import eventually
from redis import exceptions as x

from rlock_redis import AsyncRLockClient, LockError, Refused, RLockClient, Unavailable, _attempt, _request_ids, _sync
from rlock_redis._attempt import Attempt, Mailbox
from rlock_redis._clock import SteadyClock
from rlock_redis._commands import WAITING, grant_of, slot_of, tag_of
from rlock_redis._connections import Route, run
from rlock_redis.errors import ModuleMissing, ModuleTooOld, NotOwner, typed


@pytest.mark.parametrize("reply", [7, b"OK", [], [7], [7, -1], b"", 1.5, {"a": 1}])
def test_other_replies_are_no_grants(reply: Any) -> None:
    with pytest.raises(ModuleTooOld):
        grant_of(reply)


def test_waiting_is_recognised_and_nil_is_empty() -> None:
    assert grant_of([7, 8, 2000]) == grant_of([b"7", "8", b"2000"]) == [7, 8, 2000]
    assert grant_of(b"WAITING") is WAITING
    assert grant_of(None) == []


@pytest.mark.parametrize(
    ("error", "expected", "code"),
    [
        (x.ConnectionError("gone"), Unavailable, ""),
        (x.TimeoutError("late"), Unavailable, ""),
        (OSError("refused"), Unavailable, ""),
        (x.BusyLoadingError("Redis is loading"), Unavailable, "LOADING"),
        (x.ReadOnlyError("You can't write"), Unavailable, "READONLY"),
        (x.ResponseError("MISCONF disk"), Unavailable, "MISCONF"),
        (x.ResponseError("QUARANTINE 1500 ms left"), Unavailable, "QUARANTINE"),
        (x.AuthenticationError("required"), Refused, "NOAUTH"),
        (x.NoPermissionError("no"), Refused, "NOPERM"),
        (x.ResponseError("WRONGTYPE a list"), Refused, "WRONGTYPE"),
        (x.ResponseError("NOTOWNER of k"), NotOwner, "NOTOWNER"),
        (x.ResponseError("unknown command 'RLOCK.ACQUIRE'"), ModuleMissing, "ERR"),
        (x.ResponseError("unknown option 'CLAIM'; expected PX"), ModuleTooOld, "ERR"),
        (x.ResponseError("wrong number of arguments"), Refused, "ERR"),
    ],
)
def test_errors_are_typed_with_their_code(error: Exception, expected: type[LockError], code: str) -> None:
    found = typed(error)
    assert type(found) is expected
    assert found.code == code


def test_quarantine_tells_how_long_to_wait() -> None:
    error = typed(x.ResponseError("QUARANTINE 1500 ms left"))
    assert isinstance(error, Unavailable)
    assert error.retry_after == 1.5


def test_channel_tags_have_the_slot_of_their_key() -> None:
    for key in (b"orders", b"{a}b", b"x}y", b"{}z", b""):
        assert slot_of(f"rlock:1:{{{tag_of(slot_of(key))}}}".encode()) == slot_of(key)
    assert slot_of(b"foo{bar}") == slot_of(b"bar") == 5061


def test_connections_are_made_with_the_applications_settings_and_without_its_retries() -> None:
    app = redis.Redis.from_url("redis://u:p@somewhere:7000/3", decode_responses=True, retry_on_timeout=True)
    pool = app.connection_pool
    connection = Route("", pool.connection_class, pool.connection_kwargs).connection(0.5)
    assert (connection.host, connection.port, connection.db) == ("somewhere", 7000, 3)
    assert (connection.username, connection.password) == ("u", "p")
    assert connection.socket_timeout == connection.socket_connect_timeout == 0.5
    assert connection.retry._retries == 0
    assert not connection.encoder.decode_responses


class TestClock:
    def test_clock_without_boottime_counts_suspend_and_steps_ahead(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now = SimpleNamespace(steady=100.0, wall=1000.0)
        monkeypatch.setattr(time, "monotonic", lambda: now.steady)
        monkeypatch.setattr(time, "time", lambda: now.wall)
        monkeypatch.delattr(time, "CLOCK_BOOTTIME", raising=False)
        clock = SteadyClock()
        start = clock()
        now.steady += 1
        now.wall += 1
        assert clock() - start == pytest.approx(1)
        now.wall += 60  # Suspended: only the wall clock went on.
        assert clock() - start == pytest.approx(61)
        now.wall -= 3600
        now.steady += 1
        assert clock() - start == pytest.approx(62)
        now.wall += 30  # Suspended after a step back.
        assert clock() - start == pytest.approx(92)


class TestHold:
    def make(self, claimed: bool = True, **options: Any) -> tuple[Any, Any]:
        now = SimpleNamespace(time=1000.0)
        client = RLockClient(redis.Redis(), clock=lambda: now.time)
        options = {"lease": 10, **options}
        attempt = Attempt(client.lock("k", **options), "me", Mailbox(_Box()), None)
        hold = client._hold_class(attempt, [5], now.time, options["lease"])
        client._engine.add(hold)
        if claimed:
            assert client._engine.poll()[:2] == ([], {})
            now.time += 0.1
            client._engine.poll()
            client._engine.answered([hold], [options["lease"] * 1000], now.time)
        return hold, now

    def test_deadline_leaves_a_margin_for_clocks_that_drift(self) -> None:
        hold, now = self.make()
        assert hold.until == pytest.approx(now.time + 9.898)

    @pytest.mark.parametrize(
        "text", ["READONLY x", "LOADING x", "MISCONF x", "NOPERM x", "ERR x", "WRONGTYPE x", "FOO x"]
    )
    def test_only_notowner_and_the_clock_end_a_hold(self, text: str) -> None:
        hold, now = self.make()
        now.time += 4
        assert hold._client._engine.poll()[1] == {hold.timeout: [hold]}
        hold._client._engine.answered([hold], [x.ResponseError(text)], now.time)
        now.time += 1
        lost, groups, _ = hold._client._engine.poll()
        assert hold.held
        assert not lost
        assert groups, "the renewal goes on"
        hold._client._engine.answered([hold], [x.ResponseError("NOTOWNER x")], now.time)
        assert not hold.held
        assert hold._client._engine.poll()[0] == [hold]
        assert not hold._client._engine.errands(), "the server does not know it"

    def test_hold_that_the_clock_ended_is_released_after_a_pause(self) -> None:
        hold, now = self.make()
        now.time += 9.9
        assert hold._client._engine.poll()[:2] == ([hold], {})
        now.time += 0.09
        assert not hold._client._engine.poll()[1]
        now.time += 0.06
        (release,) = hold._client._engine.poll()[1][hold.timeout][0].commands()
        assert release == ("RLOCK.RELEASE", b"k", "me", "TOKEN", 5)

    def test_hold_that_the_clock_ended_is_not_released_if_its_lease_ends_within_the_pause(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        hold, now = self.make(claimed=False, lease=0.01)
        for ahead in (0.01, 0.05):
            now.time += ahead
            assert not hold._client._engine.poll()[1]
        assert hold.lost
        assert not hold._client._engine.errands()
        assert not caplog.messages

    def test_answer_that_is_not_understood_keeps_no_other_one_from_its_hold(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        hold, now = self.make()
        other, _ = self.make()
        engine, now.time = hold._client._engine, now.time + 4
        engine.poll()
        other.under_way = 1
        engine.add(other)
        engine.answered([hold, other], [[1, 2], 10_000], now.time)
        assert hold.under_way == other.under_way == 0
        assert other.due == pytest.approx(now.time + 10 / 3)
        assert hold.due == pytest.approx(now.time + 0.05)
        assert "[1, 2]" in caplog.text

    def test_renewal_prolongs_from_the_moment_before_it_was_sent(self) -> None:
        hold, now = self.make()
        sent = now.time + 4
        now.time += 6
        hold._client._engine.answered([hold], [10_000], sent)
        assert hold.until == pytest.approx(sent + 9.898)
        assert hold.due == pytest.approx(sent + 10 / 3)

    def test_late_answer_prolongs_nothing(self) -> None:
        hold, now = self.make()
        now.time += 9.95
        hold._client._engine.answered([hold], [10_000], now.time - 0.1)
        assert not hold.held

    @pytest.mark.parametrize(("lease", "pause"), [(10, 0.1), (0.09, 0.03)])
    def test_hold_is_claimed_by_a_renewal_unless_it_is_short(self, lease: float, pause: float) -> None:
        hold, now = self.make(claimed=False, lease=lease)
        now.time += pause / 2 - 0.001
        assert hold._client._engine.poll()[:2] == ([], {})
        now.time += pause / 2 + 0.001
        assert hold._client._engine.poll()[1] == {hold.timeout: [hold]}
        assert hold.commands() == [("RLOCK.RENEW", b"k", "me", "PX", lease * 1000, "TIMED", "TOKEN", 5)]

    def test_holds_are_claimed_in_one_sweep(self) -> None:
        hold, now = self.make(claimed=False)
        others = [self.make(claimed=False)[0] for _ in range(2)]
        for other in others:
            hold._client._engine.add(other)
        now.time += 0.1
        assert list(hold._client._engine.poll()[1].values()) == [[hold, *others]]

    def test_renewal_for_less_than_before_shortens_the_belief_and_the_next_renewal(self) -> None:
        hold, now = self.make()
        sent = now.time + 4
        now.time += 5
        hold._client._engine.answered([hold], [3_000], sent)
        assert hold.until == pytest.approx(sent + 2.968)
        assert hold.due == pytest.approx(sent + 1)
        assert hold.timeout <= 1
        hold._client._engine.answered([hold], [10_000], now.time)
        assert hold.until == pytest.approx(now.time + 9.898)

    def test_of_two_answers_the_one_that_was_sent_later_counts(self) -> None:
        hold, now = self.make()
        first, second = now.time + 4, now.time + 5
        now.time += 6
        hold._client._engine.answered([hold], [2_000], second)
        hold._client._engine.answered([hold], [10_000], first)
        assert hold.until == pytest.approx(second + 1.978)

    def test_session_shortens_the_belief_and_the_renewal(self) -> None:
        hold, now = self.make(session=3)
        assert hold.until == pytest.approx(now.time + 2.968)
        assert hold.due == pytest.approx(now.time + 1)

    def test_hold_with_a_short_session_is_claimed_before_the_belief_ends(self) -> None:
        hold, now = self.make(claimed=False, session=0.03)
        assert now.time < hold.due < now.time + 0.01 < hold.until

    def test_fixed_lease_is_never_due_and_is_lost_in_time(self) -> None:
        hold, now = self.make(renew=False)
        now.time += 9.7
        assert hold._client._engine.poll()[:2] == ([], {})
        now.time += 0.2
        assert hold._client._engine.poll()[0] == [hold]
        assert hold.lost

    def test_fixed_lease_above_the_limit_of_the_server_is_renewed_until_its_end(self) -> None:
        hold, now = self.make(claimed=False, renew=False)
        began, sent = now.time, []
        for _ in range(200):
            now.time += 0.05
            lost, groups, _ = hold._client._engine.poll()
            if lost:
                break
            for items in groups.values():
                sent.append(hold.commands()[0][4] / 1000)
                hold._client._engine.answered(items, [min(1500, sent[-1] * 1000)], now.time)
        assert began + 9.8 < now.time <= began + 10.06
        assert len(sent) < 30
        assert sent[0] == pytest.approx(9.9, abs=0.06)
        assert sent == sorted(sent, reverse=True)

    def test_hold_has_at_most_two_renewals_under_way(self) -> None:
        hold, now = self.make()
        sent = 0
        for _ in range(980):
            now.time += 0.01
            sent += len(hold._client._engine.poll()[1])
        assert sent == 2

    def test_failed_renewals_are_repeated_with_growing_pauses(self) -> None:
        hold, now = self.make()
        now.time += 4
        pauses = []
        for _ in range(7):
            hold._client._engine.poll()
            hold._client._engine.failed([hold])
            pauses.append(round(hold.due - now.time, 3))
            now.time = hold.due
        assert pauses[:5] == [0.05, 0.1, 0.2, 0.4, 0.8]
        assert max(pauses) == 1.0


def test_first_failure_of_an_outage_is_logged_as_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    attempt = Attempt(RLockClient(redis.Redis()).lock("k"), "me", Mailbox(_Box()), None)
    # A server that says UNBLOCKED is there.
    for code in ("UNBLOCKED", "READONLY", "", "UNBLOCKED"):
        attempt._report(Unavailable(f"because of {code}", code))
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == ["acquiring 'k': because of READONLY"]


class TestCluster:
    """A cluster whose slots have moved from one node to another; the application's client loads that when asked."""

    def app(self) -> Any:
        old, new = (SimpleNamespace(name=f"127.0.0.1:{n}", connection_class=None, connection_kwargs={}) for n in (1, 2))
        app = SimpleNamespace(old=old, new=new, master=old, get_node_from_key=lambda _: app.master)
        app.nodes_manager = SimpleNamespace(
            initialize=lambda: setattr(app, "master", new), remap_host_port=lambda *address: address
        )
        return app

    @pytest.mark.parametrize("client_class", [RLockClient, AsyncRLockClient])
    def test_wait_is_repeated_soon_if_another_node_answers_it(
        self, client_class: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(_attempt, "LONG_PAUSE", 0.05)
        app, asked, subscribed = self.app(), [], []

        class Subscriber:
            _error = None

            def __init__(self, _: Any, route: Route) -> None:
                self._route = route

            async def subscribe(self, *_: Any) -> None:
                subscribed.append(self._route.name)

            def close(self) -> None: ...

        async def exchange(route: Route, commands: Any, _: float) -> list[Any]:
            if route.name == app.old.name:
                return [x.MovedError(f"{slot_of(b'k')} {app.new.name}")]
            if commands[0][0] != "RLOCK.ACQUIRE":
                return [1] * len(commands)
            asked.append(route.name)
            # A master grants nothing to a subscriber at a node that became its replica.
            return [[7, 2000] if subscribed[1:] and subscribed[-1] == app.new.name else b"WAITING"]

        async def main() -> None:
            client = client_class(app)
            client._subscriber_class, client._exchange = Subscriber, exchange
            lock, app.master = client.lock("k"), app.new
            with pytest.raises(Unavailable, match="did not answer in time"):
                await client._acquire(lock, client._user(), client._box(), 0.3)
            assert len(asked) == 1
            await asyncio.to_thread(eventually, lambda: not client._engine.errands())  # They load the map, too.
            app.master = app.old
            assert await client._acquire(lock, client._user(), client._box(), 5)
            assert subscribed[:2] == [app.new.name, app.old.name]
            await (client.aclose() if client_class is AsyncRLockClient else asyncio.to_thread(client.close))

        asyncio.run(main())

    def test_map_is_loaded_later_if_no_thread_can_be_started(self, monkeypatch: pytest.MonkeyPatch) -> None:
        app, no_node = self.app(), x.ConnectionError("gone")
        client = RLockClient(app)

        async def exchange(*_: Any) -> list[Any]:
            raise no_node

        def refuses(_: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(client, "_exchange", exchange)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuses)
            with pytest.raises(Unavailable):
                run(client._call(b"k", [], 1))
        client._refresh()
        eventually(lambda: app.master is app.new)

    def test_channel_that_is_asked_for_again_at_once_is_subscribed_again(self) -> None:
        ends, sent, replies = socket.socketpair(), [], []

        class Connection:
            _sock = ends[0]

            def __init__(self, **_: Any) -> None: ...
            def connect(self) -> None: ...
            def disconnect(self) -> None: ...

            def send_command(self, command: str, channel: str, **_: Any) -> None:
                sent.append((command, channel))
                replies.append([b"ssubscribe", b"c", 1])
                if len(sent) == 1:
                    replies.append([b"sunsubscribe", b"c", 0])

            def can_read(self, _: float) -> bool:
                if sent and not replies and "c" not in subscriber._ready:
                    # Another wait, before the reader looks at what it has to subscribe.
                    with contextlib.suppress(Unavailable):
                        run(subscriber.subscribe("c", 0))
                return bool(replies)

            def read_response(self) -> Any:
                return replies.pop(0)

        subscriber = _sync._Subscriber(RLockClient(self.app()), Route("", Connection, {}))
        run(subscriber.subscribe("c", 5))
        try:
            eventually(lambda: sent == [("SSUBSCRIBE", "c")] * 2, 5)
            assert subscriber._ready["c"].wait(5)
        finally:
            subscriber.close()
            for end in ends:
                end.close()


class _Box:
    def put_nowait(self, message: Any) -> None:
        raise AssertionError(message)


def test_request_ids_begin_at_the_wall_clock_and_rise() -> None:
    ids = [_request_ids.next_id() for _ in range(3)]
    assert ids == sorted(ids)
    assert abs(ids[0] / 1e6 - time.time()) < 3600


def in_fork(function: Callable[[], Any]) -> str:
    """What the function returns in a forked child, as text."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, str(function()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader) as pipe:
        result = pipe.read()
    os.waitpid(child, 0)
    return result


@pytest.mark.parametrize("client_class", [RLockClient, AsyncRLockClient])
def test_forked_child_has_a_new_identity(client_class: Any) -> None:
    client = client_class(redis.Redis())
    first, second = in_fork(lambda: client.id), in_fork(lambda: client.id)
    assert len({client.id, first, second}) == 3


@pytest.mark.parametrize("ahead", [-3_600_000_000, 3_600_000_000])
def test_request_ids_rise_over_a_fork(ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also above those of a child that came before, whose owner has the same name."""
    parents, now = int(time.time() * 1e6) + ahead, int(time.time() * 1e6)
    monkeypatch.setattr(_request_ids, "_ids", itertools.count(parents))
    assert int(in_fork(_request_ids.next_id)) >= max(parents, now)


DAYS_365 = 365 * 24 * 3600
NO_DURATIONS = [math.nan, -math.inf, -1, -1e-9]


@pytest.mark.parametrize("client_class", [RLockClient, AsyncRLockClient])
class TestDurations:
    @pytest.mark.parametrize("name", ["lease", "session", "command_timeout", "grace"])
    @pytest.mark.parametrize("value", [*NO_DURATIONS, 0, 1e-300, 0.0099, DAYS_365 + 1, 1e300, math.inf])
    def test_other_durations_are_refused_with_a_sentence(self, client_class: Any, name: str, value: float) -> None:
        client = client_class(redis.Redis())
        if name == "grace" and 0 <= value < 1:
            client.fair_lock("k", grace=value)
            return
        with pytest.raises(ValueError, match=rf"^{name} must be .* seconds .*, not {re.escape(repr(value))}$"):
            client.lock("k", **{name: value}) if name != "command_timeout" else client_class(
                redis.Redis(), command_timeout=value
            )

    @pytest.mark.parametrize("value", [0.01, DAYS_365])
    def test_shortest_and_longest_durations_are_accepted(self, client_class: Any, value: float) -> None:
        client_class(redis.Redis(), command_timeout=value).lock("k", lease=value, session=value, grace=value)

    @pytest.mark.parametrize("value", NO_DURATIONS)
    def test_timeouts_that_are_none_are_refused(self, client_class: Any, value: float) -> None:
        lock = client_class(redis.Redis()).lock("k")
        for asks in (
            lambda: client_class(redis.Redis()).lock("k", timeout=value),
            lambda: call(lock.acquire, True, value),
        ):
            with pytest.raises(
                ValueError, match=rf"^timeout must be 0 seconds or more, .* not {re.escape(repr(value))}$"
            ):
                asks()

    @pytest.mark.parametrize("value", [*NO_DURATIONS, DAYS_365 + 1, math.inf])
    def test_periods_are_checked(self, client_class: Any, value: float) -> None:
        semaphore = client_class(redis.Redis()).semaphore("k")
        with pytest.raises(ValueError, match=r"^keep must be 0 to"):
            call(semaphore.release, value)
        with pytest.raises(ValueError, match=r"^idle must be 0 to"):
            call(semaphore.init, 1, value)

    @pytest.mark.parametrize("permits", [0, -1, 1.5, math.nan, math.inf])
    def test_permits_are_whole_numbers_from_1(self, client_class: Any, permits: Any) -> None:
        client = client_class(redis.Redis())
        for asks in (lambda: client.semaphore("k", permits), lambda: call(client.semaphore("k").init, permits)):
            with pytest.raises(ValueError, match=r"^permits must be a whole number of 1 or more"):
                asks()


def call(method: Callable[..., Any], *arguments: Any) -> Any:
    result = method(*arguments)
    return asyncio.run(result) if asyncio.iscoroutine(result) else result


def test_options_and_client_are_checked() -> None:
    with pytest.raises(ValueError, match="session needs"):
        RLockClient(redis.Redis()).lock("k", renew=False, session=1)
    with pytest.raises(ValueError, match="one key"):
        RLockClient(redis.Redis()).multi_lock([])
    with pytest.raises(TypeError, match="redis-py"):
        RLockClient("redis://")
