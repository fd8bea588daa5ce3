"""Another time of a group in a real browser: the picture changes before the server has answered.

How long that takes with 500 members is a figure of `python -m bench --only browser`.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlencode

import pytest
from selenium.webdriver import Chrome, Keys
from selenium.webdriver.common.by import By
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Receive, Scope, Send

from bench.browser import CHROMIUM, DRIVER, MISSING, browser, errors_of
from bench.page_browser import drag, open_page
from bench.page_cost import BEGIN_MS, page_of
from bench.page_history import GROUP_ID
from bench.page_records import small_group
from kafka_why.page.security import Access
from kafka_why.web import WebServer, listening_at, names_of, url_of
from tests.e2e.harness import wait_until
from tests.harness.accessibility import serious_faults

pytestmark = [pytest.mark.one_form, pytest.mark.skipif(not (CHROMIUM and DRIVER), reason=MISSING)]

RESTARTS = 40


class Held:
    """Serves an application, but answers to another time of a group only when `is_free` is set."""

    def __init__(self, served: ASGIApp) -> None:
        self._served = served
        self.is_free = threading.Event()
        self.is_free.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if b"part=time" in scope.get("query_string", b""):
            await run_in_threadpool(self.is_free.wait, 60)
        await self._served(scope, receive, send)

    @contextmanager
    def holding(self) -> Iterator[None]:
        self.is_free.clear()
        try:
            yield
        finally:
            self.is_free.set()


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Held, str]]:
    """Yield the page of a group with 80 rebalances, and its address."""
    bench = page_of(small_group(RESTARTS, BEGIN_MS))
    bench.get("/api/group", id=GROUP_ID)  # its whole history is read
    with listening_at("127.0.0.1", 0) as listening:
        held = Held(bench.serve(Access(names_of(listening))))
        web = WebServer(held, listening)
        web.start()
        yield held, f"{url_of(listening)}group?{urlencode({'id': GROUP_ID})}"
        web.stop()


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    with browser(tmp_path_factory.mktemp("browser")) as driver:
        yield driver


def shown(driver: Chrome) -> tuple[int, int]:
    from_ms, to_ms = driver.execute_script(
        "const {from, to} = document.querySelector('svg.timeline').dataset; return [+from, +to];"
    )
    return from_ms, to_ms


def is_exact(driver: Chrome) -> bool:
    return driver.execute_script("return !document.querySelector('svg.timeline[aria-busy]')") is True


def places(driver: Chrome) -> dict[str, float]:
    """Return where each rebalance in the picture begins, in parts of its width."""
    found: list[tuple[str, float]] = driver.execute_script(
        "const box = document.querySelector('svg.timeline').getBoundingClientRect();"
        "return [...document.querySelectorAll('svg.timeline .flag')]"
        ".map((flag) => [flag.textContent, (flag.getBoundingClientRect().left - box.left) / box.width]);"
    )
    return {text: begin for text, begin in found if 0 < begin < 1}


def test_drag_changes_the_timeline_and_the_url_at_once(served: tuple[Held, str], driver: Chrome) -> None:
    held, url = served
    open_page(driver, url)
    with held.holding():
        found = drag(driver, 0.25, 0.75)
        before, quarter_ms = found.before_ms, (found.before_ms[1] - found.before_ms[0]) / 4
        wanted = pytest.approx((before[0] + quarter_ms, before[1] - quarter_ms), abs=quarter_ms / 100)
        assert found.after_ms == wanted
        assert not found.is_exact
        assert f"from={found.after_ms[0]}&to={found.after_ms[1]}" in driver.current_url
    wait_until(lambda: is_exact(driver), "the server's picture")
    assert shown(driver) == wanted
    assert driver.find_elements(By.CSS_SELECTOR, "#now table"), "the members do not depend on the time"
    driver.refresh()
    assert shown(driver) == wanted
    assert errors_of(driver) == []


def test_stretched_timeline_equals_the_one_of_the_server(served: tuple[Held, str], driver: Chrome) -> None:
    """Also after a second drag while the first is not answered. Labels of lanes stay."""
    held, url = served
    open_page(driver, url)
    label = "return document.querySelector('svg.timeline .lane').getBoundingClientRect().left"
    label_px = driver.execute_script(label)
    with held.holding():
        drag(driver, 0.6, 0.9)
        drag(driver, 0.3, 0.7)
        stretched = places(driver)
        assert driver.execute_script(label) == label_px
        assert serious_faults(driver) == []
    wait_until(lambda: is_exact(driver), "the server's picture")
    exact = places(driver)
    assert len(exact) >= 5
    assert stretched == pytest.approx(exact, abs=0.003)


def test_timeline_keys_zoom_and_move_and_back_returns(served: tuple[Held, str], driver: Chrome) -> None:
    held, url = served
    open_page(driver, url)
    from_ms, to_ms = shown(driver)
    width_ms = to_ms - from_ms
    with held.holding():
        driver.find_element(By.TAG_NAME, "body").send_keys("+")
        assert shown(driver) == pytest.approx((from_ms + width_ms / 4, to_ms - width_ms / 4), abs=1)
        driver.find_element(By.TAG_NAME, "body").send_keys(Keys.ARROW_LEFT)
        assert shown(driver) == pytest.approx((from_ms + width_ms / 8, to_ms - width_ms * 3 / 8), abs=1)
        assert not is_exact(driver)
    wait_until(lambda: is_exact(driver), "the server's picture")
    assert shown(driver) == pytest.approx((from_ms + width_ms / 8, to_ms - width_ms * 3 / 8), abs=1)
    driver.back()
    driver.back()
    wait_until(lambda: shown(driver) == (from_ms, to_ms), "the first picture")
    assert errors_of(driver) == []


def test_drag_between_rebalance_links_only_zooms(served: tuple[Held, str], driver: Chrome) -> None:
    _, url = served
    open_page(driver, url)
    drag(driver, 0.4, 0.5)
    wait_until(lambda: is_exact(driver), "the server's picture")
    begin, end = driver.execute_script(
        "const box = document.querySelector('svg.timeline').getBoundingClientRect();"
        "return [...document.querySelectorAll('svg.timeline .flag')].map((flag) => "
        "flag.getBoundingClientRect()).map((at) => [(at.left - box.left) / box.width, "
        "(at.right - box.left) / box.width]).find(([begin, end]) => begin > 0.05 && end < 0.95);"
    )
    inner = (end - begin) / 10
    found = drag(driver, begin + inner, end - inner, top_px=10)
    width_ms = found.before_ms[1] - found.before_ms[0]
    assert found.after_ms[1] - found.after_ms[0] == pytest.approx(width_ms * inner * 8, rel=0.05)
    wait_until(lambda: is_exact(driver), "the server's picture")
    assert "/group?" in driver.current_url
    driver.find_element(By.CSS_SELECTOR, "svg.timeline a").send_keys(Keys.ENTER)
    wait_until(lambda: "/rebalance?" in driver.current_url, "the rebalance, by key")
