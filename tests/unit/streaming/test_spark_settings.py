"""Spark's settings: which may be given, what a cluster needs, and where executors find the driver."""

import os
import re

import pytest

from embedded.jars import spark_jars
from kafka_why.connections.client_config import SETTINGS
from kafka_why.connections.client_login import JAAS
from streaming.query.spark_settings import (
    CHECKPOINT_FILE_MANAGER,
    CLUSTER_TASK_FAILURES,
    FIXED,
    LOOPBACK,
    REDACTED_OPTIONS,
    REDACTED_SETTINGS,
    REDACTED_TEXTS,
    SettingRefused,
    check_given,
    check_master,
    cluster_settings,
    find_driver_host,
    hosts_of,
    is_local,
    jar_settings,
    local_settings,
    merged,
    settings,
)

MASTER = "spark://127.0.0.1:7077"


@pytest.mark.parametrize(
    ("master", "local"),
    [
        (None, True),
        ("local", True),
        ("local[4]", True),
        ("local[*, 2]", True),
        ("local-cluster[2,1,1024]", False),
        ("spark://a:7077,b:7077", False),
        ("k8s://https://10.0.0.1:6443", False),
        ("yarn", False),
    ],
)
def test_accepted_spark_masters_are_recognized_as_local_or_remote(master: str | None, local: bool) -> None:
    if master is not None:
        check_master(master)
    assert is_local(master) is local


@pytest.mark.parametrize("master", ["", "cluster", "local[x]", "spark://a", "spark://a:7077,b", "http://a:1"])
def test_invalid_spark_master_is_refused(master: str) -> None:
    with pytest.raises(SettingRefused, match="is not a master of Spark"):
        check_master(master)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("spark.master", "is given by --master"),
        ("spark.sql.shuffle.partitions", "is given by --state-partitions"),
        ("executor.memory", "does not begin with 'spark.'"),
        *((name, why) for name, why in FIXED.items()),
    ],
)
def test_spark_setting_that_correctness_depends_on_is_refused_with_a_reason(name: str, why: str) -> None:
    with pytest.raises(SettingRefused, match=rf"{name} .*{why}"):
        check_given({"spark.executor.memory": "1g", name: "1"})


def test_users_spark_settings_override_ours_and_add_jars() -> None:
    check_given(given := {"spark.locality.wait": "1s", "spark.jars": "hadoop-aws.jar"})
    both = merged(settings() | jar_settings(MASTER), given)
    assert both["spark.locality.wait"] == "1s"
    assert both["spark.speculation"] == "false"
    *ours, added = both["spark.jars"].split(",")
    assert (len(ours), added) == (len(spark_jars()), "hadoop-aws.jar")


def test_local_spark_listens_only_on_loopback_and_sends_no_jars() -> None:
    assert local_settings() == {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
    assert list(jar_settings(None)) == ["spark.driver.extraClassPath"]


def test_spark_cluster_gets_the_jars_and_retries_failed_tasks() -> None:
    found = cluster_settings(MASTER, None) | jar_settings(MASTER)
    assert found["spark.jars"].split(",") == [jar.as_uri() for jar in spark_jars()]
    assert found["spark.driver.extraClassPath"].split(os.pathsep) == [str(jar) for jar in spark_jars()]
    assert int(found["spark.task.maxFailures"]) == CLUSTER_TASK_FAILURES > 1
    assert CHECKPOINT_FILE_MANAGER not in found, "the checkpoint's place decides"


def test_driver_host_is_the_address_that_reaches_the_master() -> None:
    assert find_driver_host("spark://127.0.0.1:7077") == LOOPBACK
    assert find_driver_host("spark://no-such-host.invalid:7077,127.0.0.1:7077") == LOOPBACK
    for master in ("spark://no-such-host.invalid:7077", "yarn"):
        with pytest.raises(SettingRefused, match="Give it by --driver-host"):
            find_driver_host(master)


def test_driver_listens_on_all_addresses_if_its_host_is_another_machines() -> None:
    """The name of a Kubernetes service leads to the driver, and is no address of its machine."""
    own = cluster_settings("yarn", LOOPBACK)
    assert (own["spark.driver.host"], own["spark.driver.bindAddress"]) == (LOOPBACK, LOOPBACK)
    other = cluster_settings("yarn", "driver.invalid")
    assert (other["spark.driver.host"], other["spark.driver.bindAddress"]) == ("driver.invalid", "0.0.0.0")


@pytest.mark.parametrize(
    ("master", "hosts"),
    [
        ("spark://a:7078,b:7079", [("a", 7078), ("b", 7079)]),
        ("k8s://https://api:6443", [("api", 6443)]),
        ("k8s://api:443", [("api", 443)]),
        ("yarn", []),
    ],
)
def test_hosts_of_a_spark_master_url_are_parsed(master: str, hosts: list[tuple[str, int]]) -> None:
    assert hosts_of(master) == hosts


def test_settings_of_secured_clients_are_hidden_in_plans() -> None:
    hidden = re.compile(settings()[REDACTED_OPTIONS])
    names = [name for name in SETTINGS if name.startswith(("ssl.", "sasl."))]
    assert not [name for name in names if not hidden.search(f"kafka.{name}")]
    assert not hidden.search("kafka.bootstrap.servers")
    texts = re.compile(settings()[REDACTED_TEXTS])
    login = 'a.b.ScramLoginModule required username="u" password="se;c\\"ret";'
    key = "-----BEGIN PRIVATE KEY-----\nsecret\n-----END PRIVATE KEY-----"
    assert texts.sub("", f"[x={login}, y={key}, z=1]") == "[x=, y=, z=1]"
    names_hidden = re.compile(settings()[REDACTED_SETTINGS])
    assert not [
        name for name in (JAAS, "ssl.keystore.key", "KAFKA_PASSWORD") if not names_hidden.search(name)
    ]


def test_users_spark_redaction_pattern_is_merged_with_ours() -> None:
    for name in (REDACTED_OPTIONS, REDACTED_SETTINGS, REDACTED_TEXTS):
        hidden = re.compile(merged(settings(), {name: "mine"})[name])
        assert hidden.search("mine")
        assert hidden.search("x.PlainLoginModule required p=1; password kafka.ssl.keystore.key")
