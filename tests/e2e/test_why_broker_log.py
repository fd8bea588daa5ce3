"""`why` with the log of a real broker: alone, and with the records of `__consumer_offsets`."""

import json
from pathlib import Path
from typing import Any

import pytest

from embedded.broker import EmbeddedBroker
from kafka_why.cli.why import why
from tests.e2e.gateway_clients import PARTITIONS
from tests.e2e.harness import wait_until
from tests.harness.commands import invoke
from tests.observed.member import LIBRDKAFKA, Member

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]


def report(group: str, *arguments: str) -> dict[str, Any]:
    told = invoke(why, [group, "-o", "json", *arguments])
    return dict(json.loads(told.stdout)) if told.exit_code == 0 else {"rebalances": [], "state": told.output}


def test_log_names_the_exact_reason(broker: EmbeddedBroker, topic: str, group: str, tmp_path: Path) -> None:
    log = ("--broker-log", str(broker.log_path))

    def member(client_id: str) -> Member:
        return Member(LIBRDKAFKA, broker.bootstrap_servers, group, client_id, [topic], tmp_path)

    def await_state(state: str, rebalances: int) -> None:
        def is_there() -> bool:
            told = report(group, *log)
            return (told["state"], len(told["rebalances"])) == (state, rebalances)

        wait_until(is_there, f"{state} after {rebalances} rebalances")

    with member("stays") as stays:
        await_state("Stable", 1)
        with member("dies") as dies:
            await_state("Stable", 2)
            dies.kill()
            await_state("Stable", 3)
        stays.leave()
    await_state("Empty", 4)
    records = ("--bootstrap-servers", broker.bootstrap_servers, "--source", "offsets")
    alone, both, inferred = report(group, *log), report(group, *records, *log), report(group, *records)
    causes = [
        ("member joined", "stays"),
        ("member joined", "dies"),
        ("session timeout", "dies"),
        ("member left", "stays"),
    ]
    for told in (alone, both):
        named = [(r["cause"]["kind"], r["cause"]["member_ids"][0][:-37]) for r in told["rebalances"]]
        assert named == causes
        expired = told["rebalances"][2]
        assert "heartbeat expiration" in expired["cause"]["reason"]
        assert expired["preparing_ms"] is not None, "the log has the beginning"
        assert (told["state"], told["members"]) == ("Empty", [])
    assert alone["rebalances"][2].get("moves") is None
    assert both["rebalances"][2]["moves"]["partitions"] == PARTITIONS
    assert "the broker log explains 4 of 4 changes in the records" in both["notes"]
    assert inferred["rebalances"][2]["cause"]["kind"] == "member left or expired"
