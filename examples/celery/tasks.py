"""Celery tasks of which one tenant's never run at the same time. Start workers with

celery --app tasks worker
"""

import contextlib
import functools
import os
import time

import redis
from celery import Celery
from rlock_redis import LockLost, RLockClient, Unavailable

URL = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379")
app = Celery("tasks", broker=f"{URL}/1", backend=f"{URL}/2")
# A task is acknowledged when it has ended, so that it runs again if its worker is killed.
app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True, worker_prefetch_multiplier=1)


@functools.cache
def locks() -> RLockClient:
    """One client for each process, made when it is first needed: Celery forks."""
    return RLockClient(redis.Redis.from_url(f"{URL}/0"), key_prefix="tasks:")


@functools.cache
def store() -> redis.Redis:
    """Stands for the database that the tasks write to."""
    return redis.Redis.from_url(f"{URL}/0", decode_responses=True)


@app.task(bind=True, max_retries=None)
def rebuild_index(self, tenant: str, pages: int) -> int:
    """Tries once, and is called again by Celery if the lock is taken: a worker that waits serves nothing else."""
    # With a session the lock of a killed worker is free after a second, not after its lease.
    lock = locks().lock(f"rebuild:{tenant}", lease=30, session=1, note=f"task {self.request.id}")
    try:
        hold = lock.acquire(blocking=False)
    except Unavailable as error:  # As during a failover.
        raise self.retry(exc=error, countdown=1) from error
    if hold is None:
        raise self.retry(countdown=0.2)
    try:
        for page in range(pages):
            hold.check()  # LockLost ends the task before it writes without the lock.
            write(tenant, page, hold.token)
        return pages
    finally:
        with contextlib.suppress(LockLost):  # The work has its own result.
            lock.release()


def write(tenant: str, page: int, token: int) -> None:
    store().rpush(f"index:{tenant}", f"{token}:{page}")  # A real store would refuse a lower token than its last.
    time.sleep(0.01)
