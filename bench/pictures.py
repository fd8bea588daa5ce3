"""The pictures of README, from a real run: `python -m bench.pictures`, which takes some three minutes.

A broker, the coordinator with its page, and librdkafka's consumers: a worker of `orders` is killed again and
again, `billing` commits nothing, and `clickstream` (the consumer protocol) is well. It waits until the page
says so, and photographs it.
"""

import json
import signal
import tempfile
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlencode

from bench.page_story import START_S, Consumers, Page, producing
from cli.processes.child import Child
from tests.harness.browser import browser

FOLDER = Path(__file__).parents[1] / "docs" / "plots"
KILLED = 3


def main() -> None:
    """Run the story, and write the pictures to docs/plots."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        run = Child("run", ["run", "--json", "--data-dir", str(folder / "data")], folder / "run.log")
        stack.callback(run.stop)
        ready = json.loads(run.wait_for_line(lambda line: line.startswith('{"broker"'), START_S))
        stack.enter_context(producing(ready["broker"], ("orders", "payments", "clicks")))
        page = Page(ready["page"])
        start = Consumers(ready["gateway"], stack)
        for number in (1, 2):
            start("orders", "orders", f"worker-{number}")
            start("clickstream", "clicks", f"clicker-{number}", protocol="consumer")
        start("billing", "payments", "biller-1", commits=False)
        page.wait_until(lambda: page.members("orders") == 2, "two workers")
        for _ in range(KILLED):
            victim = start("orders", "orders", "worker-3")
            page.wait_until(lambda: page.members("orders") == 3, "three workers")
            victim.send_signal(signal.SIGKILL)
            page.wait_until(lambda: page.members("orders") == 2, "the end of the session")
        start("orders", "orders", "worker-3")
        page.wait_until(lambda: {"orders", "billing"} <= page.unwell(), "two groups that are unwell")
        with browser(folder / "browser", 1280, 640) as driver:
            for picture, path in (
                ("page-groups", ""),
                ("page-group", f"group?{urlencode({'id': 'orders'})}"),
            ):
                driver.get(page.url + path)
                driver.save_screenshot(str(FOLDER / f"{picture}.png"))
                print(FOLDER / f"{picture}.png")


if __name__ == "__main__":
    main()
