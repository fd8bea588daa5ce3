"""Prometheus' own reading of its settings, of the alerts and of the dashboard's expressions."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.deploy.podman import ROOT

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


def test_settings_and_alerts_are_understood(tmp_path: Path) -> None:
    settings = (DEPLOY / "prometheus.yml").read_text()
    (tmp_path / "prometheus.yml").write_text(settings.replace("/etc/prometheus/", f"{tmp_path}/"))
    shutil.copy(DEPLOY / "alerts.yml", tmp_path)
    rules = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"]
    said = promtool("check", "config", str(tmp_path / "prometheus.yml"))
    assert f"{sum(len(group['rules']) for group in rules)} rules found" in said


def test_the_dashboards_expressions_are_understood(tmp_path: Path) -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    expressions = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    # Grafana replaces its variables before it asks: a time, and values of labels.
    asked = [re.sub(r"\$\w+", "x", re.sub(r"\$__\w+", "1m", expression)) for expression in expressions]
    rules = [{"record": f"panel:{number}", "expr": expression} for number, expression in enumerate(asked)]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"{len(expressions)} rules found" in promtool("check", "rules", str(tmp_path / "rules.yml"))
