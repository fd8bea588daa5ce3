"""The live view of a real coordinator's groups, as a table on a terminal and as lines elsewhere."""

import threading
from io import StringIO

import pytest
from rich.console import Console

from cli.live_view import LiveView
from clients.coordinator_client import CoordinatorClient
from gateway.net.server import GatewayOptions
from tests.e2e.gateway_clients import new_group
from tests.e2e.harness import stable_member, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]

PATIENCE_S = 30.0


@pytest.mark.parametrize(
    ("terminal", "shown"),
    [(False, "  generation 1  Stable (CompletingRebalance -> Stable): "), (True, "replica answering")],
)
def test_live_view_shows_a_group(options: GatewayOptions, terminal: bool, shown: str) -> None:
    """The form with lines begins at the topic's end, so it shows only later groups."""
    screen, stop = StringIO(), threading.Event()
    console = Console(file=screen, width=160, height=10_000, force_terminal=terminal)
    view = LiveView(options.client_config, options.layout, console, replica=lambda: "answering")
    thread = threading.Thread(target=view.run, args=(stop,))
    thread.start()
    try:
        with CoordinatorClient(options.client_config, options.layout, client_id="shown") as client:

            def is_seen() -> bool:
                stable_member(client, new_group())
                return shown in screen.getvalue()

            wait_until(is_seen, f"{shown!r} on the screen", PATIENCE_S)
    finally:
        stop.set()
        thread.join(PATIENCE_S)
    assert not thread.is_alive()
