"""The clock, and the times of the clients in seconds."""

from __future__ import annotations

import math
import threading
import time

CLAIM = 2.0  # A hold that nobody claims ends after so many seconds.
ASK_AGAIN = 30.0  # A message may be lost, so a waiting request is repeated so often.
CLOSE_WITHIN = 5.0
SHORT_PAUSE, LONG_PAUSE = 0.05, 1.0  # Between attempts, doubled each time.
NIL_MARGIN = 0.5  # The server's own "nil" may come so much after its timeout; then we settle.
TICK = 0.25  # Timers of the platform do not count suspend, so the clock is read so often.
PING = 10.0  # A subscriber that hears nothing for so long asks whether the server is there.
FOREVER = math.inf


class SteadyClock:
    """Seconds on a clock that never steps back and goes on during suspend."""

    def __init__(self) -> None:
        self._boottime: int | None = getattr(time, "CLOCK_BOOTTIME", None)
        self._lock = threading.Lock()
        self._last, self._total = (time.monotonic(), time.time()), 0.0

    def __call__(self) -> float:
        if self._boottime is not None:
            return time.clock_gettime(self._boottime)
        with self._lock:
            now = (time.monotonic(), time.time())
            steady, wall = now[0] - self._last[0], now[1] - self._last[1]
            # Below 50 ms the difference is noise; above it the machine slept or the wall clock stepped.
            self._total += wall if wall > steady + 0.05 else steady
            self._last = now
            return self._total
