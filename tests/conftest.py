"""The parts that all tests share: options, Hypothesis' profiles, services, and the distribution of files to
workers.
"""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import structlog
from xdist.scheduler import LoadScopeScheduling

from embedded.broker import EmbeddedBroker
from tests.harness import examples, form
from tests.harness.secured_broker import ClusterSecurity
from tests.harness.shared import Owner, Remote, Server, Services

ROOT = Path(__file__).parents[1]
HYPOTHESIS_EXAMPLES = 50
SPARK_TESTS = ("tests/spark/", "tests/slow/spark/")
# A long file that begins last would keep one worker busy alone. The tests that use the shared coordinator
# come last, because it takes a part of the processor as long as it runs.
LONGEST_FIRST = (
    "tests/faults/test_campaign.py",
    "tests/slow/test_demo.py",
    "tests/slow/test_run.py",
    "tests/spark/",
    "tests/slow/test_coordinator_restart.py",
    "tests/slow/spark/",
    "tests/faults/test_spark_cluster.py",
    "tests/faults/test_share_campaign.py",
    "tests/slow/test_secured.py",
    "tests/faults/test_exactly_once.py",
    "tests/faults/test_rocketmq_campaign.py",
    "tests/slow/test_observe.py",
    "tests/faults/test_gateway_cluster.py",
    "tests/faults/test_spark_restart.py",
    "tests/slow/test_assignors_live.py",
    "tests/slow/test_page_drag.py",
    "tests/faults/test_owner.py",
    "tests/faults/test_broker.py",
    "tests/faults/test_lease.py",
    "tests/faults/test_outage.py",
    "tests/slow/test_bench.py",
    "tests/e2e/test_replica.py",
    "tests/slow/test_observed.py",
    "tests/e2e/test_rocketmq_clients.py",
    "tests/e2e/test_gateway_clients.py",
    "tests/e2e/test_why_rocketmq.py",
    "tests/slow/test_exactly_once.py",
    "tests/slow/test_gateway_java.py",
    "tests/slow/test_page.py",
    "tests/slow/test_share_groups.py",
    "tests/slow/test_streams_protocol.py",
    "tests/slow/test_gateway_identity.py",
    "tests/slow/test_lag.py",
    "tests/slow/test_gateway_service.py",
    "tests/slow/test_consumer_protocol.py",
)

_services = pytest.StashKey[Services]()
_server = pytest.StashKey[Server]()
_folder = pytest.StashKey[Path]()
_is_kept = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add our options."""
    parser.addoption("--rewrite", action="store_true", help="write the golden files anew")
    parser.addoption("--pure", action="store_true", help="coordinators run without a replica")
    parser.addoption(
        "--secured",
        action="store_true",
        help="the shared broker is one of three with TLS and SASL; see docs/tests.md for the tests that do",
    )
    parser.addoption(
        "--examples",
        type=float,
        default=1.0,
        metavar="FACTOR",
        help="so many times the examples of each test of random cases",
    )
    parser.addoption(
        "--plain-rocketmq",
        action="store_true",
        help="let RocketMQ's clients use the plain cluster in their stories, without a gateway",
    )
    parser.addoption(
        "--seeds",
        type=int,
        default=1,
        metavar="N",
        help="of a campaign, play the seeds from 0 to N - 1 (an argument `campaign_seed` of a test)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Set the values that tests read while they are imported, and prepare the shared services."""
    examples.factor = config.getoption("examples")
    form.has_replica = not config.getoption("pure")
    # A shell starts its background jobs with SIGINT ignored, and what tests start would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # No deadlines: they measure how busy the machine is. In CI each run tries the same examples.
    default = hypothesis.settings(deadline=None, max_examples=examples.scaled(HYPOTHESIS_EXAMPLES))
    hypothesis.settings.register_profile("default", default)
    hypothesis.settings.register_profile("ci", default, derandomize=True, print_blob=True)
    hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "default")
    worker_input: dict[str, Any] | None = getattr(config, "workerinput", None)
    if worker_input is not None:
        config.stash[_services] = Remote(worker_input["services"])
        return
    config.stash[_folder] = Path(tempfile.mkdtemp(prefix="shared-"))
    folder = config.stash[_folder]
    security = ClusterSecurity(folder / "security") if config.getoption("secured") else None
    config.stash[_services] = Owner(folder, security)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker of xdist how to reach the services."""
    stash = node.config.stash
    if _server not in stash:
        stash[_server] = Server(stash[_services], stash[_folder])
    node.workerinput["services"] = stash[_server].socket


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print where the logs of the shared services are, which are kept if a test has failed."""
    failed = {"failed", "error"} & terminalreporter.stats.keys()
    if failed and (config.stash[_folder] / "broker").exists():
        terminalreporter.write_line(f"logs of the shared broker and coordinator: {config.stash[_folder]}")
        config.stash[_is_kept] = True


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the shared services."""
    if server := config.stash.get(_server, None):
        server.close()
    owner = config.stash.get(_services, None)
    if isinstance(owner, Owner):
        owner.close()
        if not config.stash.get(_is_kept, False):
            shutil.rmtree(config.stash[_folder], ignore_errors=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the longest files first, and mark the properties, so that `-m examples` finds all tests of random
    cases, and the operator's tests. Without a replica, leave out what cannot differ by that.
    """
    if config.getoption("pure"):
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("one_form")])
        items[:] = [item for item in items if not item.get_closest_marker("one_form")]
    assert all((ROOT / file).exists() for file in LONGEST_FIRST), "a file has another name"
    items.sort(key=_place)
    for item in items:
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker(pytest.mark.examples)
        if item.nodeid.startswith(SPARK_TESTS):
            item.add_marker(pytest.mark.spark)


def _place(item: pytest.Item) -> int:
    """Return the file's place in LONGEST_FIRST, or a later one."""
    places = (n for n, file in enumerate(LONGEST_FIRST) if item.nodeid.startswith(file))
    return next(places, len(LONGEST_FIRST))


class _ByFile(LoadScopeScheduling):  # type: ignore[misc] # xdist ships no types
    """Gives workers whole files, in their order, and all tests of the operator to one: it has one Spark.

    A worker is given its next file when its last test begins. xdist's own scheduler does so two tests before:
    of files with one long test a worker would hold two, while another worker has none.
    """

    def _reschedule(self, node: Any) -> None:
        if not self.workqueue or self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)

    def _split_scope(self, nodeid: str) -> str:
        folder = next((folder for folder in SPARK_TESTS if nodeid.startswith(folder)), None)
        return folder or nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Keep the order of the command line instead of the largest files first. The slowest are named first."""
    config.option.loadscopereorder = False
    return _ByFile(config, log)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Repeat the test of a campaign for each seed."""
    if "campaign_seed" in metafunc.fixturenames:
        metafunc.parametrize("campaign_seed", range(metafunc.config.getoption("seeds")))


@pytest.fixture(scope="session")
def services(pytestconfig: pytest.Config) -> Services:
    """Return the services that all tests of the session share. Each starts when it is first requested."""
    return pytestconfig.stash[_services]


@pytest.fixture(scope="session")
def broker(services: Services) -> EmbeddedBroker:
    """Return the Kafka broker of all tests, which no test stops. Give topics and groups unique names."""
    return services.broker().handle()


@pytest.fixture(autouse=True)
def _default_logs() -> Iterator[None]:
    """Undo a command's configuration of logs, whose streams are closed when the command has ended."""
    yield
    structlog.reset_defaults()
