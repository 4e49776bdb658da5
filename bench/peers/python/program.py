"""Runs the clients, each in a thread, or in a task of asyncio if the peer is one, and records what each of them did.
It calculates nothing. ../README.md has the protocol.

A library's lock is used from the threads of a web or task server, or from the tasks of its event loop. Threads share
one interpreter and its global lock, so with more than a few clients the interpreter is measured; the driver can start
more processes.
"""

import argparse
import os
import sys
import threading

WARM_UPS = 20
MANY_CLIENTS = 1000  # With this many, the warm-up of each client is short.
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


class Program:
    """What threads and tasks have in common."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.numbers = range(arguments.first, arguments.first + arguments.clients)
        self.warm_ups = WARM_UPS if arguments.clients < MANY_CLIENTS else 2
        self.saying = threading.Lock()
        self.errors = 0
        self.pairs: list[tuple[int, ...]] = []

    def warm_key(self, number: int) -> str:
        return f"{self.arguments.key}:warm:{number}"

    def key(self, number: int) -> str:
        return f"{self.arguments.key}:{self.lock(number)}"

    def lock(self, number: int) -> int:
        return number % self.arguments.locks

    def got(self, number: int, got: int) -> None:
        if STREAM:
            self.say(f"got {number} {self.lock(number)} {got}")

    def wait_for_go(self) -> None:
        self.say("ready")
        if sys.stdin.readline() != "go\n":
            os._exit(1)

    def finish(self) -> None:
        with open(self.arguments.out, "w", encoding="ascii") as file:
            file.writelines("%d,%d,%d,%d,%d,%d\n" % pair for pair in self.pairs)
        self.say(f"done {len(self.pairs)} {self.errors}")

    def say(self, line: str) -> None:
        with self.saying:
            print(line, flush=True)

    def fail(self, number: int, error: BaseException) -> None:
        with self.saying:
            self.errors += 1
            if self.errors == 1:
                print(f"client {number}: {type(error).__name__}: {error}".splitlines()[0], file=sys.stderr, flush=True)


def main() -> None:
    program = Program(parse_arguments())
    if program.arguments.peer.endswith("-asyncio"):
        from in_tasks import run
    else:
        from in_threads import run
    run(program)
    program.finish()
    # Waits that were abandoned, and threads of the libraries.
    os._exit(0)


main()
