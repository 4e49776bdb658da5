"""Runs the clients, each in a thread, and records what each of them did. It calculates nothing.
../README.md has the protocol.

Threads, because a library's lock is used from the threads of a web or task server. They share one
interpreter and its global lock, so with more than a few clients the interpreter is measured; the
driver can start more processes.
"""

import argparse
import os
import sys
import threading
import time

WARM_UPS = 20
MANY_CLIENTS = 1000  # With this many, the warm-up of each client is short.
WARM_UP_WAIT_SECONDS = 60.0
PAUSE_AFTER_ERROR_SECONDS = 0.01
STREAM = os.environ.get("PEERS_STREAM") == "1"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for name in ("peer", "server", "lock", "variant", "key", "hold", "out"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("clients", "first", "locks", "section-us", "lease-ms", "permits"):
        parser.add_argument(f"--{name}", required=True, type=int)
    parser.add_argument("--seconds", required=True, type=float)
    arguments = parser.parse_args()
    arguments.host, _, port = arguments.server.rpartition(":")
    arguments.port = int(port)
    return arguments


def connect(arguments: argparse.Namespace):
    """Returns the peer: its `acquire(key, wait_seconds)` returns the function that releases the lock, or None on a timeout."""
    match arguments.peer:
        case "redis-py":
            from peer_redis_py import Peer
        case "python-redis-lock":
            from peer_python_redis_lock import Peer
        case "plain-python":
            from peer_plain import Peer
        case "rlock-redis-py":
            from peer_rlock import Peer
        case unknown:
            sys.exit(f"unknown peer {unknown}")
    return Peer(arguments)


class Program:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.peer = connect(arguments)
        self.go = threading.Event()
        self.saying = threading.Lock()
        self.end = 0.0
        self.errors = 0
        self.pairs: list[tuple[int, ...]] = []

    def run(self) -> None:
        arguments = self.arguments
        threading.stack_size(256 * 1024)
        started = threading.Barrier(arguments.clients + 1)
        numbers = range(arguments.first, arguments.first + arguments.clients)
        threads = [threading.Thread(target=self.live, args=(number, started), daemon=True) for number in numbers]
        for thread in threads:
            thread.start()
        try:
            started.wait()
        except threading.BrokenBarrierError:
            os._exit(1)  # The client that could not start has reported it.
        self.say("ready")
        if sys.stdin.readline() != "go\n":
            os._exit(1)
        self.end = time.monotonic() + arguments.seconds
        self.go.set()
        for thread in threads:
            thread.join()
        with open(arguments.out, "w", encoding="ascii") as file:
            file.writelines("%d,%d,%d,%d,%d,%d\n" % pair for pair in self.pairs)
        self.say(f"done {len(self.pairs)} {self.errors}")

    def live(self, number: int, started: threading.Barrier) -> None:
        try:
            for _ in range(WARM_UPS if self.arguments.clients < MANY_CLIENTS else 2):
                self.peer.acquire(f"{self.arguments.key}:warm:{number}", WARM_UP_WAIT_SECONDS)()
        except Exception as error:
            self.fail(number, error)
            started.abort()
            return
        started.wait()
        self.go.wait()
        lock = number % self.arguments.locks
        if self.arguments.hold == "yes":
            self.peer.acquire(f"{self.arguments.key}:{lock}", WARM_UP_WAIT_SECONDS)
            self.say("held")
            time.sleep(max(0.0, self.end - time.monotonic()))
            return
        pairs: list[tuple[int, ...]] = []
        while (left := self.end - time.monotonic()) > 0:
            try:
                self.pair(number, lock, left, pairs)
            except Exception as error:
                self.fail(number, error)
                time.sleep(PAUSE_AFTER_ERROR_SECONDS)
        self.pairs += pairs

    def pair(self, number: int, lock: int, left: float, pairs: list[tuple[int, ...]]) -> None:
        asked = time.monotonic_ns()
        free_it = self.peer.acquire(f"{self.arguments.key}:{lock}", left)
        if free_it is None:
            return
        got = time.monotonic_ns()
        if STREAM:
            self.say(f"got {number} {lock} {got}")
        if self.arguments.section_us:
            time.sleep(self.arguments.section_us / 1e6)
        free = time.monotonic_ns()
        free_it()
        pairs.append((number, lock, asked, got, free, time.monotonic_ns()))

    def say(self, line: str) -> None:
        with self.saying:
            print(line, flush=True)

    def fail(self, number: int, error: Exception) -> None:
        with self.saying:
            self.errors += 1
            if self.errors == 1:
                print(f"client {number}: {type(error).__name__}: {error}".splitlines()[0], file=sys.stderr, flush=True)


Program(parse_arguments()).run()
