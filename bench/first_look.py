"""From the start of the coordinator to the reason of a rebalance: `python -m bench.first_look`.

`group-coordinator run` is started, as `make run` does. Two consumers read a topic, and a third one is killed
until the page says that the group is unwell. Then a browser opens the address that `run` has printed, and
clicks as somebody new does. It takes some two minutes.
"""

import json
import signal
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.support.expected_conditions import url_contains
from selenium.webdriver.support.wait import WebDriverWait

from bench.page_story import START_S, Consumers, Page, producing
from cli.processes.child import Child
from tests.harness.browser import browser

GROUP, VICTIM = "orders", "worker-3"
KILLED = 3
_WAIT_S = 60.0


class Look(NamedTuple):
    """What was clicked, the sentences that were read in the end, and the seconds of it."""

    clicks: list[str]
    reason: str
    seconds: float


class FirstLook(NamedTuple):
    """Seconds after the start: the address was printed, the first group was formed and on the page, and it
    was unwell. Then the look.
    """

    printed_s: float
    formed_s: float
    unwell_s: float
    look: Look


def first_look(folder: Path) -> FirstLook:
    """Play it. Raises ChildFailed, and TimeoutError if the page does not show what it should."""
    with ExitStack() as stack:
        began_s = time.monotonic()

        def since() -> float:
            return time.monotonic() - began_s

        run = Child("run", ["run", "--json", "--data-dir", str(folder / "data")], folder / "run.log")
        stack.callback(run.stop)
        ready = json.loads(run.wait_for_line(lambda line: line.startswith('{"broker"'), START_S))
        printed_s = since()
        stack.enter_context(producing(ready["broker"], (GROUP,)))
        start, page = Consumers(ready["gateway"], stack), Page(ready["page"])
        for number in (1, 2):
            start(GROUP, GROUP, f"worker-{number}")
        page.wait_until(lambda: page.members(GROUP) == 2, "two workers")
        formed_s = since()
        for _ in range(KILLED):
            victim = start(GROUP, GROUP, VICTIM)
            page.wait_until(lambda: page.members(GROUP) == 3, "three workers")
            victim.send_signal(signal.SIGKILL)
            page.wait_until(lambda: page.members(GROUP) == 2, "the end of the session")
        page.wait_until(lambda: page.unwell() == {GROUP}, "a group that is unwell")
        unwell_s = since()
        driver = stack.enter_context(browser(folder / "browser"))
        return FirstLook(printed_s, formed_s, unwell_s, look(driver, page.url))


def look(driver: Chrome, url: str) -> Look:
    """Open the address, and click on what is unwell and on its last rebalance, until the reason is there."""
    began_s = time.monotonic()
    clicks = []
    driver.get(url)
    for selector, path in ((".unwell a", "/group"), (".rebalances a", "/rebalance")):
        clicks.append(_click(driver, selector))
        WebDriverWait(driver, _WAIT_S).until(url_contains(f"{path}?"))
    reason = driver.find_element(By.TAG_NAME, "main").text
    return Look(clicks, reason, time.monotonic() - began_s)


def _click(driver: Chrome, selector: str) -> str:
    """Click on the first of these links as soon as it is there, and return its text."""

    def clicked(driver: Chrome) -> str:
        link = driver.find_element(By.CSS_SELECTOR, selector)
        text = link.text
        link.click()
        return text

    replaced = (NoSuchElementException, StaleElementReferenceException)  # by what is newer
    return WebDriverWait(driver, _WAIT_S, ignored_exceptions=replaced).until(clicked)


def main() -> None:
    """Print what was measured."""
    with tempfile.TemporaryDirectory() as name:
        found = first_look(Path(name))
    print(f"after {found.printed_s:5.1f} s the address of the page is printed")
    print(f"after {found.formed_s:5.1f} s the page shows the first group with its members")
    print(
        f"after {found.unwell_s:5.1f} s the page says that it is unwell, its client was killed {KILLED} times"
    )
    print(
        f"then {len(found.look.clicks)} clicks ({', '.join(found.look.clicks)}), {found.look.seconds:.1f} s:"
    )
    print("\n".join(found.look.reason.splitlines()[:4]))


if __name__ == "__main__":
    main()
