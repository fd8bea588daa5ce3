"""Restarts of Spark: their pauses, and when Spark is given up."""

import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]

from streaming.query.jvm import UNANSWERED_S, SparkFailed, Watchdog
from streaming.query.session import Session, check_master, wait_for_master
from streaming.service.query.spark_keeper import MOST_RESTARTS, SparkEnded, SparkKeeper
from tests.e2e.harness import wait_until
from tests.harness.ports import free_port

LOG = Path("folder/spark.log")


class Jvm:
    """A Spark whose JVM the test ends. `starts` says for each restart whether it succeeds, always if over."""

    log_path: Path | str = LOG

    def __init__(self, starts: Iterable[bool] = (), *, is_own: bool = True) -> None:
        self._starts = iter(starts)
        self.can_restart = is_own
        self.runs = True
        self.restarts = 0

    def ping(self) -> None: ...

    def has_lost_jvm(self) -> bool:
        return not self.runs

    def kill(self) -> None:
        self.runs = False

    def restart(self) -> None:
        assert not self.runs
        self.restarts += 1
        if not next(self._starts, True):
            raise SparkFailed("Spark did not start")
        self.runs = True


class Kept:
    """A keeper whose pauses take no time."""

    def __init__(self, jvm: Jvm, *, has_standby: bool = False) -> None:
        self.jvm = jvm
        self.pauses_s: list[float] = []
        self.said: list[str] = []
        self.stopping = threading.Event()
        self.keeper = SparkKeeper(
            cast(Session, jvm),
            self.stopping,
            pause=self.pauses_s.append,
            on_reason=self.said.append,
            has_standby=has_standby,
        )

    def dying(self, *works: bool) -> Callable[[], None]:
        """Work with as many JVMs, which all die, and of which some commit a batch before. The next one is
        well.
        """
        of_each = iter(works)

        def work() -> None:
            does = next(of_each, None)
            if does is None:
                return
            if does:
                self.keeper.worked()
            self.jvm.kill()
            raise Py4JNetworkError("the JVM has ended")

        return work


def test_stopped_spark_context_is_restarted() -> None:
    """As where a cluster's master gives the application up."""
    kept = Kept(Jvm())
    calls = iter((True, False))

    def work() -> None:
        if next(calls):
            kept.jvm.runs = False  # `restart` ends what is left of it
            raise SparkFailed("Spark has stopped the application")

    kept.keeper.keep(work)
    assert kept.said == ["Spark has stopped the application. It is started again, attempt 1 of 5"]


@pytest.mark.parametrize(
    ("starts", "deaths", "reason"),
    [([], 100, f"Spark's JVM has ended; its log is {LOG}"), ([False] * 100, 1, "Spark did not start")],
    ids=["it dies", "it does not start"],
)
def test_restart_pauses_grow_until_spark_is_given_up(starts: list[bool], deaths: int, reason: str) -> None:
    kept = Kept(Jvm(starts))
    with pytest.raises(SparkEnded) as given_up:
        kept.keeper.keep(kept.dying(*[False] * deaths))
    assert kept.pauses_s == [0.0, 0.5, 1.0, 2.0, 4.0]
    assert kept.jvm.restarts == MOST_RESTARTS
    assert str(given_up.value) == f"{reason}. It was started 5 times since it last worked"


@given(st.lists(st.booleans(), max_size=40))
def test_restarts_of_spark_without_progress_are_limited(works: list[bool]) -> None:
    kept = Kept(Jvm())
    restarts = without_work = 0
    for does in works:
        without_work = 0 if does else without_work
        if without_work == MOST_RESTARTS:
            with pytest.raises(SparkEnded):
                kept.keeper.keep(kept.dying(*works))
            break
        restarts, without_work = restarts + 1, without_work + 1
    else:
        kept.keeper.keep(kept.dying(*works))
    assert kept.jvm.restarts == restarts


def test_the_jvm_of_spark_submit_is_not_started_again() -> None:
    kept = Kept(Jvm(is_own=False))
    with pytest.raises(SparkEnded, match=rf"^Spark's JVM has ended; its log is {LOG}$"):
        kept.keeper.keep(kept.dying(False))
    assert kept.jvm.restarts == 0


@pytest.mark.parametrize(
    ("is_own", "has_standby", "runs"), [(True, False, False), (False, True, False), (False, False, True)]
)
def test_hung_jvm_is_killed_only_if_another_will_start(is_own: bool, has_standby: bool, runs: bool) -> None:
    kept = Kept(Jvm(is_own=is_own), has_standby=has_standby)
    kept.keeper.kill_hung("no batch was committed for 60 s")
    assert kept.jvm.runs == runs


def test_spark_is_not_restarted_while_the_service_stops() -> None:
    jvm, stopping = Jvm(), threading.Event()
    keeper = SparkKeeper(cast(Session, jvm), stopping, pause=lambda _: stopping.set())

    def work() -> None:
        if not stopping.is_set():
            jvm.kill()
            raise Py4JNetworkError("the JVM has ended")

    keeper.keep(work)
    assert jvm.restarts == 0


INTERVAL_S = 0.02
LONG_S = 3 * UNANSWERED_S * INTERVAL_S


@contextmanager
def watching(ping: Callable[[], object]) -> Iterator[list[str]]:
    hung: list[str] = []
    watchdog = Watchdog(ping, hung.append, interval_s=INTERVAL_S)
    watchdog.start()
    try:
        yield hung
    finally:
        watchdog.stop()


def test_responsive_jvm_is_not_killed() -> None:
    with watching(lambda: None) as hung:
        time.sleep(LONG_S)
        assert hung == []


def test_unresponsive_jvm_is_killed_once() -> None:
    answer = threading.Event()
    with watching(answer.wait) as hung:
        wait_until(lambda: hung != [], "the end of the JVM")
        time.sleep(LONG_S)
        assert hung == ["Spark's JVM has not answered for 10 s"]
        answer.set()


def test_hang_check_ignores_a_jvm_that_has_ended() -> None:
    def ping() -> None:
        raise Py4JNetworkError("the JVM has ended")

    with watching(ping) as hung:
        time.sleep(LONG_S)
        assert hung == []


HOST = "127.0.0.1"


@pytest.fixture
def given_up() -> threading.Event:
    return threading.Event()


@pytest.mark.parametrize("master", [None, "local[2]", "k8s://https://kubernetes.invalid"])
def test_only_a_standalone_spark_master_is_contacted(master: str | None, given_up: threading.Event) -> None:
    check_master(master)
    wait_for_master(master, given_up, timeout_s=0)


def test_one_reachable_spark_master_of_several_suffices() -> None:
    with closing(socket.create_server((HOST, 0))) as one:
        check_master(f"spark://{HOST}:{free_port()},{HOST}:{one.getsockname()[1]}")


def test_start_waits_for_a_spark_master_that_starts_later(given_up: threading.Event) -> None:
    port = free_port()
    waiting = threading.Thread(target=wait_for_master, args=(f"spark://{HOST}:{port}", given_up))
    waiting.start()
    with closing(socket.create_server((HOST, port))):
        waiting.join(timeout=60)
    assert not waiting.is_alive()


def test_unreachable_spark_master_is_named_in_the_error(given_up: threading.Event) -> None:
    port = free_port()
    with pytest.raises(SparkFailed, match=rf"no Spark master answers \({HOST}:{port}: Connection refused\)"):
        wait_for_master(f"spark://{HOST}:{port}", given_up, timeout_s=0)
