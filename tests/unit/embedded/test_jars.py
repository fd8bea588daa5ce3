"""Jar lists, checks after a download, the cache, the Java that is chosen, and messages if there is none."""

import hashlib
import importlib.metadata
import socket
from pathlib import Path
from typing import Literal

import pytest

from embedded import broker as embedded_broker
from embedded import jars, java
from embedded.broker import (
    BrokerFailed,
    BrokerSettingRefused,
    EmbeddedBroker,
    Ports,
    check_broker_settings,
    escaped,
    write_settings,
)
from embedded.jars import (
    JARS_TOML,
    PROGRAM_SETS,
    JarsUnavailable,
    LockedFile,
    find_faults,
    read_jar_sets,
    render_lock,
)
from embedded.java import QUICK_COMPILER, Artifact, JavaNotFound, find_java
from tests.harness.started_processes import StartedProcesses


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty cache folder. No repository is reachable."""
    monkeypatch.setenv("SPARK_GROUP_COORDINATOR_CACHE", str(tmp_path / "cache"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    monkeypatch.setenv("DEFAULT_ARTIFACT_REPOSITORY", f"http://127.0.0.1:{port}/")
    return tmp_path / "cache"


def locked(name: str, content: bytes) -> LockedFile:
    return LockedFile(name, len(content), hashlib.sha256(content).hexdigest())


def publish(repository: Path, artifact: Artifact, content: bytes) -> None:
    """Put an artifact without dependencies into a folder laid out as a Maven repository."""
    group, name, version = artifact
    folder = repository / group.replace(".", "/") / name / version
    folder.mkdir(parents=True)
    (folder / f"{name}-{version}.jar").write_bytes(content)
    (folder / f"{name}-{version}.pom").write_text(
        f"<project><modelVersion>4.0.0</modelVersion><groupId>{group}</groupId>"
        f"<artifactId>{name}</artifactId><version>{version}</version></project>"
    )


def declare(monkeypatch: pytest.MonkeyPatch, folder: Path, files: list[LockedFile]) -> Path:
    """Make the module read a `jars.toml` of two sets with the one artifact ``org.example:thing:1.0``."""
    monkeypatch.setattr(jars, "SetName", Literal["spark", "broker"])
    table = 'transitive = false\nartifacts = ["org.example:thing:1.0"]\n'
    path = folder / "jars.toml"
    lock_mark = "# ---- written by --lock: do not edit below ----\n"
    text = "".join(f"[{name}]\n{table}" for name in PROGRAM_SETS) + lock_mark
    path.write_text(text + render_lock(dict.fromkeys(PROGRAM_SETS, files)))
    monkeypatch.setattr(jars, "JARS_TOML", path)
    return path


@pytest.fixture
def repository(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a repository that has the artifact of the declared sets."""
    publish(tmp_path / "repository", Artifact("org.example", "thing", "1.0"), b"thing")
    declare(monkeypatch, tmp_path, [locked("thing-1.0.jar", b"thing")])
    monkeypatch.setenv("DEFAULT_ARTIFACT_REPOSITORY", (tmp_path / "repository").as_uri())
    return tmp_path / "repository"


def test_every_required_jar_is_in_the_lock_file_with_its_hash() -> None:
    sets = read_jar_sets(JARS_TOML.read_text())
    assert {"broker", "spark", "tools"} <= sets.keys()
    for jar_set in sets.values():
        names = {file.name for file in jar_set.files}
        assert {f"{artifact.name}-{artifact.version}.jar" for artifact in jar_set.artifacts} <= names
        assert all(len(file.sha256) == 64 and file.size_bytes > 0 for file in jar_set.files)


def test_the_jars_of_spark_have_pysparks_version() -> None:
    spark = read_jar_sets(JARS_TOML.read_text())["spark"]
    artifacts = spark.artifacts
    assert len(spark.files) == len(artifacts) == 4, "exactly those that it asks for"
    versions = {it.name: it.version for it in artifacts if it.group == "org.apache.spark"}
    assert versions.keys() == {"spark-sql-kafka-0-10_2.13", "spark-token-provider-kafka-0-10_2.13"}
    assert set(versions.values()) == {importlib.metadata.version("pyspark")}


def test_jar_errors_name_each_faulty_file(tmp_path: Path) -> None:
    good, changed, lost = (locked(name, name.encode()) for name in ("good.jar", "changed.jar", "lost.jar"))
    (tmp_path / "good.jar").write_bytes(b"good.jar")
    (tmp_path / "changed.jar").write_bytes(b"changed.JAR")
    (tmp_path / "extra.jar").write_bytes(b"")
    found = hashlib.sha256(b"changed.JAR").hexdigest()
    assert find_faults(tmp_path, (good, changed, lost)) == [
        "lost.jar: missing",
        "extra.jar: not in jars.toml",
        f"changed.jar: SHA-256 is {found}, pinned is {changed.sha256}",
    ]


def test_jar_is_fetched_once_then_read_from_the_cache(
    cache: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (jar,) = jars.spark_jars()
    assert jar.read_bytes() == b"thing"
    assert jar.is_relative_to(cache)
    monkeypatch.setattr(jars, "retrieve", lambda *_, **__: pytest.fail("nothing is to be fetched"))
    assert jars.spark_jars() == [jar]


def test_jar_cut_short_in_the_cache_is_fetched_again(repository: Path) -> None:
    (jar,) = jars.spark_jars()
    jar.write_bytes(b"th")
    assert jars.spark_jars() == [jar]
    assert jar.read_bytes() == b"thing"


@pytest.mark.usefixtures("repository")
def test_jar_with_other_content_is_refused_and_not_cached(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(monkeypatch, tmp_path, [locked("thing-1.0.jar", b"good")])
    with pytest.raises(JarsUnavailable, match=r"not the ones pinned in jars\.toml:\n  thing-1\.0\.jar:"):
        jars.spark_jars()
    assert not list(cache.rglob("*.jar"))


@pytest.mark.usefixtures("repository")
def test_lock_file_lists_the_resolved_jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = declare(monkeypatch, tmp_path, [])
    head = path.read_text().partition("[locked]")[0]
    jars.lock()
    assert path.read_text().startswith(head)
    for jar_set in read_jar_sets(path.read_text()).values():
        assert jar_set.files == (locked("thing-1.0.jar", b"thing"),)


@pytest.mark.usefixtures("cache")
def test_unreachable_repository_names_every_jar_and_why() -> None:
    with pytest.raises(JarsUnavailable) as failure:
        jars.spark_jars()
    lines = str(failure.value).splitlines()
    assert lines[0] == "These spark jars could not be downloaded:"
    artifacts = read_jar_sets(JARS_TOML.read_text())["spark"].artifacts
    assert [line.strip().split(": ")[0] for line in lines[1:]] == [
        ":".join(artifact) for artifact in artifacts
    ]
    assert all("Connection refused" in line for line in lines[1:])


@pytest.mark.parametrize(
    ("mirror_of", "used"),
    [("central", True), ("*", True), ("external:*", True), ("*, !central", False), ("other", False)],
)
def test_mirror_from_mavens_settings_is_used_for_matching_repositories(
    mirror_of: str, used: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / ".m2" / "settings.xml"
    settings.parent.mkdir()
    settings.write_text(
        '<settings xmlns="http://maven.apache.org/SETTINGS/1.2.0"><mirrors><mirror><id>ours</id>'
        f"<url>http://mirror.invalid/maven</url><mirrorOf>{mirror_of}</mirrorOf></mirror></mirrors></settings>"
    )
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("DEFAULT_ARTIFACT_REPOSITORY", raising=False)
    assert java.maven_mirror() == ("http://mirror.invalid/maven" if used else None)


def fake_java(home: Path, script: str) -> Path:
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)
    return java


def report(home: str, version: str) -> str:
    return f"printf '    java.home = {home}\\n    java.specification.version = {version}\\n' >&2"


def test_java_that_is_too_old_or_broken_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = fake_java(tmp_path / "old", report("/opt/old", "1.8"))
    broken = fake_java(tmp_path / "broken", "exit 3")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", str(broken.parent))
    with pytest.raises(JavaNotFound) as failure:
        find_java()
    assert str(failure.value).splitlines() == [
        "Java 17 or newer is needed. Looked at JAVA_HOME and PATH:",
        f"  JAVA_HOME: {old} is Java 8",
        f"  PATH: {broken} does not run",
        "Install a JDK or a full JRE, and set JAVA_HOME to its folder or put its java on PATH.",
    ]


def test_java_lacking_a_module_for_spark_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_down = fake_java(tmp_path, f"[ $1 = --add-modules ] && exit 1\n{report('/opt/small', '21')}")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(JavaNotFound, match=f"JAVA_HOME: {cut_down} lacks the module jdk.incubator.vector"):
        find_java()


def test_clients_of_a_broker_get_its_client_settings(tmp_path: Path) -> None:
    secured = {"security.protocol": "SSL"}
    broker = EmbeddedBroker(tmp_path, ports=Ports(20_001, 20_002), client_properties=secured)
    assert broker.client_config.kafka_python_settings()["security_protocol"] == "SSL"
    assert broker.client_config.bootstrap_servers == "127.0.0.1:20001"


@pytest.mark.parametrize("is_long_running", [False, True])
def test_only_long_running_broker_has_the_optimizing_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_long_running: bool
) -> None:
    java, commands = tmp_path / "java", tmp_path / "commands"
    java.write_text(f'#!/bin/sh\necho "$@" >> {commands}\ncase "$*" in *kafka.Kafka*) exit 1; esac\n')
    java.chmod(0o700)
    monkeypatch.setattr(embedded_broker, "find_java", lambda: java)
    with pytest.raises(BrokerFailed, match="it ended with exit code 1"):
        EmbeddedBroker(tmp_path / "data", classpath=(), is_long_running=is_long_running).start()
    format_, server = commands.read_text().splitlines()
    assert QUICK_COMPILER in format_.split()
    assert (QUICK_COMPILER in server.split()) is not is_long_running


def test_failed_start_of_java_leaves_no_process_or_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "meta.properties").touch()  # its folder is formatted
    monkeypatch.setattr(embedded_broker, "find_java", lambda: tmp_path / "java")
    broker, started = EmbeddedBroker(tmp_path, classpath=()), StartedProcesses(monkeypatch)
    with pytest.raises(BrokerFailed, match=r"(?s)its JVM could not be started\..*FileNotFoundError"):
        broker.start()
    assert started.have_ended()
    assert broker.pid is None


@pytest.mark.parametrize(
    "name",
    [
        *(
            "listeners",
            "advertised.listeners",
            "listener.security.protocol.map",
            "listener.name.client.ssl.key",
        ),
        *("inter.broker.listener.name", "security.inter.broker.protocol", "controller.listener.names"),
        *("controller.quorum.voters", "process.roles", "node.id", "broker.id", "log.dir", "log.dirs"),
        *("metadata.log.dir", "LOG.DIRS"),
    ],
)
def test_settings_fixed_by_the_embedded_broker_cannot_be_set(name: str) -> None:
    with pytest.raises(BrokerSettingRefused, match=f"{name} cannot be set: the embedded broker is one node"):
        check_broker_settings({name: "1"})


@pytest.mark.parametrize(
    "name", ["default.replication.factor", "offsets.topic.replication.factor", "min.insync.replicas"]
)
def test_replication_settings_of_the_embedded_broker_can_only_be_one(name: str) -> None:
    check_broker_settings({name: "1"})
    with pytest.raises(BrokerSettingRefused, match=f"{name} can only be 1, because there is one broker"):
        check_broker_settings({name: "3"})


@pytest.mark.parametrize("name", ["", "a b", "a\nlisteners", "#a", "ä"])
def test_invalid_broker_setting_name_is_refused(name: str) -> None:
    with pytest.raises(BrokerSettingRefused, match="is not the name of a broker setting"):
        check_broker_settings({name: "1"})


def test_setting_value_with_a_line_break_is_refused() -> None:
    with pytest.raises(
        BrokerSettingRefused, match=r"the value of num\.partitions has characters that cannot"
    ):
        check_broker_settings({"num.partitions": "1\nlisteners=CLIENT://0.0.0.0:9092"})


def test_setting_values_are_escaped_for_java() -> None:
    assert escaped(r"C:\kafka é 😀") == r"C:\\kafka \u00e9 \ud83d\ude00"


def test_settings_file_is_private_even_if_it_existed(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("an earlier version's")
    path.chmod(0o644)
    write_settings(path, {"password": "a\\b"})
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text() == "password=a\\\\b\n"
