"""The page in a real browser, of real consumers of which one is killed."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from urllib.parse import urlencode

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By

from embedded.broker import EmbeddedBroker
from insight.page.server import Page, listening_at, url_of
from records.layout import TopicLayout
from tests.e2e.gateway_clients import PARTITIONS, ConfluentMember, new_group, produce, share
from tests.e2e.harness import wait_until
from tests.harness.browser import CHROMIUM, DRIVER, MISSING, browser, errors_of

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]
in_browser = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason=MISSING)

SESSION_MS = 6_000
PICTURES = Path("build/page")
HOSTILE = (
    "\"><script>document.title='broken'</script><img src=x onerror=\"document.title='broken'\">{{ 7919*7907 }}"
)
PRODUCT = str(7919 * 7907)

CONSUMER = """
import sys
from confluent_kafka import Consumer
servers, group_id, topic, client_id = sys.argv[1:]
consumer = Consumer({"bootstrap.servers": servers, "group.id": group_id, "client.id": client_id,
    "session.timeout.ms": 6000, "heartbeat.interval.ms": 500, "auto.offset.reset": "earliest"})
consumer.subscribe([topic])
while True:
    consumer.poll(1.0)
"""


@pytest.fixture(scope="module")
def page(broker: EmbeddedBroker, layout: TopicLayout, gateway: str) -> Iterator[str]:
    """The address of a page beside the coordinator."""
    with (
        listening_at("127.0.0.1", 0) as listening,
        Page(broker.client_config, layout, listening, connect_to=gateway),
    ):
        yield url_of(listening)


@contextmanager
def consumer_process(
    gateway: str, group_id: str, topic: str, client_id: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A consumer that can be killed."""
    arguments = [sys.executable, "-c", CONSUMER, gateway, group_id, topic, client_id]
    with subprocess.Popen(arguments) as process:
        try:
            yield process
        finally:
            process.kill()


def in_json(page: str, path: str, **parameters: str) -> dict[str, object]:
    with urllib.request.urlopen(f"{page}api/{path}?{urlencode(parameters)}", timeout=30) as response:
        found: dict[str, object] = json.load(response)
    return found


def says(driver: Chrome, text: str) -> bool:
    """Looks at one moment: an element that is found is replaced when something has changed."""
    return text in driver.execute_script("return document.getElementById('main').innerText")


def shows(driver: Chrome, selector: str) -> bool:
    return bool(driver.find_elements(By.CSS_SELECTOR, selector))


def picture(driver: Chrome, name: str) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    driver.save_screenshot(str(PICTURES / f"{name}.png"))


@in_browser
def test_a_killed_consumer_is_named_live_and_two_clicks_lead_to_the_reason(
    page: str, gateway: str, topic: str, tmp_path: Path
) -> None:
    """The page shows it without being loaded again: it is the same document from the start to the end."""
    group_id = new_group()
    produce(gateway, topic, range(PARTITIONS))
    with ExitStack() as stack:
        stays = stack.enter_context(
            closing(
                ConfluentMember(
                    gateway, group_id, topic, session_ms=SESSION_MS, settings={"client.id": "stays"}
                )
            )
        )
        victim = stack.enter_context(consumer_process(gateway, group_id, topic, "victim"))
        wait_until(lambda: len(stays.partitions()) == PARTITIONS // 2, "both are members")
        driver = stack.enter_context(browser(tmp_path / "browser"))
        driver.get(f"{page}?{urlencode({'q': group_id})}")
        driver.find_element(By.LINK_TEXT, group_id).click()
        wait_until(lambda: says(driver, "victim"), "the members")
        driver.execute_script("window.sameDocument = true")
        os.kill(victim.pid, signal.SIGKILL)
        wait_until(lambda: says(driver, "session timeout: victim"), "the reason, live", 40.0)
        assert driver.execute_script("return window.sameDocument") is True
        assert len(driver.find_elements(By.CSS_SELECTOR, "svg.timeline rect.silent")) == 1
        picture(driver, "group")
        driver.execute_script("document.querySelector('.rebalances a').click()")
        wait_until(lambda: "/rebalance?" in driver.current_url, "the rebalance")
        assert "session timeout: victim" in driver.find_element(By.TAG_NAME, "h1").text
        assert says(driver, "no heartbeat within its session timeout of 6000 ms")
        picture(driver, "rebalance")
        assert errors_of(driver) == []
        for width, dark in ((390, False), (1280, True), (2560, False)):
            with browser(tmp_path / f"browser-{width}", width, dark=dark) as other:
                for name, path in (("groups", ""), ("group", f"group?{urlencode({'id': group_id})}")):
                    other.get(page + path)
                    wide = other.execute_script("return document.documentElement.scrollWidth")
                    assert wide <= width, f"{name} scrolls sideways at {width} px"
                    picture(other, f"{name}-{width}{'-dark' if dark else ''}")


@in_browser
def test_dragging_zooms_the_timeline_and_the_address_keeps_it(
    page: str, gateway: str, topic: str, tmp_path: Path
) -> None:
    group_id = new_group()
    with (
        closing(ConfluentMember(gateway, group_id, topic)) as member,
        browser(tmp_path / "browser") as driver,
    ):
        share(member)
        driver.get(f"{page}group?{urlencode({'id': group_id})}")
        wait_until(lambda: shows(driver, "svg.timeline rect.holds"), "the timeline")
        drag = (
            "const [from, to] = arguments, svg = document.querySelector('svg.timeline');"
            "const box = svg.getBoundingClientRect();"
            "const at = (part) => "
            "({clientX: box.left + box.width * part, clientY: box.top + 5, bubbles: true, button: 0});"
            "svg.dispatchEvent(new PointerEvent('pointerdown', at(from)));"
            "svg.dispatchEvent(new PointerEvent('pointermove', at(to)));"
            "svg.dispatchEvent(new PointerEvent('pointerup', at(to)));"
            "return [Number(svg.dataset.from), Number(svg.dataset.to)];"
        )
        from_ms, to_ms = driver.execute_script(drag, 0.25, 0.75)
        wait_until(lambda: "from=" in driver.current_url, "the zoom")

        def shown() -> tuple[int, int]:
            from_ms, to_ms = driver.execute_script(
                "const {from, to} = document.querySelector('svg.timeline').dataset; return [+from, +to];"
            )
            return from_ms, to_ms

        quarter_ms = (to_ms - from_ms) / 4
        wait_until(lambda: shown()[1] < to_ms, "the part")
        assert shown() == pytest.approx((from_ms + quarter_ms, to_ms - quarter_ms), abs=quarter_ms / 10)
        assert shows(driver, "#now table"), "the members, which do not depend on the time, stay"
        driver.refresh()
        assert shown() == pytest.approx((from_ms + quarter_ms, to_ms - quarter_ms), abs=quarter_ms / 10)
        driver.back()
        assert errors_of(driver) == []


@in_browser
def test_what_clients_send_is_shown_and_never_run(
    page: str, gateway: str, topic: str, tmp_path: Path
) -> None:
    """In names of groups, client ids and addresses, on all pages and in the picture."""
    group_id = f"{new_group()}{HOSTILE}"
    settings = {"client.id": HOSTILE}
    with (
        closing(ConfluentMember(gateway, group_id, topic, settings=settings)) as member,
        browser(tmp_path / "browser") as driver,
    ):
        share(member)
        wait_until(lambda: bool(in_json(page, "group", id=group_id).get("rebalances")), "its first rebalance")
        at_ms = in_json(page, "group", id=group_id)["rebalances"][0]["at_ms"]  # type: ignore[index]
        for path in (
            f"?{urlencode({'q': group_id})}",
            f"group?{urlencode({'id': group_id})}",
            f"rebalance?{urlencode({'group': group_id, 'at': at_ms})}",
            f"rebalance?{urlencode({'group': HOSTILE, 'at': HOSTILE})}",
            f"group?{urlencode({'id': HOSTILE})}",
            f"?{urlencode({'q': HOSTILE, 'sort': HOSTILE, 'state': HOSTILE, 'protocol': HOSTILE})}",
        ):
            driver.get(page + path)
            assert driver.find_elements(By.CSS_SELECTOR, "main script, main img, svg script") == []
            assert "broken" not in driver.title.replace(HOSTILE, "").replace(group_id, "")
            assert not says(driver, PRODUCT)
        driver.get(f"{page}group?{urlencode({'id': group_id})}")
        assert says(driver, group_id) and says(driver, HOSTILE)
