"""The page in a real browser, with real consumers, one of which is killed."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode

import msgspec
import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By

from bench.browser import CHROMIUM, DRIVER, MISSING, browser, errors_of, set_screen
from clients.coordinator_client import CoordinatorClient
from embedded.broker import EmbeddedBroker
from kafka_why.connections import kafka_clients
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.rocketmq.requests import (
    MessageModel,
    RegisterConsumer,
    SubscriptionData,
    SubscriptionGroupConfig,
)
from kafka_why.page.commands import CoordinatorLog
from kafka_why.page.server import Page
from kafka_why.web import listening_at, url_of
from tests.e2e.gateway_clients import PARTITIONS, ConfluentMember, new_group, produce, share
from tests.e2e.harness import wait_until
from tests.harness.accessibility import serious_faults
from tests.harness.shared import Coordinated

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]
in_browser = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason=MISSING)

SESSION_MS = 6_000
PICTURES = Path("build/page")
BROKEN = "document.title='broken'"
HOSTILE = f'"><script>{BROKEN}</script><img src=x onerror="{BROKEN}">{{{{ 7919*7907 }}}}'
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
def page(broker: EmbeddedBroker, layout: TopicLayout, coordinated: Coordinated) -> Iterator[str]:
    """Yield the address of a page beside the coordinator, which knows its metrics and its log."""
    metrics_url = coordinated.ready["metrics"]
    log = CoordinatorLog.of(broker.client_config, f"{coordinated.ready['data_dir']}/coordinator")
    with serving(broker, layout, connect_to=coordinated.gateway, metrics_url=metrics_url, log=log) as url:
        yield url


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    with browser(tmp_path_factory.mktemp("browser")) as driver:
        yield driver


@contextmanager
def serving(
    broker: EmbeddedBroker,
    layout: TopicLayout,
    *,
    connect_to: str,
    metrics_url: str | None,
    log: CoordinatorLog | None = None,
) -> Iterator[str]:
    with (
        listening_at("127.0.0.1", 0) as listening,
        Page(
            broker.client_config, layout, listening, connect_to=connect_to, metrics_url=metrics_url, log=log
        ),
    ):
        yield url_of(listening)


@contextmanager
def consumer_process(
    gateway: str, group_id: str, topic: str, client_id: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a consumer that can be killed."""
    arguments = [sys.executable, "-c", CONSUMER, gateway, group_id, topic, client_id]
    with subprocess.Popen(arguments) as process:
        try:
            yield process
        finally:
            process.kill()


def in_json(page: str, path: str, **parameters: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{page}api/{path}?{urlencode(parameters)}", timeout=30) as response:
        found: dict[str, Any] = json.load(response)
    return found


def rebalances_of(page: str, group_id: str) -> list[dict[str, Any]]:
    """Return the rebalances that the page shows for a group, or none if it does not have the group yet."""
    try:
        rebalances: list[dict[str, Any]] = in_json(page, "group", id=group_id).get("rebalances", [])
    except HTTPError as error:
        if error.code != HTTPStatus.NOT_FOUND:
            raise
        return []
    return rebalances


def says(driver: Chrome, text: str) -> bool:
    """Return True if the text is there at this moment: changes replace elements."""
    return text in driver.execute_script("return document.getElementById('main').innerText")


def text_of(driver: Chrome, selector: str) -> str:
    """Return the text of the first such element at this moment, or "" if there is none."""
    script = "return document.querySelector(arguments[0])?.innerText ?? ''"
    return str(driver.execute_script(script, selector))


def cells_of(driver: Chrome, selector: str) -> list[str]:
    """Return the texts of the cells of the first such row at this moment."""
    script = "return [...document.querySelector(arguments[0]).cells].map((cell) => cell.innerText.trim())"
    cells: list[str] = driver.execute_script(script, selector)
    return cells


def clicks(driver: Chrome, text: str) -> bool:
    """Click the link with this text. Return False if there is none at this moment."""
    script = (
        "const link = [...document.links].find((one) => one.innerText.trim() === arguments[0]);"
        "link?.click(); return Boolean(link);"
    )
    return bool(driver.execute_script(script, text))


def shows(driver: Chrome, selector: str) -> bool:
    return bool(driver.find_elements(By.CSS_SELECTOR, selector))


def picture(driver: Chrome, name: str) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    driver.save_screenshot(str(PICTURES / f"{name}.png"))


@in_browser
def test_page_names_a_killed_consumer_and_its_reason_without_a_reload(
    page: str, gateway: str, topic: str, driver: Chrome
) -> None:
    """The document stays the same from start to end."""
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
        driver.get(f"{page}?{urlencode({'q': group_id})}")
        wait_until(lambda: clicks(driver, group_id), "the group in the list")
        wait_until(lambda: says(driver, "victim"), "the members")
        driver.execute_script("window.sameDocument = true")
        os.kill(victim.pid, signal.SIGKILL)
        wait_until(lambda: says(driver, "session timeout: victim"), "the reason, live", 40.0)
        assert driver.execute_script("return window.sameDocument") is True
        silent = "svg.timeline rect.silent"
        wait_until(lambda: len(driver.find_elements(By.CSS_SELECTOR, silent)) == 1, "its silence")
        picture(driver, "group")
        driver.execute_script("document.querySelector('.rebalances a').click()")
        wait_until(lambda: "/rebalance?" in driver.current_url, "the rebalance")
        wait_until(lambda: "session timeout: victim" in text_of(driver, "h1"), "its heading")
        assert says(driver, f"no heartbeat within its session timeout of {SESSION_MS} ms")
        picture(driver, "rebalance")
        for button, words in (
            ("Other assignors", "cooperative-sticky"),
            ("Other settings", "reproduces"),
            ("The group at this moment", "has to join again"),
        ):
            driver.find_element(By.XPATH, f"//button[starts-with(., '{button}')]").click()
            wait_until(lambda: shows(driver, "#answer"), f"the answer to: {button}", 90.0)
            answer = driver.execute_script("return document.querySelector('#answer').innerText")
            assert words in answer, answer
            picture(driver, button.split()[1])
            driver.back()
        driver.get(f"{page}members?{urlencode({'q': 'victim'})}")
        wait_until(lambda: says(driver, group_id), "the client that caused it")
        name, rebalances, timeouts, joins, *_ = cells_of(driver, "tbody tr")
        assert (name, timeouts) == ("victim", "1")
        # On a busy machine it joined after the first round.
        assert (rebalances, joins) in (("1", "0"), ("2", "1"))
        assert errors_of(driver) == []
        (newest, *_) = rebalances_of(page, group_id)
        moment = urlencode({"group": group_id, "at": newest["at_ms"]})
        for width, dark in ((390, False), (2560, True), (1280, False)):
            set_screen(driver, width, dark=dark)
            for name, path in (
                ("groups", ""),
                ("group", f"group?{urlencode({'id': group_id})}"),
                ("rebalance", f"rebalance?{moment}"),
                ("whatif", f"whatif?{moment}"),
                ("members", "members"),
                ("coordinator", "coordinator"),
            ):
                driver.get(page + path)
                wide = driver.execute_script("return document.documentElement.scrollWidth")
                assert wide <= width, f"{name} scrolls sideways at {width} px"
                assert serious_faults(driver) == []
                picture(driver, f"{name}-{width}{'-dark' if dark else ''}")


def test_coordinator_page_matches_its_metrics_and_topics(page: str, coordinated: Coordinated) -> None:
    """Also the page that `run` serves, which is told where the metrics are."""
    for url in (page, coordinated.ready["page"]):
        found: dict[str, Any] = {}

        def answers(url: str = url, found: dict[str, Any] = found) -> bool:
            """Return True if the page has an answer: a busy process may take longer than the page waits."""
            found |= in_json(url, "coordinator")
            return bool(found["is_read"]) and str(found["sentence"]).startswith("The coordinator answers: ")

        wait_until(answers, "the topics and the metrics")
        assert found["no_metrics"] == ""
        assert found["service"]["status"]["phase"] == "ready"
        assert found["service"]["batches"]["age_ms"] < 60_000
        assert found["service"]["batches"]["durations"]["number"] > 0
        assert found["claim"]["pid"] == coordinated.pid


def test_page_without_metrics_infers_a_coordinator(broker: EmbeddedBroker, layout: TopicLayout) -> None:
    with serving(broker, layout, connect_to="", metrics_url=None) as url:
        wait_until(
            lambda: "A coordinator runs" in str(in_json(url, "coordinator")["sentence"]), "a look", 40.0
        )
        found = in_json(url, "coordinator")
    assert (found["service"], found["sections"]) == (None, [])
    assert found["no_metrics"] == "no address of its metrics is known"


@in_browser
def test_page_shows_client_text_and_never_executes_it(
    page: str, gateway: str, topic: str, driver: Chrome, broker: EmbeddedBroker, layout: TopicLayout
) -> None:
    """Group names, client ids, addresses and refused records are hostile on all pages and pictures."""
    send_hostile(broker, layout, rocketmq := new_group())
    group_id = f"{new_group()}{HOSTILE}"
    settings = {"client.id": HOSTILE}
    with closing(ConfluentMember(gateway, group_id, topic, settings=settings)) as member:
        share(member)
        wait_until(lambda: rebalances_of(page, group_id) != [], "its first rebalance")
        at_ms = rebalances_of(page, group_id)[0]["at_ms"]
        for path in (
            f"?{urlencode({'q': group_id})}",
            f"group?{urlencode({'id': group_id})}",
            f"rebalance?{urlencode({'group': group_id, 'at': at_ms})}",
            f"rebalance?{urlencode({'group': HOSTILE, 'at': HOSTILE})}",
            f"group?{urlencode({'id': HOSTILE})}",
            f"?{urlencode({'q': HOSTILE, 'sort': HOSTILE, 'state': HOSTILE, 'protocol': HOSTILE})}",
            "members",
            "members?by=host",
            "coordinator",
            f"group?{urlencode({'id': rocketmq})}",
            f"members?{urlencode({'q': HOSTILE, 'sort': HOSTILE, 'by': HOSTILE, 'page': HOSTILE})}",
        ):
            driver.get(page + path)
            assert driver.find_elements(By.CSS_SELECTOR, "main script, main img, svg script") == []
            assert "broken" not in driver.title.replace(HOSTILE, "").replace(group_id, "")
            assert not says(driver, PRODUCT)
        for path in (
            f"group?{urlencode({'id': group_id})}",
            f"members?{urlencode({'q': HOSTILE})}",
            f"group?{urlencode({'id': rocketmq})}",
            "coordinator",
        ):
            driver.get(page + path)
            wait_until(lambda: says(driver, HOSTILE), f"what was sent, on {path}")
        refused = "Failed to load resource"  # the addresses that make no sense
        assert [error for error in errors_of(driver) if refused not in error] == []


def send_hostile(broker: EmbeddedBroker, layout: TopicLayout, group_id: str) -> None:
    """Let a RocketMQ client with a hostile name join a group, and send a hostile record that is refused."""
    with CoordinatorClient(broker.client_config, layout, client_id=HOSTILE) as client:
        request = RegisterConsumer(
            group_id=group_id,
            connection=HOSTILE,
            client_id=HOSTILE,
            correlation_id=client.next_correlation_id(),
            reply_partition=client.reply_partition,
            message_model=MessageModel.CLUSTERING,
            subscription_data_set=(SubscriptionData("t", "*", 1),),
            group_config=SubscriptionGroupConfig(),
        )
        client.send(request).result(60)
    producer = kafka_clients.producer(broker.client_config)
    producer.send(layout.requests_topic, msgspec.json.encode({"type": HOSTILE}), HOSTILE.encode())
    producer.close()
