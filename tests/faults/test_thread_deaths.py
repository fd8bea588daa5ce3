"""A command that has lost one of its threads ends, and says so. The gateway's starts without Spark."""

import json
import subprocess
import sys

import pytest

from embedded.broker import EmbeddedBroker
from streaming.service.topics import prepare_topics
from tests.e2e.harness import new_layout

pytestmark = pytest.mark.e2e

# A thread that dies when standard input ends.
COMMAND = """
import os, threading
from cli import main

def die():
    os.read(0, 1)
    raise ValueError("no more\\nand this is the rest")

threading.Thread(target=die, name="reader", daemon=True).start()
main()
"""


def test_a_thread_that_dies_ends_the_command_with_a_reason(broker: EmbeddedBroker) -> None:
    layout = new_layout()
    prepare_topics(broker.client_config, layout)
    prefix = layout.requests_topic.removesuffix("-requests")
    options = ("--bootstrap-servers", broker.bootstrap_servers, "--listen", "127.0.0.1:0", "--prefix", prefix)
    with subprocess.Popen(
        [sys.executable, "-c", COMMAND, "gateway", "--json", *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as gateway:
        assert gateway.stdin is not None
        assert gateway.stdout is not None
        assert "gateway" in json.loads(gateway.stdout.readline())
        gateway.stdin.close()
        gateway.stdin = None
        _, stderr = gateway.communicate(timeout=60)
    assert gateway.returncode == 1
    assert stderr.splitlines()[-1] == "Error: the thread reader ended: ValueError: no more"
