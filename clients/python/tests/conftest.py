"""Servers with the module, and a proxy that can stall, cut and delay."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

TARGET = Path(__file__).parents[3] / os.environ.get("CARGO_TARGET_DIR", "target")
MODULE = os.environ.get("MODULE", str(TARGET / "release/librlock.so"))
SERVER = os.environ.get("SERVER", "redis-server")


def eventually(condition: Callable[[], Any], within: float = 10.0) -> Any:
    """The first true result of the condition."""
    end = time.monotonic() + within
    while True:
        result = condition()
        if result:
            return result
        assert time.monotonic() < end, f"not within {within} s"
        time.sleep(0.01)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Server:
    def __init__(self, *arguments: str, module: bool = True, port: int | None = None) -> None:
        self.port = port or free_port()
        self.folder = tempfile.mkdtemp(prefix="rlock-py-")
        command = [SERVER, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", self.folder]
        if module:
            command += ["--loadmodule", MODULE]
        self.process = subprocess.Popen([*command, *arguments], stdout=subprocess.DEVNULL)
        self.admin = redis.Redis(port=self.port, decode_responses=True)

    def ready(self) -> Server:
        def answers() -> bool:
            with contextlib.suppress(redis.ConnectionError):
                return bool(self.admin.ping())
            return False

        eventually(answers)
        return self

    def info(self, key: str) -> dict[str, Any]:
        reply = self.admin.execute_command("RLOCK.INFO", key)
        return dict(zip(reply[::2], reply[1::2], strict=True)) if isinstance(reply, list) else reply or {}

    def holders(self, key: str) -> int:
        return int(self.info(key).get("holders-count", 0))

    def waiters(self, key: str) -> int:
        return len(self.admin.execute_command("RLOCK.WAITERS", key))

    def is_clean(self, key: str) -> bool:
        return self.holders(key) == 0 and self.waiters(key) == 0

    def stop(self) -> None:
        self.admin.close()
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class Proxy:
    """Forwards to a server. `delay` is one way.

    `stalled` keeps what arrives, `deaf` keeps what the server answers, `halting` passes two bytes of each answer.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self.stalled = self.deaf = self.halting = self.refuses = False
        self.delay = 0.0
        self.connections = 0
        self._sockets: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.refuses:
                client.close()
                continue
            self.connections += 1
            server = socket.create_connection(("127.0.0.1", self._target))
            self._sockets |= {client, server}
            threading.Thread(target=self._copy, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self._copy, args=(server, client, True), daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if self.delay:
                    time.sleep(self.delay)
                if answers and self.halting:
                    target.sendall(data[:2])
                    data = data[2:]
                while self.stalled or (answers and (self.deaf or self.halting)):
                    time.sleep(0.005)
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
            self._sockets.discard(one)

    def cut(self) -> None:
        for one in list(self._sockets):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.stalled = self.deaf = self.halting = False
        self._listener.close()
        self.cut()


class Clock:
    """The machine's clock, and what tests add."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


@pytest.fixture(scope="session")
def shared() -> Iterator[Server]:
    server = Server().ready()
    yield server
    server.stop()


@pytest.fixture
def server(shared: Server) -> Server:
    shared.admin.flushall()
    return shared


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    proxy = Proxy(server.port)
    yield proxy
    proxy.close()


@pytest.fixture(scope="session")
def cluster() -> Iterator[list[Server]]:
    servers = []
    for _ in range(3):
        port, bus = free_port(), free_port()
        servers.append(Server("--cluster-enabled", "yes", "--cluster-port", str(bus), port=port))
    try:
        nodes = [f"127.0.0.1:{server.ready().port}" for server in servers]
        create = ["redis-cli", "--cluster", "create", *nodes, "--cluster-yes"]
        subprocess.run(create, check=True, stdout=subprocess.DEVNULL, timeout=30)
        eventually(lambda: all(s.admin.cluster("info").get("cluster_state") == "ok" for s in servers))
        yield servers
    finally:
        for server in servers:
            server.stop()
