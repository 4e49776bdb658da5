from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import sys
import time
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
import redis.asyncio
from conftest import Clock, Proxy, Server, free_port

from rlock_redis import AsyncRLockClient, Closed, Deadlock, LockError, LockLost, LockTimeout, Refused, Unavailable


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(main(), 30)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        assert not [task for task in others if "bounded" not in repr(task)]

    asyncio.run(bounded())


@contextlib.asynccontextmanager
async def client_of(port: int, **options: Any) -> AsyncIterator[AsyncRLockClient]:
    app = redis.asyncio.Redis(port=port, socket_timeout=1, decode_responses=options.pop("decode_responses", False))
    async with AsyncRLockClient(app, **options) as client:
        yield client
    await app.aclose()


async def eventually(condition: Callable[[], Any], within: float = 10) -> Any:
    end = time.monotonic() + within
    while not (result := condition()):
        assert time.monotonic() < end, f"not within {within} s"
        await asyncio.sleep(0.01)
    return result


async def waits(server: Server, client: AsyncRLockClient, **options: Any) -> asyncio.Task[Any]:
    async def acquire() -> Any:
        return await client.lock("k", **options).acquire()

    task = asyncio.create_task(acquire())
    await eventually(lambda: server.waiters("k") > 0)
    return task


KINDS = {
    "mutex": lambda c: c.lock("k"),
    "fair": lambda c: c.fair_lock("k"),
    "write": lambda c: c.write_lock("k"),
    "semaphore": lambda c: c.semaphore("k"),
    "many": lambda c: c.multi_lock(["k", "l"]),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("decode", [False, True])
def test_each_kind_excludes_hands_over_and_leaves_nothing(kind: str, decode: bool, server: Server) -> None:
    async def main() -> None:
        async with client_of(server.port, decode_responses=decode) as client:
            lock = KINDS[kind](client)
            if kind == "semaphore":
                assert await lock.init(1)
            async with lock as hold:
                assert await asyncio.create_task(lock.acquire(blocking=False)) is None
                assert await asyncio.create_task(lock.acquire(timeout=0.1)) is None

                async def enter() -> int:
                    async with lock as entered:
                        return int(entered.token)

                waiter = asyncio.create_task(enter())
                await eventually(lambda: server.waiters("k") == 1)
            assert await waiter > hold.token
        assert server.is_clean("k")

    run(main)


def test_tasks_share_a_lock_object(server: Server) -> None:
    async def main() -> None:
        async with client_of(server.port) as client:
            lock, inside, most = client.lock("k"), [], []

            async def work() -> None:
                async with lock:
                    inside.append(1)
                    most.append(len(inside))
                    await asyncio.sleep(0)
                    inside.pop()

            before = server.admin.info("stats")["total_connections_received"]
            await asyncio.gather(*[work() for _ in range(200)])
            assert server.admin.info("stats")["total_connections_received"] - before < 60
            assert max(most) == 1
            assert len(most) == 200
        assert server.is_clean("k")

    run(main)


def test_reentry_is_per_task(server: Server) -> None:
    async def main() -> None:
        async with client_of(server.port) as client:
            lock = client.lock("k")
            async with lock as outer:
                async with lock as inner:
                    assert inner is outer
                    with pytest.raises(RuntimeError, match="does not hold"):
                        await asyncio.create_task(lock.release())
                assert outer.held
            assert server.is_clean("k")

    run(main)


def test_circle_of_tasks_is_a_deadlock(server: Server) -> None:
    async def main() -> None:
        async with client_of(server.port) as client:
            await client.lock("k").acquire()

            async def other() -> None:
                await client.lock("b").acquire()
                await client.lock("k").acquire()

            task = asyncio.create_task(other())
            await eventually(lambda: server.waiters("k") == 1)
            with pytest.raises(Deadlock):
                await client.lock("b").acquire()
            await client.lock("k").release()
            await task

    run(main)


class TestLoss:
    def test_loss_cancels_the_block_and_is_not_taken_for_a_cancellation(self, server: Server, proxy: Proxy) -> None:
        async def main() -> None:
            async with client_of(proxy.port) as client:
                told = []

                async def tell(hold: Any) -> None:
                    told.append(hold)

                began, reached = time.monotonic(), []
                with pytest.raises(LockLost):
                    async with client.lock("k", lease=1, on_lost=tell) as hold:
                        proxy.stalled = True
                        try:
                            await asyncio.sleep(20)
                        except asyncio.CancelledError:
                            reached.append(True)
                            raise
                assert time.monotonic() - began < 3
                assert reached
                await eventually(lambda: told == [hold])
                assert hold.lost
                task = asyncio.current_task()
                if sys.version_info >= (3, 11):
                    assert task is not None
                    assert task.cancelling() == 0
                await asyncio.sleep(0)
                proxy.stalled = False

        run(main)

    def test_cancellation_by_another_is_not_replaced(self, server: Server) -> None:
        async def main() -> None:
            async with client_of(server.port) as client:
                entered = asyncio.Event()

                async def body() -> None:
                    async with client.lock("k"):
                        entered.set()
                        await asyncio.sleep(20)

                task = asyncio.create_task(body())
                await entered.wait()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert server.is_clean("k")

        run(main)

    @pytest.mark.parametrize("ours_first", [True, False])
    def test_cancellation_beside_a_loss_stays_a_cancellation(self, ours_first: bool, server: Server) -> None:
        if ours_first and sys.version_info < (3, 11):
            pytest.skip("Python 3.10 does not count cancellations")

        async def main() -> None:
            clock = Clock()
            async with client_of(server.port, clock=clock) as client:

                async def body() -> None:
                    async with client.lock("k"):
                        await asyncio.sleep(20)

                task = asyncio.create_task(body())
                await eventually(lambda: server.holders("k"))
                await asyncio.sleep(0.1)
                clock.ahead += 31
                if ours_first:
                    client._wake()  # Tells the loss, which cancels the task.
                    task.cancel()
                else:
                    task.cancel()
                    client._wake()
                with pytest.raises(asyncio.CancelledError):
                    await task

        run(main)

    def test_hold_that_the_clock_ended_is_released_before_its_owner_asks(self, server: Server) -> None:
        async def main() -> None:
            clock = Clock()
            async with client_of(server.port, clock=clock) as client:
                await client.lock("k").acquire()
                clock.ahead += 31
                await eventually(lambda: server.is_clean("k") and not client._engine.errands())
                with pytest.raises(LockLost):
                    await client.lock("k").release()
                assert not client._engine.errands(), "it is released once"

        run(main)

    def test_lost_hold_of_a_task_that_has_ended_is_forgotten(self, server: Server) -> None:
        async def main() -> None:
            clock = Clock()
            async with client_of(server.port, clock=clock) as client:
                hold = await asyncio.create_task(client.lock("k").acquire())
                assert hold
                assert hold.held, "a task that ends does not release"
                clock.ahead += 31
                await asyncio.wait_for(hold.wait(), 3)
                left = weakref.ref(hold)
                del hold
                await eventually(lambda: gc.collect() is not None and left() is None)

        run(main)

    def test_loss_after_the_block_cancels_nothing(self, server: Server) -> None:
        async def main() -> None:
            clock = Clock()
            async with client_of(server.port, clock=clock) as client:
                lock = client.lock("k")
                hold = await lock.acquire()
                async with lock:
                    pass
                assert hold
                clock.ahead += 31
                await eventually(hold._end_event.is_set)
                await asyncio.sleep(0.1)
                with pytest.raises(LockLost):
                    await lock.release()

        run(main)

    def test_loss_cancels_the_blocks_of_all_tasks_of_its_owner(self, server: Server) -> None:
        async def main() -> None:
            clock, inside = Clock(), []
            async with client_of(server.port, clock=clock) as client:

                async def body(pause: float) -> None:
                    async with client.lock("k", owner="me"):
                        inside.append(pause)
                        await asyncio.sleep(pause)

                async def leaves() -> None:
                    await body(0.01)
                    await asyncio.sleep(0.5)

                tasks = [asyncio.create_task(leaves()), *[asyncio.create_task(body(20)) for _ in range(2)]]
                await eventually(lambda: len(inside) == 3)
                await asyncio.sleep(0.1)
                clock.ahead += 31
                left, *lost = await asyncio.gather(*tasks, return_exceptions=True)
                assert left is None
                assert [type(error) for error in lost] == [LockLost] * 2

        run(main)

    def test_permits_of_one_owner_name_are_released_by_the_task_that_took_them(self, server: Server) -> None:
        async def main() -> None:
            async with client_of(server.port) as client:
                semaphore, left = client.semaphore("k", owner="me"), asyncio.Event()
                await semaphore.init(2)

                async def body() -> None:
                    async with semaphore as hold:
                        await left.wait()
                        assert hold.held

                async with semaphore as first:
                    task = asyncio.create_task(body())
                    await eventually(lambda: server.holders("k") == 2)
                    await asyncio.sleep(0.05)
                assert not first.held
                left.set()
                await task
                assert server.holders("k") == 0
                await semaphore.acquire()
                await asyncio.create_task(semaphore.release())

        run(main)

    def test_loss_inside_of_a_timeout_leaves_the_timeout_alone(self, server: Server) -> None:
        async def main() -> None:
            async with client_of(server.port) as client:

                async def body() -> None:
                    async with client.lock("k", lease=0.4, renew=False):
                        await asyncio.sleep(20)

                with pytest.raises(LockLost):
                    await asyncio.wait_for(body(), 10)

        run(main)

    def test_loss_in_a_nested_block_passes_both(self, server: Server) -> None:
        async def main() -> None:
            async with client_of(server.port) as client:
                lock = client.lock("k", lease=0.4, renew=False)
                with pytest.raises(LockLost):
                    async with lock, lock:
                        await asyncio.sleep(20)
                await asyncio.sleep(0.01)
                async with lock:
                    pass

        run(main)

    def test_loss_that_the_end_of_the_block_sees_cancels_nothing_later(self, server: Server) -> None:
        async def main() -> None:
            clock = Clock()
            async with client_of(server.port, clock=clock) as client:
                with pytest.raises(LockLost):
                    async with client.lock("k"), client.lock("l"):
                        clock.ahead += 31  # The release of the one lock sees the loss of the other.
                await asyncio.sleep(0.01)

        run(main)

    def test_block_that_ends_normally_after_the_loss_fails(self, server: Server) -> None:
        async def main() -> None:
            async with client_of(server.port) as client:
                with pytest.raises(LockLost):
                    async with client.lock("k", lease=0.4, renew=False):
                        with contextlib.suppress(asyncio.CancelledError):
                            await asyncio.sleep(20)
                await asyncio.sleep(0.01)

        run(main)

    @pytest.mark.parametrize("pause", [0.01, 0.2, 0.4])
    def test_block_takes_no_step_after_a_stall_of_the_loop(self, pause: float, server: Server) -> None:
        async def main() -> None:
            steps = []
            async with client_of(server.port) as client:
                with pytest.raises(LockLost):
                    async with client.lock("k", lease=1):
                        # The pause and the lease both end during the stall.
                        asyncio.get_running_loop().call_soon(time.sleep, 1.5)
                        await asyncio.sleep(pause)
                        steps.append("after the loss")
            assert not steps

        run(main)

    @pytest.mark.parametrize("steps", range(4))
    def test_block_that_goes_on_after_a_stall_of_the_loop_is_no_success(self, steps: int, server: Server) -> None:
        async def main() -> None:
            clock = Clock()
            async with client_of(server.port, clock=clock) as client:
                with pytest.raises(LockLost):
                    async with client.lock("k"):
                        clock.ahead += 31  # The timers of the loop have not seen it yet.
                        for _ in range(steps):
                            await asyncio.sleep(0)
                await asyncio.sleep(0.01)  # It is not cancelled later.

        run(main)

    def test_error_of_the_block_is_not_replaced(self, server: Server) -> None:
        async def main() -> None:
            async with client_of(server.port) as client:
                with pytest.raises(ZeroDivisionError):
                    async with client.lock("k", lease=0.4, renew=False):
                        try:
                            await asyncio.sleep(20)
                        except asyncio.CancelledError:
                            raise ZeroDivisionError from None
                await asyncio.sleep(0.01)

        run(main)


class TestCancelling:
    @pytest.mark.parametrize("granted", [False, True])
    def test_cancelled_acquisition_leaves_nothing_at_any_stage(
        self, granted: bool, server: Server, proxy: Proxy
    ) -> None:
        async def main() -> None:
            proxy.delay = 0.003
            async with client_of(proxy.port) as client:
                for after in range(0, 40, 2):
                    key = f"k{after}"
                    if not granted:
                        server.admin.execute_command("RLOCK.ACQUIRE", key, "somebody")
                    task = asyncio.create_task(client.lock(key).acquire())
                    await asyncio.sleep(after / 1000)
                    task.cancel()
                    result = (await asyncio.gather(task, return_exceptions=True))[0]
                    if not granted:
                        server.admin.execute_command("RLOCK.RELEASE", key, "somebody")
                    if not isinstance(result, asyncio.CancelledError):
                        server.admin.execute_command("RLOCK.FORCERELEASE", key)
                for after in range(0, 40, 2):
                    await eventually(lambda key=f"k{after}": server.is_clean(key))

        run(main)

    def test_cancellation_in_the_step_of_the_subscription_is_not_swallowed(self, server: Server, proxy: Proxy) -> None:
        async def main() -> None:
            async with client_of(proxy.port) as client:
                await client.lock("other").acquire(blocking=False)
                proxy.deaf = True
                task = asyncio.create_task(client.lock("k").acquire())
                await eventually(lambda: client._subscribers and client._subscribers[""]._ready)
                for ready in client._subscribers[""]._ready.values():
                    ready.set()
                await asyncio.sleep(0)
                task.cancel()
                proxy.deaf = False
                with pytest.raises(asyncio.CancelledError):
                    await task

        run(main)

    def test_settlement_of_a_late_answer_spares_the_next_hold(self, server: Server, proxy: Proxy) -> None:
        async def main() -> None:
            async with client_of(proxy.port) as client:
                lock = client.lock("k", owner="me")
                await client.lock("other").acquire()
                proxy.deaf = True
                cancelled = asyncio.create_task(lock.acquire())
                await eventually(lambda: server.holders("k"))
                cancelled.cancel()
                await asyncio.gather(cancelled, return_exceptions=True)
                following = asyncio.create_task(lock.acquire())
                await asyncio.sleep(0.05)
                proxy.deaf = False
                hold = await following
                await eventually(lambda: not client._boxes and not client._engine.errands())
                assert server.admin.execute_command("RLOCK.HOLDS", "k", hold.owner) == hold.held == 1

        run(main)

    def test_settlement_spares_the_hold_of_another_client_with_the_same_owner_name(
        self, server: Server, proxy: Proxy
    ) -> None:
        async def main() -> None:
            async with client_of(proxy.port) as late, client_of(server.port) as client:
                await late.lock("other").acquire()
                proxy.deaf = True
                cancelled = asyncio.create_task(late.lock("k", shared_owner="me").acquire())
                await eventually(lambda: server.holders("k"))
                hold = await client.lock("k", shared_owner="me").acquire()
                cancelled.cancel()
                await asyncio.gather(cancelled, return_exceptions=True)
                proxy.deaf = False
                await eventually(lambda: not late._boxes and not late._engine.errands())
                assert hold
                assert hold.held
                assert server.holders("k") == 1

        run(main)

    def test_cancelled_acquisition_of_permits_spares_those_that_its_owner_has(self, server: Server) -> None:
        async def main() -> None:
            async with client_of(server.port) as client:
                semaphore = client.semaphore("k", owner="me")
                await semaphore.init(1)
                hold = await semaphore.acquire()
                waiter = asyncio.create_task(semaphore.acquire())
                await eventually(lambda: server.waiters("k"))
                waiter.cancel()
                await asyncio.gather(waiter, return_exceptions=True)
                await eventually(lambda: not client._engine.errands())
                assert hold
                assert server.holders("k") == hold.held == 1

        run(main)

    def test_cancelled_acquisitions_keep_no_release_from_being_sent(self, server: Server, proxy: Proxy) -> None:
        async def main() -> None:
            async with client_of(proxy.port, command_timeout=5) as client:
                lock = client.lock("k", owner="me")
                await lock.acquire()
                proxy.deaf = True
                release = asyncio.create_task(lock.release())
                await eventually(lambda: server.is_clean("k"))
                for _ in range(3):
                    waiter = asyncio.create_task(lock.acquire())
                    await asyncio.sleep(0.05)
                    waiter.cancel()
                    await asyncio.gather(waiter, return_exceptions=True)
                (errand,) = client._engine.errands()
                assert errand.under_way < 3  # The timer sends it, too.
                proxy.deaf = False
                await release
                assert (await lock.acquire()).held

        run(main)

    def test_cancelled_release_is_completed(self, server: Server, proxy: Proxy) -> None:
        async def main() -> None:
            async with client_of(proxy.port) as client:
                entered = asyncio.Event()

                async def body() -> None:
                    lock = client.lock("k")
                    await lock.acquire()
                    proxy.stalled = True
                    entered.set()
                    await lock.release()

                task = asyncio.create_task(body())
                await entered.wait()
                await asyncio.sleep(0.05)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                proxy.stalled = False
                await eventually(lambda: server.is_clean("k"))

        run(main)

    def test_request_that_fails_after_its_caller_was_cancelled_is_no_unhandled_error(
        self, server: Server, proxy: Proxy
    ) -> None:
        async def main() -> None:
            unhandled: list[Any] = []
            asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
            async with client_of(proxy.port) as client:
                await client.lock("other").acquire()
                proxy.deaf = True
                task = asyncio.create_task(client.lock("k").acquire())
                await eventually(lambda: server.holders("k"))
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                proxy.cut()
                proxy.deaf = False
                await eventually(lambda: server.is_clean("k"))
            del task  # Its traceback has the request.
            gc.collect()
            assert not unhandled

        run(main)

    def test_stalled_server_does_not_keep_a_cancelled_caller(self, server: Server, proxy: Proxy) -> None:
        async def main() -> None:
            async with client_of(proxy.port) as client:
                await client.lock("other").acquire()
                proxy.stalled = True
                task = asyncio.create_task(client.lock("k").acquire())
                await asyncio.sleep(0.1)
                began = time.monotonic()
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                assert time.monotonic() - began < 0.5
                proxy.stalled = False
                await eventually(lambda: server.is_clean("k"))

        run(main)


def test_wait_survives_a_lost_subscriber(server: Server, proxy: Proxy) -> None:
    async def main() -> None:
        async with client_of(proxy.port) as client:
            server.admin.execute_command("RLOCK.ACQUIRE", "k", "somebody")
            task = await waits(server, client)
            proxy.cut()
            server.admin.execute_command("RLOCK.RELEASE", "k", "somebody")
            assert (await task).held

    run(main)


@pytest.mark.parametrize("fault", ["stalled", "deaf", "halting"])
def test_wait_ends_in_time_whatever_the_network_does(fault: str, server: Server, proxy: Proxy) -> None:
    async def main() -> None:
        async with client_of(proxy.port) as client:
            await client.lock("other").acquire()
            setattr(proxy, fault, True)
            began = time.monotonic()
            with pytest.raises(Unavailable):
                async with client.lock("k", timeout=0.5):
                    pass
            assert time.monotonic() - began < 1.5 + 0.5  # The machine is busy.
            with pytest.raises(Unavailable):
                await client.lock("k").acquire(blocking=False)
            setattr(proxy, fault, False)

    run(main)


def test_outage_is_not_contention(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with client_of(free_port()) as client:
            for wait in (lambda: client.lock("k").acquire(timeout=0.3), client.lock("k", timeout=0.3).__aenter__):
                caplog.clear()
                with pytest.raises(Unavailable, match=r"'k' was not acquired within 0.3 s: .*Connect") as raised:
                    await wait()
                assert isinstance(raised.value.__cause__, Unavailable)
                assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1
        await asyncio.sleep(0)  # What the client has cancelled ends.

    run(main)


def test_sixty_locks_at_200_ms_stay_held(server: Server, proxy: Proxy) -> None:
    async def main() -> None:
        proxy.delay = 0.1
        async with client_of(proxy.port) as client:
            acquiring = [client.lock(f"k{n}", lease=2.5).acquire(timeout=20) for n in range(60)]
            holds = await asyncio.gather(*acquiring)
            await asyncio.sleep(4)
            assert [hold is not None and hold.held for hold in holds] == [True] * 60
            proxy.delay = 0

    run(main)


def test_close_ends_waits_releases_holds_and_leaves_no_task_or_connection(server: Server) -> None:
    async def main() -> None:
        before = len(server.admin.client_list())
        client = AsyncRLockClient(redis.asyncio.Redis(port=server.port))
        await client.lock("k").acquire()
        task = await waits(server, client)
        await client.aclose()
        with pytest.raises(Closed):
            await task
        with pytest.raises(Closed):
            await client.lock("k").acquire()
        assert server.is_clean("k")
        await eventually(lambda: len(server.admin.client_list()) <= before)

    run(main)


def test_close_cancels_again_what_swallows_its_cancellation() -> None:
    async def main() -> None:
        async def swallows() -> None:  # As `asyncio.wait_for` does before Python 3.12, if it ends in the same step.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(20)
            await asyncio.sleep(20)

        client = AsyncRLockClient(redis.asyncio.Redis())
        client._spawn(swallows())
        await asyncio.sleep(0)
        await asyncio.wait_for(client.aclose(), 10)

    run(main)


def test_close_tells_holders_that_their_hold_is_lost(server: Server) -> None:
    async def main() -> None:
        told: list[Any] = []
        client = AsyncRLockClient(redis.asyncio.Redis(port=server.port))

        async def body() -> None:
            async with client.lock("k", on_lost=told.append):
                await asyncio.sleep(20)

        task = asyncio.create_task(body())
        await eventually(lambda: server.holders("k"))
        await asyncio.sleep(0.05)
        await client.aclose()
        with pytest.raises(LockLost):
            await task
        assert [hold.lost for hold in told] == [True]
        assert server.is_clean("k")

    run(main)


def test_close_tells_a_loss_that_the_timer_has_not_seen(server: Server) -> None:
    async def main() -> None:
        clock, told = Clock(), []
        client = AsyncRLockClient(redis.asyncio.Redis(port=server.port), clock=clock)
        hold = await client.lock("k", on_lost=told.append).acquire()
        clock.ahead += 31
        await client.aclose()
        assert told == [hold]
        await asyncio.wait_for(hold.wait(), 1)
        assert server.is_clean("k")

    run(main)


def test_loss_of_the_leadership_cancels_the_work_and_the_task_stands_again(server: Server) -> None:
    async def main() -> None:
        async with client_of(server.port) as client:
            terms: list[int] = []

            async def work(hold: Any) -> None:
                terms.append(hold.token)
                await asyncio.sleep(20)

            task = asyncio.create_task(client.lead("k", work, lease=1))
            await eventually(lambda: terms)
            server.admin.execute_command("RLOCK.FORCERELEASE", "k")
            await eventually(lambda: len(terms) == 2)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert server.is_clean("k")

    run(main)


@pytest.mark.parametrize("error", [LockTimeout, LockLost, Unavailable, Refused])
def test_error_of_the_work_of_a_leader_ends_it(error: type[LockError], server: Server) -> None:
    async def main() -> None:
        async def work(_: Any) -> None:
            terms.append(1)
            raise error("of another lock")

        terms: list[int] = []
        async with client_of(server.port) as client:
            with pytest.raises(error, match="of another lock"):
                await client.lead("k", work)
            assert len(terms) == 1
            assert server.is_clean("k")

    run(main)


def test_loss_of_another_lock_ends_a_leader(server: Server) -> None:
    async def main() -> None:
        async with client_of(server.port) as client:

            async def work(_: Any) -> None:
                async with client.lock("other"):
                    server.admin.execute_command("RLOCK.FORCERELEASE", "other")

            with pytest.raises(LockLost) as raised:
                await client.lead("k", work)
            assert "other" in str(raised.value)

    run(main)


def test_leader_that_checks_its_lost_lead_stands_again(server: Server) -> None:
    async def main() -> None:
        async with client_of(server.port) as client:

            async def work(hold: Any) -> None:
                terms.append(hold)
                if len(terms) == 3:
                    raise ZeroDivisionError
                server.admin.execute_command("RLOCK.FORCERELEASE", "k")
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(9)
                hold.check()

            terms: list[Any] = []
            with pytest.raises(ZeroDivisionError):
                await client.lead("k", work, lease=0.6)
            assert len(set(terms)) == 3

    run(main)


def test_fork_leaves_the_connections_of_a_running_loop_alone(server: Server) -> None:
    async def main() -> None:
        async with client_of(server.port) as client:
            await client.lock("k").acquire()
            child = os.fork()
            if child == 0:
                os._exit(0)
            await asyncio.to_thread(os.waitpid, child, 0)
            assert await client.lock("l").acquire(blocking=False)

    run(main)


def test_missing_rights_are_refused_at_once(server: Server) -> None:
    async def main() -> None:
        server.admin.execute_command("ACL SETUSER mute on >secret ~* resetchannels +@all")
        server.admin.execute_command("RLOCK.ACQUIRE", "k", "somebody")
        app = redis.asyncio.Redis(port=server.port, username="mute", password="secret")
        async with AsyncRLockClient(app) as client:
            with pytest.raises(Refused) as raised:
                await client.lock("k").acquire(timeout=5)
        assert raised.value.code == "NOPERM"

    run(main)


def test_valkey_client_works(server: Server) -> None:
    valkey = pytest.importorskip("valkey.asyncio")

    async def main() -> None:
        async with AsyncRLockClient(valkey.Valkey(port=server.port)) as client, client.lock("k"):
            assert await asyncio.create_task(client.lock("k").acquire(timeout=0.1)) is None

    run(main)


def test_many_waits_on_a_stalled_server_end_in_time(server: Server, proxy: Proxy) -> None:
    async def main() -> None:
        async with client_of(proxy.port) as client:
            await client.lock("other").acquire()
            proxy.stalled = True
            began = time.monotonic()
            tasks = [asyncio.create_task(client.lock("k").acquire(timeout=0.5)) for _ in range(60)]
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert {type(result) for result in results} == {Unavailable}
            assert time.monotonic() - began < 1.5 + 0.5  # The machine is busy.
            proxy.stalled = False

    run(main)
