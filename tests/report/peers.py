#!/usr/bin/env python3
"""Measures locks that others use in Python; the benchmark runs this, and says in `benches/lock/peers.rs` how.

    peers.py list STORE          the peers that can be measured
    peers.py NAME WHAT ADDRESS   `cycles`, `contended`, `apart`, `killed`

`COORDINATION_PEERS` names the directory with the virtual environments that tests/performance makes.
"""

import importlib
import json
import logging
import mmap
import multiprocessing
import os
import signal
import struct
import subprocess
import sys
import time
import uuid
import warnings
from pathlib import Path

CLIENTS = 8
SECONDS = 3
# How many cycles make a round of `cycles`.
CYCLES = 50
# How many holders are killed at the same time, how long they have stood by then, and how long it may take.
KILLED = 3
SETTLED = 2
LATEST = 90


class Tooz:
    def __init__(self, url):
        from tooz import coordination

        self.coordinator = coordination.get_coordinator(url, uuid.uuid4().hex.encode())
        try:
            self.coordinator.start(start_heart=True)
        except TypeError:
            # Drivers that need no heartbeat do not take the argument.
            self.coordinator.start()

    def lock(self, name):
        return self.coordinator.get_lock(name.encode())


class Kazoo:
    def __init__(self, address):
        from kazoo.client import KazooClient

        self.client = KazooClient(hosts=address)
        self.client.start()

    def lock(self, name):
        return self.client.Lock("/peers/" + name, "id")


class RedisPy:
    # By default it would never end, and so would not be a lease.
    LEASE = 10

    def __init__(self, address):
        import redis

        host, port = address.rsplit(":", 1)
        self.client = redis.Redis(host=host, port=int(port))

    def lock(self, name):
        return self.client.lock(name, timeout=self.LEASE)


# By name: the store, the environment, the modules, and what connects.
PEERS = {
    "tooz-file": ("file", "peers", "tooz", lambda at: Tooz(f"file://{at}/tooz")),
    "tooz-redis": ("redis", "peers", "tooz redis", lambda at: Tooz(f"redis://{at}")),
    "redis-py": ("redis", "peers", "redis", RedisPy),
    "tooz-etcd": ("etcd", "peers", "tooz etcd3gw", lambda at: Tooz(f"etcd3+http://{at}")),
    "tooz-zookeeper": ("zookeeper", "peers", "tooz kazoo", lambda at: Tooz(f"zookeeper://{at}")),
    "kazoo": ("zookeeper", "peers", "kazoo", Kazoo),
    "tooz-mysql": ("mysql", "peers", "tooz pymysql", lambda at: Tooz(f"mysql://bench@{at}/bench")),
    "tooz-postgres": ("postgres", "peers", "tooz psycopg2", lambda at: Tooz(f"postgresql://postgres@{at}?dbname=postgres")),
    # Tooz 9 has no driver for Consul any more.
    "tooz-consul": ("consul", "consul", "tooz consul", lambda at: Tooz(f"consul://{at}")),
}


def interpreter(environment):
    return Path(os.environ.get("COORDINATION_PEERS", "")) / environment / "bin/python"


def listed(store):
    """Those whose modules are there."""
    for name, (of, environment, modules, _) in PEERS.items():
        program = "import " + ", ".join(modules.split())
        python = interpreter(environment)
        if of == store and python.exists():
            done = subprocess.run([python, "-c", program], capture_output=True)
            if done.returncode == 0:
                print(name)


def acquire(lock):
    if lock.acquire() is False:
        raise RuntimeError("the lock was refused")


def cycle(lock):
    acquire(lock)
    if lock.release() is False:
        raise RuntimeError("the lock was lost")


def cycles(connect):
    lock = connect().lock(f"cycles-{os.getpid()}")
    for _ in range(CYCLES):
        cycle(lock)
    print("ready", flush=True)
    for _ in sys.stdin:
        begun = time.perf_counter()
        for _ in range(CYCLES):
            cycle(lock)
        print((time.perf_counter() - begun) * 1e6 / CYCLES, flush=True)


class Record:
    """Numbers that processes share: who had the lock last, how often that changed, and how often each had it."""

    def __init__(self):
        self.memory = mmap.mmap(-1, 8 * (2 + CLIENTS))

    def __getitem__(self, slot):
        return struct.unpack_from("q", self.memory, 8 * slot)[0]

    def __setitem__(self, slot, number):
        struct.pack_into("q", self.memory, 8 * slot, number)


def client(connect, name, number, shared, barrier, record):
    lock = connect().lock(name if shared else f"{name}-{number}")
    barrier.wait()
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        acquire(lock)
        # Who waited until the end has had it too late.
        if time.monotonic() < end:
            if shared and record[0] != number:
                record[0] = number
                record[1] += 1
            record[1 + number] += 1
        lock.release()
    os._exit(0)


def together(connect, shared):
    fork = multiprocessing.get_context("fork")
    barrier, record, name = fork.Barrier(CLIENTS + 1), Record(), f"peers-{uuid.uuid4().hex}"
    processes = [
        fork.Process(target=client, args=(connect, name, number, shared, barrier, record)) for number in range(1, CLIENTS + 1)
    ]
    for process in processes:
        process.start()
    barrier.wait(timeout=60)
    time.sleep(SECONDS)
    # Those who poll may wait long for the last turns, which count no more; and the name is not used again.
    late = time.monotonic() + 2
    for process in processes:
        process.join(max(late - time.monotonic(), 0))
        process.kill()
        process.join()
    shares = [record[1 + number] for number in range(1, CLIENTS + 1)]
    if not any(shares):
        raise RuntimeError("nobody had the lock")
    return {"changes": record[1] / SECONDS, "shares": shares, "seconds": SECONDS}


def holder(connect, name, told):
    # Some let go when they are dropped.
    lock = connect().lock(name)
    acquire(lock)
    told.send("held")
    signal.pause()


def waiter(connect, name, told):
    lock = connect().lock(name)
    told.send("waits")
    acquire(lock)
    told.send(time.monotonic())
    lock.release()
    os._exit(0)


def killed(connect):
    fork = multiprocessing.get_context("fork")
    pairs = []
    for number in range(KILLED):
        name, pair = f"killed-{uuid.uuid4().hex}", []
        for target in (holder, waiter):
            receiver, sender = fork.Pipe(False)
            process = fork.Process(target=target, args=(connect, name, sender))
            process.start()
            if not receiver.poll(60):
                raise RuntimeError("it does not begin")
            receiver.recv()
            pair.append((process, receiver))
        pairs.append(pair)
    time.sleep(SETTLED)
    begun = time.monotonic()
    for (process, _), _ in pairs:
        process.kill()
    seconds = []
    for (dead, _), (process, receiver) in pairs:
        dead.join()
        if receiver.poll(max(begun + LATEST - time.monotonic(), 0)):
            seconds.append(receiver.recv() - begun)
        process.kill()
        process.join()
    if min(seconds, default=0) < 0:
        raise RuntimeError("it was granted while it was held")
    if not seconds:
        raise RuntimeError(f"nobody else had it within {LATEST} s")
    return {"seconds": seconds}


def main():
    if sys.argv[1:2] == ["list"]:
        return listed(sys.argv[2])
    name, what, address = sys.argv[1:]
    _, environment, modules, make = PEERS[name]
    python = interpreter(environment)
    if not Path(sys.prefix).samefile(python.parent.parent):
        os.execv(python, [str(python), *sys.argv])
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    for module in modules.split():
        importlib.import_module(module)

    def connect():
        return make(address)

    try:
        if what == "cycles":
            cycles(connect)
        else:
            measured = killed(connect) if what == "killed" else together(connect, what == "contended")
            print(json.dumps(measured), flush=True)
    except Exception as error:
        print("error:", type(error).__name__, str(error).replace("\n", " ")[:200], flush=True)
    # Threads that send heartbeats go on for ever.
    os._exit(0)


if __name__ == "__main__":
    main()
