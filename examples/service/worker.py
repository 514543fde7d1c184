#!/usr/bin/env python3
"""Works through a queue of `coordination serve --zaqar`, with nothing but Python:

    worker.py QUEUE [--until-empty]

Any number of workers may run on any number of hosts. Each message is one job; it is done again if its worker dies, so
that a job has to bear being done twice. The fence, which rises with each claim of the queue, tells the later one.
"""

import json
import os
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid

SERVICE = os.environ.get("COORDINATION_SERVICE", "http://localhost:8888")
TOKEN = os.environ.get("COORDINATION_TOKEN")
PROJECT = os.environ.get("COORDINATION_PROJECT", "example")
# How long a claim lasts without a renewal, in seconds: so much later somebody else does what a dead worker has left.
TTL = 60


class Queue:
    """A queue, by its name."""

    def __init__(self, name):
        self.path = "/v2/queues/" + name
        self.headers = {"X-Project-Id": PROJECT, "Client-ID": uuid.uuid4().hex}
        if TOKEN:
            self.headers["X-Auth-Token"] = TOKEN

    def call(self, method, path, body=None, timeout=30):
        """The answer's text as a value; None if there is none."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(SERVICE + path, data, self.headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                text = answer.read()
        except urllib.error.URLError:
            raise
        except OSError as error:
            raise urllib.error.URLError(error) from error
        return json.loads(text) if text else None

    def claim(self):
        """Messages that nobody else works at, with their fence; None if there are none."""
        return self.call("POST", self.path + "/claims?limit=5", {"ttl": TTL, "grace": 60})


class Renewal(threading.Thread):
    """Renews a claim, which was asked for at this time, until it is stopped."""

    def __init__(self, queue, claim_id, asked):
        super().__init__(daemon=True)
        self.queue, self.path = queue, queue.path + "/claims/" + claim_id
        self.over, self.until = threading.Event(), asked + TTL

    def is_lost(self):
        """Whether somebody else may have it: by the clock, whatever a renewal waits for."""
        return time.monotonic() > self.until - TTL / 4

    def run(self):
        while not self.over.wait(TTL / 4) and not self.is_lost():
            sent = time.monotonic()
            try:
                self.queue.call("PATCH", self.path, {"ttl": TTL}, timeout=TTL / 6)
                self.until = sent + TTL
            except urllib.error.HTTPError as error:
                if error.code == 404:
                    self.until = sent
                    return
            except urllib.error.URLError:
                pass


def do(job, fence):
    """The work itself."""
    print(json.dumps({"job": job, "fence": fence}), flush=True)


def work(queue, claimed, asked):
    """Does what was claimed, and takes it out of the queue, one by one."""
    messages = claimed["messages"]
    claim_id = messages[0]["href"].rsplit("=", 1)[1]
    renewal = Renewal(queue, claim_id, asked)
    renewal.start()
    try:
        for message in messages:
            if renewal.is_lost():
                return
            do(message["body"], claimed["fence"])
            queue.call("DELETE", message["href"])
    except BaseException:
        # What is not done is there for others at once, or once the claim ends if the service is away.
        try:
            queue.call("DELETE", renewal.path)
        except urllib.error.URLError:
            pass
        raise
    finally:
        renewal.over.set()


def main(name, until_empty):
    queue = Queue(name)
    while True:
        asked = time.monotonic()
        try:
            claimed = queue.claim()
            if claimed:
                work(queue, claimed, asked)
        except urllib.error.URLError as error:
            # That the service is away does not say that the queue is empty.
            print(f"worker.py: {error}; again in a second", file=sys.stderr)
            time.sleep(1)
            continue
        if not claimed:
            if until_empty:
                return
            time.sleep(1)


if __name__ == "__main__":
    main(sys.argv[1], "--until-empty" in sys.argv[2:])
