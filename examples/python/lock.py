"""A mutex with redis-py and a server with rlock, as docs/clients.md shows it."""

import time, uuid, redis
from contextlib import suppress

def now():  # in ms, on a clock that continues while the machine is suspended
    return time.clock_gettime(time.CLOCK_BOOTTIME) * 1000

def with_lock(r, key, wait_ms, work):
    owner, end, until = str(uuid.uuid4()), now() + wait_ms, 0
    ask = lambda command, *words: r.execute_command("RLOCK." + command, key, owner, *words)
    try:
        while (sent := now()) >= until:  # again, if the answer came too late
            block = max(1, int(end - sent))
            grant = ask("ACQUIRE", "PX", 30000, "BLOCK", block, "CLAIM", 5000, "REQ", 1, "TIMED")
            if grant is None:
                raise TimeoutError(key)
            token, until = grant[0], sent + grant[1] * 0.99 - 2
        for _ in work(token):  # a generator that yields every second
            sent = now()
            left = ask("RENEW", "TOKEN", token) if sent < until else 0
            if now() >= until:
                raise RuntimeError("lost the lock")
            until = sent + left * 0.99 - 2
        ask("RELEASE", "TOKEN", token)
    except BaseException:
        with suppress(redis.RedisError):
            ask("CANCEL", "REQ", 1)
        raise
