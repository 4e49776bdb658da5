"""Holds that leave the thread or task that acquired them, and threads that many requests share."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from conftest import Server, eventually
from test_async import client_of
from test_async import eventually as soon
from test_async import run as run_async
from test_sync import in_thread

from rlock_redis import LockLost, RLockClient, _sync


@pytest.fixture
def client(server: Server) -> Iterator[RLockClient]:
    with RLockClient(redis.Redis(port=server.port)) as client:
        yield client


def dependency(lock: Any) -> Iterator[Any]:
    """As FastAPI calls it: each step in another thread."""
    with lock as hold:
        yield hold


class TestThreads:
    def test_block_that_is_left_in_another_thread_releases(self, client: RLockClient, server: Server) -> None:
        steps = dependency(client.lock("k"))
        hold = in_thread(lambda: next(steps))
        assert hold.held
        in_thread(lambda: next(steps, None))
        assert not hold.held
        assert server.is_clean("k")

    def test_block_that_is_left_in_another_thread_after_a_loss_raises(
        self, client: RLockClient, server: Server
    ) -> None:
        steps = dependency(client.lock("k"))
        in_thread(lambda: next(steps))
        server.admin.execute_command("RLOCK.FORCERELEASE", "k")
        with pytest.raises(LockLost):
            in_thread(lambda: next(steps, None))

    def test_blocks_of_one_owner_release_their_own_permits_in_any_thread(
        self, client: RLockClient, server: Server
    ) -> None:
        semaphore = client.semaphore("k", owner="me")
        semaphore.init(2)
        steps = [dependency(semaphore) for _ in range(2)]
        first, second = [in_thread(lambda s=s: next(s)) for s in steps]
        in_thread(lambda: next(steps[0], None))
        assert not first.held
        assert second.held
        assert server.holders("k") == 1
        in_thread(lambda: next(steps[1], None))
        assert server.is_clean("k")

    def test_any_thread_can_release_a_hold(self, client: RLockClient, server: Server) -> None:
        lock = client.lock("k")
        hold = lock.acquire()
        in_thread(hold.release)
        assert server.is_clean("k")
        for release in (hold.release, lock.release):
            with pytest.raises(RuntimeError):
                release()
        hold = lock.acquire()
        in_thread(lambda: hold.release(keep=60))
        assert server.holders("k") == 0
        assert lock.acquire(blocking=False) is None

    def test_release_of_a_lost_hold_reports_the_loss_in_any_thread(self, client: RLockClient, server: Server) -> None:
        hold = client.lock("k").acquire()
        server.admin.execute_command("RLOCK.FORCERELEASE", "k")
        with pytest.raises(LockLost):
            in_thread(hold.release)

    def test_block_releases_what_its_thread_has_acquired_again_in_it(self, client: RLockClient, server: Server) -> None:
        lock = client.lock("k")
        with lock as hold:
            lock.release()
            assert in_thread(lambda: lock.acquire(timeout=5).release()) is None
            lock.acquire()
            assert not hold.held
            assert lock.held
        assert server.is_clean("k")

    def test_exit_stack_enters_and_leaves(self, client: RLockClient, server: Server) -> None:
        lock = client.lock("k")
        with contextlib.ExitStack() as stack, lock:
            assert stack.enter_context(lock).held
            assert lock.held
            stack.close()
            assert server.holders("k") == 1
        assert server.is_clean("k")

    def test_hold_that_nobody_can_release_any_more_is_not_renewed(
        self, client: RLockClient, server: Server, caplog: pytest.LogCaptureFixture
    ) -> None:
        in_thread(lambda: client.lock("k", lease=1.5).acquire() and None)
        in_thread(lambda: client.multi_lock(["a", "b"], lease=1.5).acquire() and None)
        assert server.holders("k") == server.holders("b") == 1
        eventually(lambda: gc.collect() is not None and server.is_clean("k") and server.is_clean("b"))
        assert "'k' was not released, and its thread or task has ended: the lease is not renewed" in caplog.messages

    def test_hold_of_a_thread_that_has_ended_is_renewed_as_long_as_somebody_refers_to_it(
        self, client: RLockClient, server: Server
    ) -> None:
        hold = in_thread(client.lock("k", lease=1).acquire)
        named = client.lock("l", lease=1, owner="me")
        in_thread(lambda: named.acquire() and None)
        steps = dependency(client.lock("m", lease=1))
        in_thread(lambda: next(steps) and None)
        gc.collect()
        time.sleep(2.5)
        assert hold.held
        assert [server.holders(key) for key in "klm"] == [1, 1, 1]
        hold.release()
        named.release()
        next(steps, None)
        assert [server.holders(key) for key in "klm"] == [0, 0, 0]


class TestRequestsOfOneThread:
    def test_requests_in_contexts_of_their_own_do_not_enter_together(self, client: RLockClient, server: Server) -> None:
        lock = client.lock("k")

        async def main() -> None:
            asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
            first, second = dependency(lock), dependency(client.lock("k", timeout=0.1))
            hold = await asyncio.to_thread(next, first)
            assert await asyncio.to_thread(lock.acquire, blocking=False) is None
            with pytest.raises(TimeoutError):
                await asyncio.to_thread(next, second)
            assert hold.held
            await asyncio.to_thread(next, first, None)
            hold = await asyncio.to_thread(lock.acquire, blocking=False)
            await asyncio.to_thread(hold.release)

        asyncio.run(main())
        assert server.is_clean("k")

    def test_reentry_within_a_context_of_its_own(self, client: RLockClient, server: Server) -> None:
        def twice() -> None:
            with client.lock("k") as outer, client.lock("k") as inner:
                assert inner is outer

        asyncio.run(asyncio.to_thread(twice))
        assert server.is_clean("k")

    def test_event_loop_is_refused(self, client: RLockClient, server: Server) -> None:
        lock, named = client.lock("k"), client.lock("k", owner="me")

        async def main() -> None:
            for acquire in (lock.acquire, lock.__enter__, client.leader("k", print).run):
                with pytest.raises(RuntimeError, match=r"event loop.* use AsyncRLockClient"):
                    acquire()
            hold = await asyncio.to_thread(lock.acquire)
            hold.release()
            with named:
                assert server.holders("k") == 1

        asyncio.run(main())
        assert server.is_clean("k")

    def test_context_that_was_copied_to_another_thread_is_another_owner(self, client: RLockClient) -> None:
        async def main() -> None:
            assert await asyncio.to_thread(client.lock("k").acquire, blocking=False) is None

        with client.lock("k"):
            asyncio.run(main())
            assert _sync._current_user() is _sync._current_user()


class TestTasks:
    @pytest.mark.parametrize("is_lost", [False, True])
    def test_block_that_is_left_in_another_task_releases(self, is_lost: bool, server: Server) -> None:
        async def fixture(lock: Any) -> AsyncIterator[Any]:
            async with lock as hold:
                yield hold

        async def main() -> None:
            async with client_of(server.port) as client:
                steps = fixture(client.lock("k"))
                hold = await asyncio.create_task(anext(steps))
                assert hold.held
                if is_lost:
                    server.admin.execute_command("RLOCK.FORCERELEASE", "k")
                with pytest.raises(LockLost) if is_lost else contextlib.nullcontext():
                    await asyncio.create_task(anext(steps, None))
                assert not hold.held
                assert not hold._blocks
                assert server.is_clean("k")

        run_async(main)

    def test_any_task_can_release_a_hold(self, server: Server) -> None:
        async def main() -> None:
            async with client_of(server.port) as client:
                hold = await client.lock("k").acquire()
                await asyncio.create_task(hold.release())
                assert server.is_clean("k")
                with pytest.raises(RuntimeError):
                    await hold.release()

        run_async(main)

    def test_exit_stack_enters_and_leaves(self, server: Server) -> None:
        async def main() -> None:
            async with client_of(server.port) as client:
                lock = client.lock("k")
                async with contextlib.AsyncExitStack() as stack, lock:
                    assert (await stack.enter_async_context(lock)).held
                    await stack.aclose()
                    assert server.holders("k") == 1
                assert server.is_clean("k")

        run_async(main)

    def test_hold_of_a_task_that_has_ended_is_renewed_as_long_as_somebody_refers_to_it(
        self, server: Server, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def forgets(client: Any) -> None:
            await client.lock("l", lease=1).acquire()

        async def main() -> None:
            async with client_of(server.port) as client:
                await asyncio.create_task(forgets(client))
                hold = await asyncio.create_task(client.lock("k", lease=1).acquire())
                assert [server.holders(key) for key in "kl"] == [1, 1]
                await soon(lambda: gc.collect() is not None and server.is_clean("l"))
                assert (
                    "'l' was not released, and its thread or task has ended: the lease is not renewed"
                    in caplog.messages
                )
                await asyncio.sleep(1.5)
                assert hold.held
                await hold.release()
                assert server.is_clean("k")

        run_async(main)
