"""Clients in tasks of one event loop."""

import asyncio
import os
import sys
import time

WARM_UP_WAIT_SECONDS = 60.0
PAUSE_AFTER_ERROR_SECONDS = 0.01


def connect(arguments):
    """Returns the peer: awaiting its `acquire(key, wait_seconds)` gives the coroutine function that releases the lock,
    or None on a timeout."""
    match arguments.peer:
        case "redis-py-asyncio":
            from peer_redis_py_asyncio import Peer
        case "rlock-asyncio":
            from peer_rlock_asyncio import Peer
        case unknown:
            sys.exit(f"unknown peer {unknown}")
    return Peer(arguments)


class Tasks:
    def __init__(self, program) -> None:
        self.program, self.arguments = program, program.arguments
        self.peer = connect(self.arguments)
        self.end = 0.0

    async def run(self) -> None:
        await asyncio.gather(*map(self.warm_up, self.program.numbers))
        await asyncio.to_thread(self.program.wait_for_go)
        self.end = time.monotonic() + self.arguments.seconds
        live = self.keep if self.arguments.hold == "yes" else self.work
        await asyncio.gather(*map(live, self.program.numbers))

    async def warm_up(self, number: int) -> None:
        try:
            for _ in range(self.program.warm_ups):
                free_it = await self.peer.acquire(self.program.warm_key(number), WARM_UP_WAIT_SECONDS)
                await free_it()
        except Exception as error:
            self.program.fail(number, error)
            os._exit(1)

    async def keep(self, number: int) -> None:
        await self.peer.acquire(self.program.key(number), WARM_UP_WAIT_SECONDS)
        self.program.say("held")
        await asyncio.sleep(self.end - time.monotonic())

    async def work(self, number: int) -> None:
        while (left := self.end - time.monotonic()) > 0:
            try:
                await self.pair(number, left)
            except Exception as error:
                self.program.fail(number, error)
                await asyncio.sleep(PAUSE_AFTER_ERROR_SECONDS)

    async def pair(self, number: int, left: float) -> None:
        asked = time.monotonic_ns()
        free_it = await self.peer.acquire(self.program.key(number), left)
        if free_it is None:
            return
        got = time.monotonic_ns()
        self.program.got(number, got)
        if self.arguments.section_us:
            await asyncio.sleep(self.arguments.section_us / 1e6)
        free = time.monotonic_ns()
        await free_it()
        self.program.pairs.append((number, self.program.lock(number), asked, got, free, time.monotonic_ns()))


def run(program) -> None:
    async def main() -> None:
        await Tasks(program).run()

    asyncio.run(main())
