from __future__ import annotations

import asyncio
import signal
import threading
from typing import Any

import pytest
import redis
import redis.asyncio
from conftest import Server, eventually

from rlock_redis import AsyncRLockClient, Refused, RLockClient

KEYS = ["orders", "{orders}:7", "a}b", "stock", "users"]


def waiters(cluster: list[Server], key: str) -> int:
    for server in cluster:
        try:
            return server.waiters(key)
        except redis.ResponseError:  # MOVED
            continue
    raise AssertionError(key)


def holders(cluster: list[Server], key: str) -> int:
    for server in cluster:
        try:
            return server.holders(key)
        except redis.ResponseError:
            continue
    raise AssertionError(key)


@pytest.mark.parametrize("key", KEYS)
def test_locks_are_handed_over_by_shard_channels(key: str, cluster: list[Server]) -> None:
    with RLockClient(redis.RedisCluster(port=cluster[0].port, host="127.0.0.1")) as client:
        tokens: list[int] = []

        def other() -> None:
            with client.lock(key, timeout=20) as hold:
                tokens.append(hold.token)

        with client.lock(key) as hold:
            thread = threading.Thread(target=other)
            thread.start()
            eventually(lambda: waiters(cluster, key) == 1)
        thread.join(10)
        assert tokens
        assert tokens[0] > hold.token
    eventually(lambda: holders(cluster, key) == 0)


def test_several_keys_need_one_slot(cluster: list[Server]) -> None:
    with RLockClient(redis.RedisCluster(port=cluster[1].port, host="127.0.0.1")) as client:
        with client.multi_lock(["{a}1", "{a}2"]) as hold:
            assert len(hold.tokens) == 2
        with pytest.raises(Refused) as raised:
            client.multi_lock(["orders", "stock"]).acquire()
        assert raised.value.code == "CROSSSLOT"


def test_renewals_reach_all_nodes(cluster: list[Server]) -> None:
    with RLockClient(redis.RedisCluster(port=cluster[1].port, host="127.0.0.1")) as client:
        holds = [client.lock(key, lease=0.6).acquire() for key in KEYS]
        assert holds[0]
        assert not holds[0].wait(1.5)
        assert [hold is not None and hold.held for hold in holds] == [True] * len(KEYS)


def test_moved_slot_is_followed(cluster: list[Server]) -> None:
    app = redis.RedisCluster(port=cluster[0].port, host="127.0.0.1")
    slot = app.keyslot("moving")
    source = next(s for s in cluster if s.port == app.get_node_from_key("moving").port)
    target = next(s for s in cluster if s is not source)
    ids = {server.port: server.admin.cluster("myid") for server in cluster}
    with RLockClient(app) as client:
        hold = client.lock("moving", lease=2).acquire()
        assert hold
        target.admin.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", ids[source.port])
        source.admin.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", ids[target.port])
        source.admin.execute_command("MIGRATE", "127.0.0.1", target.port, "moving", 0, 5000)
        assert not hold.wait(2.5), "ASK is followed"
        for server in (target, source, *(s for s in cluster if s not in (source, target))):
            server.admin.execute_command("CLUSTER SETSLOT", slot, "NODE", ids[target.port])
        assert not hold.wait(2.5), "MOVED is followed"
        assert hold.held
        client.lock("moving").release()
        assert target.holders("moving") == 0


def test_asyncio(cluster: list[Server]) -> None:
    async def main() -> None:
        app = redis.asyncio.RedisCluster(port=cluster[2].port, host="127.0.0.1")
        async with AsyncRLockClient(app) as client:

            async def work(key: str) -> Any:
                async with client.lock(key, timeout=20, lease=2) as hold:
                    await asyncio.sleep(0.01)
                    return hold.token

            tokens = await asyncio.gather(*[work(key) for key in KEYS * 4])
            assert len(set(tokens)) == len(KEYS) * 4
        await app.aclose()
        for key in KEYS:
            assert holders(cluster, key) == waiters(cluster, key) == 0

    asyncio.run(main())


def test_waits_on_a_stopped_node_delay_no_acquisition_on_another(cluster: list[Server]) -> None:
    async def main() -> None:
        app = redis.asyncio.RedisCluster(port=cluster[0].port, host="127.0.0.1")
        async with AsyncRLockClient(app, command_timeout=8) as client:
            assert await client.lock("orders").acquire(timeout=5)  # It subscribes.
            node = app.get_node_from_key("orders")
            healthy = next(key for key in map(str, range(100)) if app.get_node_from_key(key) is not node)
            process = next(server.process for server in cluster if server.port == node.port)
            process.send_signal(signal.SIGSTOP)
            try:
                waits = [asyncio.create_task(client.lock("orders").acquire()) for _ in range(64)]
                await asyncio.sleep(0.1)
                assert await client.lock(healthy).acquire(blocking=False)
                assert client._asking[node.name].locked(), "the waits have not ended yet"
            finally:
                process.send_signal(signal.SIGCONT)
            for task in waits:
                task.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        await app.aclose()

    asyncio.run(main())
