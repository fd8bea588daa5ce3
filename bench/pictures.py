"""The pictures of README and docs, from real runs: `python -m bench.pictures`, which takes six minutes.

One run is the demo's story of a RocketMQ group. The other has a broker, the coordinator with its page, an
observer with its page, and consumers of librdkafka. At the coordinator, `billing` commits nothing, the
consumer of `exports` is killed, a worker of `orders` is killed several times, and `clickstream` (consumer
protocol) is healthy. At the broker's own coordinator, `shipping` commits nothing, and `emails` and `audit`
are healthy. The screenshots are taken once the pages show this.
"""

import json
import signal
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlencode

from selenium.webdriver import Chrome

from bench.browser import browser
from bench.page_story import START_S, Consumers, Page, observing, producing
from cli.demo.story import ROCKETMQ_GROUP, RocketMqDemo
from cli.processes.child import Child, Children

FOLDER = Path(__file__).parents[1] / "docs" / "plots"
KILLS = 3  # of the worker of `orders`
PAUSE_S = 5.0
TOPICS = ("orders", "payments", "clicks", "parcels")


class PhotographedDemo(RocketMqDemo):
    """The demo's story, with screenshots while two consumers have one client id."""

    def on_duplicate(self) -> None:
        with Children(self.data_dir) as children, browser(self.data_dir / "browser", 1280, 720) as driver:
            polling_page = children.start("polled", "page", "--namesrv", self.gateway)
            ready = polling_page.wait_for_line(lambda line: line.startswith("ready: "), START_S)
            for picture, page in (("page-rocketmq", self.page), ("page-rocketmq-polled", ready.split()[-1])):
                driver.get(f"{page}group?{urlencode({'id': ROCKETMQ_GROUP})}")
                while "DUPLICATE" not in driver.page_source:
                    time.sleep(PAUSE_S)
                    driver.refresh()
                save(driver, picture)


def main() -> None:
    """Play the stories, and write the pictures to docs/plots."""
    with tempfile.TemporaryDirectory() as name:
        PhotographedDemo(Path(name) / "demo").play()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        run = Child("run", ["run", "--json", "--data-dir", str(folder / "data")], folder / "run.log")
        stack.callback(run.stop)
        ready = json.loads(run.wait_for_line(lambda line: line.startswith('{"broker"'), START_S))
        broker = ready["broker"]
        stack.enter_context(producing(broker, TOPICS))
        observed = Page(observing(stack, folder, broker))
        start_at_broker = Consumers(broker, stack)
        start_at_broker("shipping", "parcels", "shipper-1", commits=False)
        start_at_broker("emails", "orders", "mailer-1", protocol="consumer")
        start_at_broker("audit", "payments", "auditor-1")
        page = Page(ready["page"])
        start = Consumers(ready["gateway"], stack)
        start("billing", "payments", "biller-1", commits=False)
        exporter = start("exports", "payments", "exporter-1")
        page.wait_until(lambda: page.has_offsets("exports"), "an exporter's offsets")
        exporter.send_signal(signal.SIGKILL)
        for number in (1, 2):
            start("clickstream", "clicks", f"clicker-{number}", protocol="consumer")
        page.wait_until(lambda: {"billing", "exports"} <= page.unwell(), "two groups that are unwell")
        for number in (1, 2):
            start("orders", "orders", f"worker-{number}")
        page.wait_until(lambda: page.members("orders") == 2, "two workers")
        for _ in range(KILLS):
            victim = start("orders", "orders", "worker-3")
            page.wait_until(lambda: page.members("orders") == 3, "three workers")
            time.sleep(PAUSE_S)
            victim.send_signal(signal.SIGKILL)
            page.wait_until(lambda: page.members("orders") == 2, "the end of the session")
        start("orders", "orders", "worker-3")
        page.wait_until(lambda: page.members("orders") == 3 and "orders" in page.unwell(), "a third")
        observed.wait_until(lambda: observed.unwell() == {"shipping"}, "a group that is unwell")
        time.sleep(PAUSE_S)
        with browser(folder / "browser", 1280, 720) as driver:
            for picture, address in (
                ("page-groups", page.url),
                ("page-group", f"{page.url}group?{urlencode({'id': 'orders', 'since': '10m'})}"),
                ("page-observed", observed.url),
            ):
                driver.get(address)
                save(driver, picture)


def save(driver: Chrome, picture: str) -> None:
    """Write a screenshot to docs/plots, and print the file's name."""
    driver.save_screenshot(str(FOLDER / f"{picture}.png"))
    print(FOLDER / f"{picture}.png")


if __name__ == "__main__":
    main()
