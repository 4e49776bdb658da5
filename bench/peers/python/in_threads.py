"""Clients in threads."""

import os
import sys
import threading
import time

WARM_UP_WAIT_SECONDS = 60.0
PAUSE_AFTER_ERROR_SECONDS = 0.01


def connect(arguments):
    """Returns the peer: its `acquire(key, wait_seconds)` returns the function that releases the lock, or None on a timeout."""
    match arguments.peer:
        case "redis-py":
            from peer_redis_py import Peer
        case "python-redis-lock":
            from peer_python_redis_lock import Peer
        case "plain-python":
            from peer_plain import Peer
        case "rlock-python":
            from peer_rlock import Peer
        case unknown:
            sys.exit(f"unknown peer {unknown}")
    return Peer(arguments)


class Threads:
    def __init__(self, program) -> None:
        self.program, self.arguments = program, program.arguments
        self.peer = connect(self.arguments)
        self.go = threading.Event()
        self.started = threading.Barrier(self.arguments.clients + 1)
        self.end = 0.0

    def run(self) -> None:
        threading.stack_size(256 * 1024)
        threads = [threading.Thread(target=self.live, args=(number,), daemon=True) for number in self.program.numbers]
        for thread in threads:
            thread.start()
        try:
            self.started.wait()
        except threading.BrokenBarrierError:
            os._exit(1)  # The client that could not start has reported it.
        self.program.wait_for_go()
        self.end = time.monotonic() + self.arguments.seconds
        self.go.set()
        for thread in threads:
            thread.join()

    def live(self, number: int) -> None:
        try:
            for _ in range(self.program.warm_ups):
                self.peer.acquire(self.program.warm_key(number), WARM_UP_WAIT_SECONDS)()
        except Exception as error:
            self.program.fail(number, error)
            self.started.abort()
            return
        self.started.wait()
        self.go.wait()
        if self.arguments.hold == "yes":
            self.peer.acquire(self.program.key(number), WARM_UP_WAIT_SECONDS)
            self.program.say("held")
            time.sleep(max(0.0, self.end - time.monotonic()))
            return
        pairs: list[tuple[int, ...]] = []
        while (left := self.end - time.monotonic()) > 0:
            try:
                self.pair(number, left, pairs)
            except Exception as error:
                self.program.fail(number, error)
                time.sleep(PAUSE_AFTER_ERROR_SECONDS)
        self.program.pairs += pairs

    def pair(self, number: int, left: float, pairs: list[tuple[int, ...]]) -> None:
        asked = time.monotonic_ns()
        free_it = self.peer.acquire(self.program.key(number), left)
        if free_it is None:
            return
        got = time.monotonic_ns()
        self.program.got(number, got)
        if self.arguments.section_us:
            time.sleep(self.arguments.section_us / 1e6)
        free = time.monotonic_ns()
        free_it()
        pairs.append((number, self.program.lock(number), asked, got, free, time.monotonic_ns()))


def run(program) -> None:
    Threads(program).run()
