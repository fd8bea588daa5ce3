"""Prometheus' own reading of its settings, of the alerts and of the dashboard's expressions."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.podman import ROOT
from tests.harness.lag_stories import GROUP, LENGTH_S, SCRAPE_S, STORIES, TOPIC, TURN_S, recorded

DEPLOY = ROOT / "deploy"
DASHBOARD = DEPLOY / "grafana" / "dashboards" / "group-coordinator.json"


@pytest.fixture(autouse=True)
def _promtool_is_here() -> None:
    if shutil.which("promtool") is None:
        pytest.skip("not on this machine: promtool")


def promtool(*words: str) -> str:
    done = subprocess.run(["promtool", *words], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_prometheus_accepts_the_settings_and_alerts(tmp_path: Path) -> None:
    settings = (DEPLOY / "prometheus.yml").read_text()
    (tmp_path / "prometheus.yml").write_text(settings.replace("/etc/prometheus/", f"{tmp_path}/"))
    shutil.copy(DEPLOY / "alerts.yml", tmp_path)
    rules = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"]
    said = promtool("check", "config", str(tmp_path / "prometheus.yml"))
    assert f"{sum(len(group['rules']) for group in rules)} rules found" in said


def test_prometheus_accepts_the_dashboards_expressions(tmp_path: Path) -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    expressions = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    # Grafana replaces its variables before it asks: a time, and values of labels.
    asked = [re.sub(r"\$\w+", "x", re.sub(r"\$__\w+", "1m", expression)) for expression in expressions]
    rules = [{"record": f"panel:{number}", "expr": expression} for number, expression in enumerate(asked)]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"{len(expressions)} rules found" in promtool("check", "rules", str(tmp_path / "rules.yml"))


LABELS = {"consumergroup": GROUP, "topic": TOPIC}
PAGE = "https://page.example:9443/"
FIRED_S = {
    "stuck": ("PartitionsStuck", 130),
    "poison record": ("PartitionsStuck", 130),
    "slow": ("FallingBehind", 540),
    "no members": ("PartitionsWithoutOwner", 420),
}
"""The stories with an alert, and the seconds from the turn of the story until it fires, as in docs/lag.md."""
OF_LAGS = ("PartitionsStuck", "FallingBehind", "PartitionsWithoutOwner")
REASONS = {
    "PartitionsStuck": (
        "Group orders has stood at the same offset of 1 partition(s) of purchases for two minutes while "
        "records come, and their owners have not left: look for a record that they cannot process, or for a "
        "call that does not return. In a classic group that is observed it may be a rebalance that does not "
        "end."
    ),
    "FallingBehind": (
        "Group orders commits, but its lag rises on 1 partition(s) of purchases: records come faster than "
        "its members consume them."
    ),
    "PartitionsWithoutOwner": (
        "Records wait on 1 partition(s) of purchases for group orders, and no member holds them: its "
        "consumers do not run, or its assignment leaves these partitions out."
    ),
}


def expected(alert: str) -> list[dict[str, Any]]:
    (groups,) = yaml.safe_load((DEPLOY / "alerts.yml").read_text()).values()
    (rule,) = (rule for group in groups for rule in group["rules"] if rule["alert"] == alert)
    annotations = {
        "summary": REASONS[alert],
        "description": rule["annotations"]["description"],
        "page": f"{PAGE}group?id={GROUP}",
    }
    return [{"exp_labels": {**LABELS, "severity": "warning"}, "exp_annotations": annotations}]


def alert_tests(name: str) -> list[dict[str, Any]]:
    """Return the tests of an alert: it is silent until its time, then fires with its reason, and no other
    fires.
    """
    fired, after_s = FIRED_S.get(name, ("", LENGTH_S))
    at_s = TURN_S + after_s
    times_s = (TURN_S, at_s - SCRAPE_S, at_s, LENGTH_S - SCRAPE_S)
    return [
        {
            "eval_time": f"{time_s}s",
            "alertname": alert,
            "exp_alerts": expected(alert) if alert == fired and time_s >= at_s else [],
        }
        for alert in OF_LAGS
        for time_s in times_s
        if time_s < LENGTH_S
    ]


def test_each_lag_alert_fires_only_for_its_own_problem(tmp_path: Path) -> None:
    labels = ",".join(f'{name}="{value}"' for name, value in LABELS.items())
    cases = [
        {
            "name": name,
            "interval": f"{SCRAPE_S}s",
            "external_labels": {"page_url": PAGE},
            "input_series": [
                {"series": f"{gauge}{{{labels}}}", "values": " ".join(map(str, values))}
                for gauge, values in recorded(story).items()
            ],
            "alert_rule_test": alert_tests(name),
        }
        for name, story in STORIES.items()
    ]
    shutil.copy(DEPLOY / "alerts.yml", tmp_path)
    given = {"rule_files": ["alerts.yml"], "evaluation_interval": f"{SCRAPE_S}s", "tests": cases}
    (tmp_path / "tests.yml").write_text(yaml.safe_dump(given))
    assert "SUCCESS" in promtool("test", "rules", str(tmp_path / "tests.yml"))
