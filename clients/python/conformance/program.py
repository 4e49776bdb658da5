"""The conformance program of rlock-redis, see clients/conformance/PROTOCOL.md.

    python program.py [--asyncio]

The handlers are coroutines. With ``--asyncio`` they run in tasks; otherwise nothing in them suspends, and
each runs in a thread.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import ctypes
import importlib
import json
import math
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import rlock_redis
from rlock_redis import AsyncRLockClient, LockError, LockLost, LockTimeout, RLockClient
from rlock_redis._clock import SteadyClock
from rlock_redis._commands import Message
from rlock_redis._connections import done, run

# Abilities, and the rules that the package keeps of those that are not kept everywhere yet.
FEATURES = ["cluster", "sentinel", "tls", "clock", "drivers", "timed", "shared-owner"]

ASYNC = "--asyncio" in sys.argv
_output = threading.Lock()


class Cancelled(BaseException):
    """Raised in a thread in the way in which a signal handler raises in the main thread."""


class Unsupported(Exception):
    pass


def now_us() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000


def say(message: dict[str, Any]) -> None:
    with _output:
        print(json.dumps(message), flush=True)


def sleep(seconds: float) -> Any:
    return asyncio.sleep(seconds) if ASYNC else time.sleep(seconds)


class Clock:
    def __init__(self) -> None:
        self.ahead, self._clock = 0.0, SteadyClock()

    def __call__(self) -> float:
        return self._clock() + self.ahead


class Worker:
    """A thread or task that carries out requests one after another."""

    def __init__(self, once: bool) -> None:
        self.once = once
        self.jobs: Any = asyncio.Queue() if ASYNC else queue.SimpleQueue()
        self.current: Any = None
        self.cancelled: set[Any] = set()
        self.lock = threading.Lock()
        if ASYNC:
            self.task = asyncio.create_task(self._serve())
        else:
            self.thread = threading.Thread(target=lambda: run(self._serve()), daemon=True)
            self.thread.start()

    async def _serve(self) -> None:
        while True:
            request, handler = await done(self.jobs.get())
            with self.lock:
                self.current = request["id"]
            if self.current in self.cancelled:
                handler = cancelled_before
            try:
                await answer(request, handler)
            finally:
                with self.lock:
                    self.current = None
            if self.once:
                return

    def cancel(self, number: Any) -> None:
        with self.lock:
            if self.current != number:
                self.cancelled.add(number)
                return
            if ASYNC:
                self.task.cancel()
                return
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(self.thread.ident or 0), ctypes.py_object(Cancelled)
            )
        for client in clients.values():  # The exception is raised when the thread runs again.
            for box in list(client._boxes):
                box.put(Message("nil", 0))


clients: dict[str, Any] = {}
apps: dict[str, Any] = {}
clocks: dict[str, Clock] = {}
holds: dict[str, Any] = {}
workers: dict[str, Worker] = {}
running: dict[Any, Worker] = {}
leaders: dict[Any, Any] = {}
Handler = Callable[[dict[str, Any]], Coroutine[Any, Any, dict[str, Any]]]


async def answer(request: dict[str, Any], handler: Handler) -> None:
    number = request["id"]
    try:
        say({"id": number, "ok": await handler(request)})
    except (asyncio.CancelledError, Cancelled) as error:
        if ASYNC and sys.version_info >= (3, 11):
            task = asyncio.current_task()
            while task is not None and task.cancelling():
                task.uncancel()
        say({"id": number, "error": "Cancelled", "code": "", "message": repr(error)})
    except Exception as error:
        name, cause = type(error).__name__, "" if error.__cause__ is None else repr(error.__cause__)
        say({"id": number, "error": name, "code": getattr(error, "code", ""), "message": str(error), "cause": cause})
    finally:
        running.pop(number, None)


EXTREMES = {
    "inf": math.inf,
    "-inf": -math.inf,
    "nan": math.nan,
    "max": sys.float_info.max,
    "min": -sys.float_info.max,
}


def seconds(value: Any) -> float | None:
    """A duration of the protocol, which is in milliseconds or the name of an extreme value."""
    if value is None:
        return None
    return EXTREMES[value] if isinstance(value, str) else value / 1000


def lock_of(request: dict[str, Any], on_lost: Callable[[Any], None] | None) -> Any:
    client, kind, keys = clients[request["client"]], request.get("kind", "mutex"), request["keys"]
    options: dict[str, Any] = {"on_lost": on_lost}
    for field, option in (("lease_ms", "lease"), ("session_ms", "session"), ("grace_ms", "grace")):
        if request.get(field) is not None:
            options[option] = seconds(request[field])
    if request.get("fixed_lease_ms") is not None:
        options.update(lease=seconds(request["fixed_lease_ms"]), renew=False)
    for option in ("owner", "shared_owner", "note"):
        if request.get(option) is not None:
            options[option] = request[option]
    if request.get("wait_ms"):
        options["timeout"] = seconds(request["wait_ms"])
    if kind == "many":
        return client.multi_lock(keys, **options)
    if kind == "semaphore":
        return client.semaphore(keys[0], request.get("permits") or 1, **options)
    make = {"mutex": client.lock, "fair": client.fair_lock, "read": client.read_lock, "write": client.write_lock}
    return make[kind](keys[0], **options)


def tell_lost(name: str | None) -> Callable[[Any], None]:
    return lambda hold: say({"event": "lost", "hold": name, "at_us": now_us()})


async def hello(request: dict[str, Any]) -> dict[str, Any]:
    return {
        "language": "python",
        "package": f"rlock-redis {rlock_redis.__version__}",
        "features": [*FEATURES, "stops-work" if ASYNC else "threads"],
    }


async def connect(request: dict[str, Any]) -> dict[str, Any]:
    driver = importlib.import_module("valkey" if "valkey" in (request.get("driver") or "") else "redis")
    module: Any = importlib.import_module(driver.__name__ + ".asyncio") if ASYNC else driver
    name = "Valkey" if driver.__name__ == "valkey" else "Redis"
    options: dict[str, Any] = {}
    if request.get("decode"):
        options["decode_responses"] = True
    if request.get("ca_file"):
        options["ssl_ca_certs"] = request["ca_file"]
    if request.get("pool"):
        options["max_connections"] = request["pool"]
    if request.get("command_timeout_ms"):
        options["socket_timeout"] = request["command_timeout_ms"] / 1000
    url, app = request.get("url"), None
    if request.get("sentinel"):
        sentinel_module: Any = importlib.import_module(module.__name__ + ".sentinel")
        from_url: Any = module.ConnectionPool.from_url(url).connection_kwargs if url else {}
        options = {k: v for k, v in from_url.items() if k in ("db", "username", "password")} | options
        nodes = [tuple(node.rsplit(":", 1)) for node in request["sentinel"]["nodes"]]
        sentinel = sentinel_module.Sentinel(nodes, sentinel_kwargs={"socket_timeout": 1.0})
        app = sentinel.master_for(request["sentinel"]["master"], **options)
    elif request.get("cluster"):
        cluster_module: Any = importlib.import_module(module.__name__ + ".cluster")
        app = getattr(cluster_module, f"{name}Cluster").from_url(url, **options)
    else:
        app = getattr(module, name).from_url(url, **options)
    clock = Clock()
    timeout = request.get("command_timeout_ms")
    make = AsyncRLockClient if ASYNC else RLockClient
    client = make(
        app, key_prefix=request.get("key_prefix") or "", clock=clock, command_timeout=timeout and timeout / 1000
    )
    clients[request["client"]], apps[request["client"]], clocks[request["client"]] = client, app, clock
    return {}


async def acquire(request: dict[str, Any]) -> dict[str, Any]:
    lock = lock_of(request, tell_lost(request["hold"]))
    wait_ms = request.get("wait_ms")
    hold = await done(lock.acquire(blocking=wait_ms != 0))
    at_us = now_us()
    if hold is None:
        return {"tokens": [], "at_us": at_us, "valid_ms": 0}
    holds[request["hold"]] = (hold, lock)
    return {"tokens": list(hold.tokens), "at_us": at_us, "valid_ms": hold.remaining * 1000}


async def release(request: dict[str, Any]) -> dict[str, Any]:
    await done(holds[request["hold"]][1].release(keep=seconds(request.get("keep_ms"))))
    return {}


async def held(request: dict[str, Any]) -> dict[str, Any]:
    hold = holds[request["hold"]][0] if request["hold"] in holds else None
    is_held = bool(hold and hold.held)
    return {"held": is_held, "valid_ms": hold.remaining * 1000 if hold else 0, "at_us": now_us()}


async def scoped(lock: Any, work: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
    if ASYNC:
        async with lock as hold:
            return await work(hold)
    with lock as hold:
        return await work(hold)


async def run_work(request: dict[str, Any]) -> dict[str, Any]:
    async def work(hold: Any) -> None:
        holds[request["hold"]] = (hold, lock)
        await done(sleep((request.get("work_ms") or 0) / 1000))
        say({"event": "step", "hold": request["hold"], "at_us": now_us()})
        if request.get("fails"):
            raise RuntimeError(request["fails"])

    lock = lock_of(request, tell_lost(request["hold"]))
    await scoped(lock, work)
    return {"result": "done"}


async def work(request: dict[str, Any]) -> dict[str, Any]:
    counts: collections.Counter[str] = collections.Counter()
    errors: collections.Counter[str] = collections.Counter()
    clock = clocks[request["client"]]
    tasks = request.get("tasks") or 1

    async def one_task(number: int) -> None:
        await done(sleep((request.get("over_ms") or 0) / 1000 * number / tasks))
        end = time.monotonic() + request["for_ms"] / 1000 if request.get("for_ms") else None
        key = request["keys"][0] + (str(number % request["spread"]) if request.get("spread") else "")
        done_times = 0
        while time.monotonic() < end if end is not None else done_times < request.get("times", 1):
            done_times += 1
            lost_at: list[int] = []
            lock = lock_of(
                request | {"keys": [key, *request["keys"][1:]]},
                lambda hold, lost_at=lost_at: lost_at.append(now_us()),  # type: ignore[misc]
            )
            asked_us = now_us()
            try:
                hold = await done(lock.acquire(blocking=request.get("wait_ms") != 0))
                from_us = now_us()
                if hold is None:
                    counts["not_acquired"] += 1
                    continue
                left = end - time.monotonic() if end is not None else sys.maxsize
                await done(sleep(max(0.0, min((request.get("hold_ms") or 0) / 1000, left))))
                until = hold.until
                deadline = now_us() + round((until - clock()) * 1e6) if until > 0 else now_us()
                to_us = min([now_us(), max(from_us, deadline), *lost_at])
                say(
                    {
                        "event": "interval",
                        "key": key,
                        "token": hold.token,
                        "asked_us": asked_us,
                        "from_us": from_us,
                        "to_us": to_us,
                    }
                )
                await done(lock.release())
                counts["done"] += 1
            except LockLost:
                counts["lost"] += 1
            except LockTimeout:
                counts["not_acquired"] += 1
            except (LockError, RuntimeError) as error:
                errors[type(error).__name__] += 1
                await done(sleep(0.01))

    if ASYNC:
        await asyncio.gather(*[asyncio.create_task(one_task(number)) for number in range(tasks)])
    else:
        threads = [
            threading.Thread(target=lambda number=number: run(one_task(number)), daemon=True) for number in range(tasks)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return {key: counts[key] for key in ("done", "not_acquired", "lost")} | {"errors": dict(errors)}


async def lead(request: dict[str, Any]) -> dict[str, Any]:
    name = request["hold"]

    def elected(hold: Any) -> None:
        holds[name] = (hold, None)
        say({"event": "elected", "hold": name, "token": hold.token, "at_us": now_us()})

    client = clients[request["client"]]
    # `on_lost` runs in a thread of its own, so the work of a leader learns of the loss by `wait`.
    lock = lock_of(request, tell_lost(name) if ASYNC else None)
    options = {field: getattr(lock._options, field) for field in lock._options.__dataclass_fields__}
    if ASYNC:

        async def lead_on(hold: Any) -> None:
            elected(hold)
            await hold.wait()

        await client.lead(request["keys"][0], lead_on, **options)
    else:

        def work_on(hold: Any) -> None:
            elected(hold)
            while not leader.stopped.is_set() and not hold.wait(0.05):
                pass
            if hold.lost:
                tell_lost(name)(hold)

        leader = client.leader(request["keys"][0], work_on, **options)
        leaders[request["id"]] = leader
        leader.run()
    raise Cancelled()


async def init(request: dict[str, Any]) -> dict[str, Any]:
    semaphore = clients[request["client"]].semaphore(request["keys"][0])
    return {"made": await done(semaphore.init(request["permits"], idle=seconds(request.get("idle_ms"))))}


async def cancel(request: dict[str, Any]) -> dict[str, Any]:
    if request["request"] in leaders:
        leaders.pop(request["request"]).stop()
    elif request["request"] in running:
        running[request["request"]].cancel(request["request"])
    return {}


async def clock(request: dict[str, Any]) -> dict[str, Any]:
    clocks[request["client"]].ahead += request["advance_ms"] / 1000
    return {}


async def close(request: dict[str, Any]) -> dict[str, Any]:
    client = clients[request["client"]]
    await done(client.aclose() if ASYNC else client.close())
    return {}


async def stats(request: dict[str, Any]) -> dict[str, Any]:
    with open("/proc/self/statm") as file:  # noqa: ASYNC230
        pages = int(file.read().split()[1])
    tasks = len(asyncio.all_tasks()) if ASYNC else threading.active_count()
    idle = sum(worker.current is None for worker in set(workers.values()))
    return {
        "memory_bytes": pages * os.sysconf("SC_PAGE_SIZE"),
        "handles": len(os.listdir("/proc/self/fd")) - 1,
        "tasks": tasks - idle,
    }


HANDLERS: dict[str, Handler] = {
    "hello": hello,
    "connect": connect,
    "acquire": acquire,
    "release": release,
    "held": held,
    "work": work,
    "run": run_work,
    "lead": lead,
    "init": init,
    "cancel": cancel,
    "clock": clock,
    "close": close,
    "stats": stats,
}


async def cancelled_before(request: dict[str, Any]) -> dict[str, Any]:
    raise Cancelled()


async def unsupported(request: dict[str, Any]) -> dict[str, Any]:
    raise Unsupported(request["do"])


def begin(request: dict[str, Any]) -> None:
    """Gives the request to its worker: that of its task, or of its hold, since the owner is the thread or task."""
    handler = HANDLERS.get(request["do"], unsupported)
    name = f"request {request['id']}"
    if request["do"] in ("acquire", "run", "lead", "release"):
        name = f"task {request['task']}" if request.get("task") is not None else f"hold {request['hold']}"
        if request["do"] == "release" and request.get("task") is None:
            name = owners.get(request["hold"], name)
        owners[request["hold"]] = name
    elif request["do"] in ("cancel", "clock", "held", "hello", "stats"):
        if ASYNC:
            asyncio.get_running_loop().create_task(answer(request, handler))
        else:
            run(answer(request, handler))
        return
    worker = workers.get(name)
    if worker is None:
        worker = Worker(once=name.startswith("request"))
        if not worker.once:
            workers[name] = worker
    running[request["id"]] = worker
    worker.jobs.put_nowait((request, handler))


owners: dict[str, str] = {}


def read(line: str) -> bool:
    request = json.loads(line)
    if request["do"] == "exit":
        return False
    begin(request)
    return True


async def main_asyncio() -> None:
    loop = asyncio.get_running_loop()
    while (line := await loop.run_in_executor(None, sys.stdin.readline)) and read(line):
        pass


def main() -> None:
    if ASYNC:
        with contextlib.suppress(KeyboardInterrupt):
            loop = asyncio.new_event_loop()
            loop.run_until_complete(main_asyncio())
    else:
        for line in sys.stdin:
            if not read(line):
                break
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
