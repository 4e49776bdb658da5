"""A fleet moves from redis-py's Lock while it runs, as docs/operations/migration.md says."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis
from conftest import Server, eventually
from migration import KEY, NEW_LEASE, both_locks

from rlock_redis import LockLost, RLockClient

PROGRAM = Path(__file__).with_name("migration.py")
PAGE = Path(__file__).parents[3] / "docs/operations/migration.md"


class Fleet:
    def __init__(self, server: Server) -> None:
        self.server, self.store = server, server.admin
        self.processes: dict[str, list[subprocess.Popen[bytes]]] = {"old": [], "both": [], "new": []}

    def start(self, kind: str) -> None:
        command = [sys.executable, str(PROGRAM), kind, str(self.server.port)]
        self.processes[kind].append(subprocess.Popen(command))

    def stop(self, kind: str) -> None:
        process = self.processes[kind].pop()
        self.store.set(f"stop:{process.pid}", 1)
        assert process.wait(60) == 0

    def kill_inside(self, kind: str) -> None:
        """Kills a process while it works, so that its locks stay until their leases end."""

        def inside() -> bool:
            pid = int(self.store.get("inside") or 0)
            for process in self.processes[kind]:
                if process.pid == pid:
                    process.kill()
                    process.wait()
                    self.processes[kind].remove(process)
                    return True
            return False

        eventually(inside, within=60)

    def work(self) -> None:
        """Waits until each kind of process that runs has done more."""
        running = [kind for kind, processes in self.processes.items() if processes]
        before = {kind: self.done(kind) for kind in running}
        eventually(lambda: all(self.done(kind) >= before[kind] + 10 for kind in running), within=60)

    def done(self, kind: str) -> int:
        return int(self.store.get(f"done:{kind}") or 0)

    def overlaps(self) -> list[str]:
        return self.store.lrange("overlaps", 0, -1)

    def roll(self, old: str, new: str) -> None:
        while self.processes[old]:
            self.start(new)
            self.work()
            self.stop(old)


@pytest.fixture
def fleet(server: Server) -> Iterator[Fleet]:
    fleet = Fleet(server)
    yield fleet
    for processes in fleet.processes.values():
        for process in processes:
            process.kill()
            process.wait()


def test_no_two_processes_work_at_once_while_a_fleet_moves(fleet: Fleet) -> None:
    for _ in range(3):
        fleet.start("old")
    fleet.work()

    fleet.roll("old", "both")
    assert int(fleet.store.get("met-old") or 0) > 0, "both kinds worked side by side"
    fleet.store.set("met-old", 0)
    fleet.work()
    assert fleet.store.get("met-old") == "0", "no process takes only the old lock now"

    fleet.roll("both", "new")
    fleet.work()
    assert fleet.overlaps() == []
    assert all(fleet.done(kind) >= 20 for kind in fleet.processes)


def test_a_killed_process_of_any_kind_blocks_the_others_only_for_its_leases(fleet: Fleet) -> None:
    for first, second in (("old", "both"), ("both", "new")):
        for kind in (first, second):
            fleet.start(first)
            fleet.start(second)
            fleet.work()
            fleet.kill_inside(kind)
            fleet.work()
        for kind in (first, second):
            while fleet.processes[kind]:
                fleet.stop(kind)
    assert fleet.overlaps() == []


def test_a_fleet_that_skips_the_release_with_both_locks_overlaps(fleet: Fleet) -> None:
    for kind in ("old", "new", "old", "new"):
        fleet.start(kind)
    eventually(fleet.overlaps, within=60)


def test_a_process_that_lost_the_new_lock_while_it_waited_for_the_old_one_does_no_work(server: Server) -> None:
    waits, worked = threading.Event(), threading.Event()

    def second_release() -> None:
        with both_locks(locks, server.admin, KEY, 30, waits.set):
            worked.set()

    store = redis.Redis(port=server.port)
    with RLockClient(store) as locks, RLockClient(store) as others, ThreadPoolExecutor() as pool:
        old = server.admin.lock(KEY, timeout=30)
        assert old.acquire()
        process = pool.submit(second_release)
        assert waits.wait(10)
        server.admin.delete(f"lock:{KEY}")
        with others.lock(f"lock:{KEY}", timeout=10):  # A process of release 3 works.
            time.sleep(NEW_LEASE)  # A renewal has failed by now.
            old.release()
            with pytest.raises(LockLost):
                process.result(10)
    assert not worked.is_set()
    assert not server.admin.exists(KEY), "the old lock is released"


def test_an_old_lock_that_ends_during_the_work_hides_neither_its_result_nor_its_error(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    with RLockClient(redis.Redis(port=server.port)) as locks:
        with both_locks(locks, server.admin, KEY, 10, lambda: None) as hold:
            server.admin.delete(KEY)
            assert hold.held
        assert "the old lock was not released" in caplog.text
        with pytest.raises(ZeroDivisionError), both_locks(locks, server.admin, KEY, 10, lambda: None):
            server.admin.delete(KEY)
            1 / 0  # noqa: B018
    assert server.is_clean(f"lock:{KEY}")


@pytest.mark.skipif(not PAGE.exists(), reason="the page is not part of the package")
def test_the_page_shows_the_tested_code() -> None:
    block = PAGE.read_text().split("<!-- clients/python/tests/migration.py -->\n```python\n")[1].split("```")[0]
    assert block in PROGRAM.read_text()
