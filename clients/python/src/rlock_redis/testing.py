"""A server with the rlock module for tests, and pytest fixtures that use it.

pytest_plugins = ["rlock_redis.testing"]  # in the conftest.py at the root of the tests

def test_orders(rlock_server):
    locks = RLockClient(redis.Redis.from_url(rlock_server.url))

The module is the file that ``RLOCK_MODULE`` names, else ``/usr/lib/redis/modules/librlock.so``. The server is the
program that ``RLOCK_SERVER`` names, else ``redis-server``, else ``valkey-server``.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

__all__ = ["RLockServer", "rlock_server", "rlock_session_server"]

INSTALLED_MODULE = "/usr/lib/redis/modules/librlock.so"
_START_WITHIN = 30.0
_PORTS_TRIED = 10


def _module() -> str:
    path = os.environ.get("RLOCK_MODULE")
    if path is None and not Path(INSTALLED_MODULE).is_file():
        raise RuntimeError(
            f"the rlock module is missing: RLOCK_MODULE is not set and {INSTALLED_MODULE} does not exist; "
            "install the module, or set RLOCK_MODULE to the path of librlock.so"
        )
    if path is not None and not Path(path).is_file():
        raise RuntimeError(f"RLOCK_MODULE is {path!r}, which is not a file; expected the path of librlock.so")
    return str(Path(path or INSTALLED_MODULE).resolve())


def _program() -> str:
    name = os.environ.get("RLOCK_SERVER")
    program = shutil.which(name) if name else shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None:
        received = f"RLOCK_SERVER is {name!r}" if name else "found neither redis-server nor valkey-server in PATH"
        raise RuntimeError(f"the server is missing: {received}; expected a program of Redis 7.0 or newer, or Valkey")
    return program


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class RLockServer:
    """A server with the module on a free port of 127.0.0.1, without persistence, in a temporary folder.

    :param options: further options of the server, such as ``"--maxmemory", "100mb"``.
    :raises RuntimeError: the module or the server is missing, or the server did not start.
    """

    host = "127.0.0.1"

    def __init__(self, *options: str) -> None:
        command = [_program(), "--bind", self.host, "--save", "", "--loadmodule", _module(), *options]
        self._folder = Path(tempfile.mkdtemp(prefix="rlock-test-"))
        try:
            for _ in range(_PORTS_TRIED):
                #: The port, new for each server.
                self.port = _free_port()
                # A process of another program may take the port before the server does.
                if self._starts([*command, "--port", str(self.port), "--dir", str(self._folder)]):
                    return
            raise RuntimeError(f"{command[0]} found each of {_PORTS_TRIED} free ports in use")
        except BaseException:
            self.close()
            raise

    def _starts(self, command: list[str]) -> bool:
        log = self._folder / "log"
        with log.open("wb") as output:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        end = time.monotonic() + _START_WITHIN
        while True:
            # In this order: the log of a process that has ended is complete.
            ended = self._process.poll() is not None
            text = log.read_text(errors="replace")
            if "Ready to accept connections" in text and not ended:
                return True
            if ended and "Address already in use" in text:
                return False
            if ended or time.monotonic() > end:
                what = "ended" if ended else f"was not ready within {_START_WITHIN:.0f} s"
                raise RuntimeError(f"{command[0]} {what}; its log ends with:\n" + "\n".join(text.splitlines()[-10:]))
            time.sleep(0.005)

    @property
    def url(self) -> str:
        """``redis://127.0.0.1:<port>``."""
        return f"redis://{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        """The id of the server's process."""
        return self._process.pid

    def flush(self) -> None:
        """Deletes all keys, and with them all holds.

        :raises RuntimeError: the server refused, for instance because the options set a password.
        """
        with socket.create_connection((self.host, self.port), timeout=10) as connection:
            connection.sendall(b"FLUSHALL\r\n")
            reply = connection.makefile("rb").readline().decode().strip()
        if reply != "+OK":
            raise RuntimeError(f"FLUSHALL was refused: {reply.removeprefix('-') or 'no reply'}")

    def close(self) -> None:
        """Kills the server, and deletes its folder."""
        if process := getattr(self, "_process", None):
            process.kill()
            process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> RLockServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@pytest.fixture(scope="session")
def rlock_session_server() -> Iterator[RLockServer]:
    """One server for the whole session, for settings that are read once. No fixture empties it."""
    with RLockServer() as server:
        yield server


@pytest.fixture
def rlock_server(rlock_session_server: RLockServer) -> RLockServer:
    """The server of the session, without keys at the beginning of each test."""
    rlock_session_server.flush()
    return rlock_session_server
