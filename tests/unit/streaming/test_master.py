"""A driver waits for its Spark master, and says why when it does not come."""

import socket
import threading
from contextlib import closing

import pytest

from streaming.query.jvm import SparkFailed
from streaming.query.session import check_master, wait_for_master
from tests.harness.ports import free_port

HOST = "127.0.0.1"


@pytest.fixture
def given_up() -> threading.Event:
    return threading.Event()


@pytest.mark.parametrize("master", [None, "local[2]", "k8s://https://kubernetes.invalid"])
def test_only_a_standalone_master_is_contacted(master: str | None, given_up: threading.Event) -> None:
    check_master(master)
    wait_for_master(master, given_up, timeout_s=0)


def test_one_reachable_master_of_several_suffices() -> None:
    with closing(socket.create_server((HOST, 0))) as one:
        check_master(f"spark://{HOST}:{free_port()},{HOST}:{one.getsockname()[1]}")


def test_start_waits_for_a_master_that_starts_later(given_up: threading.Event) -> None:
    port = free_port()
    waiting = threading.Thread(target=wait_for_master, args=(f"spark://{HOST}:{port}", given_up))
    waiting.start()
    with closing(socket.create_server((HOST, port))):
        waiting.join(timeout=60)
    assert not waiting.is_alive()


def test_unreachable_master_is_named_in_the_error(given_up: threading.Event) -> None:
    port = free_port()
    with pytest.raises(SparkFailed, match=rf"no Spark master answers \({HOST}:{port}: Connection refused\)"):
        wait_for_master(f"spark://{HOST}:{port}", given_up, timeout_s=0)
