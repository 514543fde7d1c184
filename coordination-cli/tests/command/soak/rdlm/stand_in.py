"""Runs the tests of rdlm's archive as they are, at services that listen already: what they import of Tornado 2.4 and of rdlm stands here.

    stand_in.py DIRECTORY OPEN CLOSED CREDENTIALS

DIRECTORY has the tests. OPEN and CLOSED are the ports of a service without tokens, where nobody may administer, and of one with tokens;
CREDENTIALS are an administrator's there. Prints a line for each test: its name, and `passed` or what was wrong, which is on stderr as a whole.
"""

import base64
import http.client
import queue
import sys
import threading
import time
import types
import unittest
from pathlib import Path
from urllib.parse import urlsplit

DIRECTORY, OPEN, CLOSED, CREDENTIALS = Path(sys.argv[1]), *sys.argv[2:]
# Tornado's tests wait for 5 s. How long an answer may take is not theirs to say on a machine that does much else.
PATIENCE = 60


class Options:
    """The only one that the tests set: who may administer. That everybody may is not to be had, so the URL has credentials then."""

    at = everybody = f"{CREDENTIALS}@localhost:{CLOSED}"

    @classmethod
    def parse_config_file(cls, path):
        setting = {}
        exec(Path(path).read_text(), setting)
        special = {"yes": cls.everybody, "no": f"localhost:{OPEN}"}
        cls.at = special.get(setting["admin_userpass_file"], f"localhost:{CLOSED}")


class IOLoop:
    """What has happened in one test, and is not told yet."""

    current = None

    def __init__(self):
        self.happened = queue.SimpleQueue()
        IOLoop.current = self

    @classmethod
    def instance(cls):
        return cls.current

    def add_timeout(self, deadline, callback):
        timer = threading.Timer(max(0, deadline - time.time()), self.happened.put, [callback])
        timer.daemon = True
        timer.start()


class HTTPRequest:
    def __init__(self, url, method="GET", headers=None, body=None):
        self.url, self.method, self.headers, self.body = url, method, headers or {}, body


class HTTPResponse:
    def __init__(self, code, headers, body):
        self.code, self.headers, self.body = code, headers, body


class AsyncHTTPClient:
    """Each request on a connection and a thread of its own."""

    def __init__(self, loop):
        self.loop, self.unanswered = loop, 0

    def fetch(self, request, callback):
        request = HTTPRequest(request) if isinstance(request, str) else request
        self.unanswered += 1
        threading.Thread(target=self._ask, args=[request, callback], daemon=True).start()

    def _ask(self, request, callback):
        response = answer(request)

        def told():
            self.unanswered -= 1
            callback(response)

        self.loop.happened.put(told)


def answer(request):
    url = urlsplit(request.url)
    credentials, _, host = url.netloc.rpartition("@")
    # As Tornado's client sends them.
    headers = {"Connection": "close", **request.headers}
    if credentials:
        headers["Authorization"] = b"Basic " + base64.b64encode(credentials.encode())
    if request.method == "POST":
        headers.setdefault("Content-Type", "application/x-www-form-urlencoded")
    connection = http.client.HTTPConnection(host, timeout=PATIENCE)
    try:
        connection.request(request.method, url.path, request.body, headers)
        response = connection.getresponse()
        return HTTPResponse(response.status, response.headers, response.read())
    except (OSError, http.client.HTTPException) as error:
        return HTTPResponse(599, {}, repr(error).encode())
    finally:
        connection.close()


class AsyncHTTPTestCase(unittest.TestCase):
    def setUp(self):
        self.http_client = AsyncHTTPClient(IOLoop())
        self.is_stopped, self.told = False, None

    def tearDown(self):
        # Otherwise nobody has looked at them.
        self.assertEqual(self.http_client.unanswered, 0, "answers that the test has not waited for")

    def get_url(self, path):
        return f"http://{Options.at}{path}"

    def stop(self, told=None):
        self.is_stopped, self.told = True, told

    def wait(self):
        end = time.monotonic() + PATIENCE
        while not self.is_stopped:
            try:
                happened = self.http_client.loop.happened.get(timeout=max(0, end - time.monotonic()))
            except queue.Empty:
                self.fail(f"nothing stopped the test within {PATIENCE} s")
            happened()
        self.is_stopped = False
        return self.told


def module(name, **contents):
    made = types.ModuleType(name)
    vars(made).update(contents)
    sys.modules[name] = made
    package, _, own = name.rpartition(".")
    if package:
        setattr(sys.modules[package], own, made)


module("tornado")
module("tornado.gen")
module("tornado.httpclient", HTTPRequest=HTTPRequest)
module("tornado.ioloop", IOLoop=IOLoop)
module("tornado.options", parse_config_file=Options.parse_config_file)
module("tornado.testing", AsyncHTTPTestCase=AsyncHTTPTestCase)
module("rdlm")
module("rdlm.main", get_app=None, get_ioloop=None)


def run(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            run(test)
            continue
        result = unittest.TestResult()
        test.run(result)
        faults = [account for _, account in result.errors + result.failures]
        print(*faults, sep="\n", end="", file=sys.stderr)
        said = [account.strip().splitlines()[-1] for account in faults]
        print(test.id(), "; ".join(said) or "passed", flush=True)


sys.path.insert(0, str(DIRECTORY))
for path in sorted(DIRECTORY.glob("test_*.py")):
    if "tornado" in path.read_text():
        run(unittest.defaultTestLoader.loadTestsFromName(path.stem))
    else:
        print(path.name, "sends nothing")
