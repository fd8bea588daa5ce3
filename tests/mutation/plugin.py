"""A plugin of pytest that runs the tests of its session against mistakes, each in a forked process.

The tests are imported once. A first run notes which functions each test calls, and how long it takes.
"""

import gc
import json
import os
import resource
import signal
import sys
import threading
import time
from collections import Counter, defaultdict
from hashlib import sha256
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import hypothesis
import pytest

from tests.mutation.mistakes import Mistake, mistakes_in

RESULTS = Path("build/mutants")
RULES = (
    "test_scenarios.py", "test_histories.py", "_properties.py", "test_live.py",
    "test_rocketmq_vectors.py", "test_rocketmq_traces.py", "test_consumer_offsets_schemas.py",
)  # fmt: skip
"""Files of scenarios, recorded histories and Kafka's or RocketMQ's own answers."""
TEST_AT_MOST_S, MISTAKE_AT_MOST_S = 20, 300
FINDERS_MAX = 3
"""So many examples that find a mistake are named."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--package", required=True, help="where the mistakes are, as `state` or `gateway/wire`")
    parser.addoption("--first", type=int, default=60, help="the number of mistakes, in a seeded order")


@pytest.hookimpl(trylast=True)
def pytest_configure() -> None:
    """Try the same examples for each mistake. The first that fails is enough."""
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    profile = hypothesis.settings(phases=phases, derandomize=True, database=None)
    hypothesis.settings.register_profile("mutants", profile)
    hypothesis.settings.load_profile("mutants")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool:
    """Play the mistakes that have no result so far, and print the sums."""
    package, first = session.config.getoption("package"), session.config.getoption("first")
    found = [mistake for file in sorted(Path(package).rglob("*.py")) for mistake in mistakes_in(file)]
    found.sort(key=_place)
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{package.replace('/', '-')}.jsonl"
    rows = {row["mistake"]: row for row in map(json.loads, path.open())} if path.exists() else {}
    calls = _calls(session.items, package)
    for mistake in found[:first]:
        if str(mistake) not in rows:
            row = rows[str(mistake)] = {"mistake": str(mistake)} | _played(mistake, calls)
            with path.open("a") as file:
                file.write(json.dumps(row) + "\n")
    sums = Counter(rows[str(mistake)]["end"] for mistake in found[:first])
    writer = session.config.get_terminal_writer()
    writer.line(f"\n{package}: {len(found)} mistakes, of which {first} were tried: {dict(sums)}")
    return True


def _place(mistake: Mistake) -> bytes:
    """Return what puts mistakes in a random order, which other changes of the package leave as it is."""
    words = (mistake.file, mistake.name, str(mistake.number), mistake.text)
    return sha256("/".join(words).encode()).digest()


def _calls(items: list[pytest.Item], package: str) -> dict[tuple[str, str], list[pytest.Item]]:
    """Return, by file and name of a function, the tests that call it and pass, the quickest first."""
    folder = f"{Path(package).resolve()}/"
    taken_s: dict[pytest.Item, float] = {}
    calls = defaultdict[tuple[str, str], list[pytest.Item]](list)
    for item in items:
        called = set[CodeType]()

        def note(frame: FrameType, event: str, _: Any, called: set[CodeType] = called) -> None:
            called.add(frame.f_code)

        sys.settrace(note)
        threading.settrace(note)
        began = time.monotonic()
        passed = _passes(item)
        sys.settrace(None)
        threading.settrace(None)
        taken_s[item] = time.monotonic() - began
        for key in {
            (c.co_filename, c.co_name) for c in called if passed and c.co_filename.startswith(folder)
        }:
            calls[key].append(item)
    return {key: sorted(tests, key=taken_s.__getitem__) for key, tests in calls.items()}


def _played(mistake: Mistake, calls: dict[tuple[str, str], list[pytest.Item]]) -> dict[str, Any]:
    """Return which layer finds the mistake, and by which tests."""
    tests = calls.get((str(Path(mistake.file).resolve()), mistake.name), [])
    receiver, sender = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        try:
            _play(mistake, tests, sender)
        finally:
            os._exit(0)
    os.close(sender)
    signal.signal(signal.SIGALRM, lambda *_: os.killpg(pid, signal.SIGKILL))
    signal.alarm(MISTAKE_AT_MOST_S)
    with os.fdopen(receiver) as lines:
        found = [line.split(" ", 1) for line in lines.read().splitlines()]
    signal.alarm(0)
    os.waitpid(pid, 0)
    ends = [end for end, _ in found]
    # A test that was running when the process ended was stopped by a limit: the mistake made it hang.
    end = next((end for end in ("rules", "examples", "nobody") if end in ends), "hangs")
    return {"end": end, "tests": [test for what, test in found if what == end]}


def _play(mistake: Mistake, tests: list[pytest.Item], sender: int) -> None:
    """Plant the mistake in this process, run the tests, and send the outcome."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    code = mistake.compile()
    gc.unfreeze()  # what a test has frozen is not among the objects
    for function in gc.get_objects():
        if isinstance(function, FunctionType) and _is_of(mistake, function.__code__, code.co_filename):
            function.__code__ = code
    found = 0
    for layer in ("rules", "examples"):
        for item in (test for test in tests if _layer(test) == layer):
            limit_s = int(time.process_time()) + TEST_AT_MOST_S
            resource.setrlimit(resource.RLIMIT_CPU, (limit_s, resource.RLIM_INFINITY))
            if not _passes(item):
                os.write(sender, f"{layer} {item.nodeid}\n".encode())
                found += 1
                if layer == "rules" or found == FINDERS_MAX:
                    return
    if not found:
        os.write(sender, f"nobody {len(tests)} tests\n".encode())


def _is_of(mistake: Mistake, code: CodeType, file: str) -> bool:
    return code.co_filename == file and mistake.is_in(code)


def _layer(item: pytest.Item) -> str:
    file = item.nodeid.partition("::")[0]
    is_rule = file.endswith(RULES) or item.get_closest_marker("examples") is not None
    return "rules" if is_rule else "examples"


class _Reports:
    """A recorder of test reports, which knows if a test has failed."""

    failed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed |= report.failed


def _passes(item: pytest.Item) -> bool:
    reports = _Reports()
    item.config.pluginmanager.register(reports)
    try:
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
    finally:
        item.config.pluginmanager.unregister(reports)
    return not reports.failed
