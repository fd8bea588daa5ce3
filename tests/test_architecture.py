"""Rules for the whole source tree: the direction of imports, sizes, names, no machine's paths."""

import ast
import importlib
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from itertools import chain
from pathlib import Path
from zipfile import ZipFile

import pytest
from importlinter import cli

import kafka_why
from cli.own_packages import OWN_PACKAGES

ROOT = Path(__file__).parents[1]
PACKAGES = ["kafka_why", *OWN_PACKAGES]
CODE_FOLDERS = [*PACKAGES, "bench", "tests"]
KAFKA_CLIENTS = {"KafkaConsumer", "KafkaProducer", "KafkaAdminClient", "Producer"}
MAX_FUNCTION_LINES = 70
MAX_MODULE_LINES = 400
# A file of the core has one request with all the rows that it decides, or one part of a protocol.
MAX_PROTOCOL_MODULE_LINES = 700

# Names that two public classes may have: the same thing of Kafka's groups and of RocketMQ's, or of two
# stages of a record. No name is added here.
SHARED_CLASS_NAMES = {
    "Address", "Change", "Claim", "ClassicMember", "Clock", "Cluster",
    "Effects", "EntryType", "GroupLog", "GroupSnapshot", "Header", "HistoryEntry",
    "MemberAssignment", "MemberState", "MemberSubscription", "ProtocolError", "Push", "RegexResolved",
    "Reply", "Report", "Request", "RequestRefused", "Response", "Row", "StepContext", "Verdict",
}  # fmt: skip
# Class names that say too little: each has meant several things.
VAGUE_CLASS_NAMES = {
    "Counts",
    "Facts",
    "Held",
    "Item",
    "Kind",
    "Looks",
    "Phase",
    "Place",
    "Room",
    "Seen",
    "Start",
}

# Home folders and the like: a path that is right on one machine only.
MACHINE_PATH = re.compile(rb"(?<![\w.])/(?:root|work|home/[a-z]\w*|Users/\w+)/")


MULTILINE_STRING = re.compile(r'"""(?:.|\n)*?"""')


def python_files(*folders: str) -> Iterator[Path]:
    """Yield the modules in the folders, without the copies that an installation leaves in `build`."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "build" not in path.relative_to(ROOT).parts:
                yield path


def test_imports_obey_the_contracts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    exit_code = cli.lint_imports(no_cache=True)
    assert exit_code == cli.EXIT_STATUS_SUCCESS, capsys.readouterr().out


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_are_imported_from_this_checkout(package: str) -> None:
    """PyPI has packages of these names too; an environment that holds one would shadow ours."""
    found = importlib.import_module(package).__file__
    assert found == str(ROOT / package / "__init__.py")
    assert (ROOT / package / "py.typed").exists()


def test_every_list_of_packages_is_the_same() -> None:
    """pyproject.toml installs and checks them."""
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    assert tool["setuptools"]["packages"]["find"]["include"] == [f"{name}*" for name in OWN_PACKAGES]
    assert tool["importlinter"]["root_packages"] == PACKAGES
    *_, acyclic = tool["importlinter"]["contracts"]
    assert acyclic["ancestors"] == PACKAGES


def test_kafka_why_distribution_has_all_packages_and_the_coordinators_version() -> None:
    project = tomllib.loads((ROOT / "kafka_why" / "pyproject.toml").read_text())
    inits = [path for path in python_files("kafka_why") if path.name == "__init__.py"]
    folders = sorted(path.parent.relative_to(ROOT) for path in inits)
    assert project["tool"]["setuptools"]["packages"] == [".".join(folder.parts) for folder in folders]
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (pin,) = [one for one in needed if one.startswith("kafka-why")]
    assert pin.endswith(f"=={kafka_why.__version__}")


def test_deleted_modules_are_not_installed_again(tmp_path: Path) -> None:
    """setuptools adds all that earlier builds left in the folder of builds."""
    source = tmp_path / "kafka_why"
    shutil.copytree(
        ROOT / "kafka_why", source, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
    )
    (left := source / "build" / "lib" / "kafka_why").mkdir(parents=True)
    (left / "deleted.py").touch()
    build = "from setuptools.build_meta import build_wheel; build_wheel('..')"
    subprocess.run([sys.executable, "-I", "-c", build], cwd=source, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with ZipFile(wheel) as archive:
        modules = {Path(name) for name in archive.namelist() if name.endswith(".py")}
    assert modules == {
        path.relative_to(ROOT) for path in python_files("kafka_why") if path.name != "setup.py"
    }


def test_functions_fit_on_a_screen() -> None:
    too_long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {length} lines"
        for path in python_files(*CODE_FOLDERS)
        if may_have_a_long_function(text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > MAX_FUNCTION_LINES
    ]
    assert too_long == []


def may_have_a_long_function(text: str) -> bool:
    """Return False if a line that is indented no more than its `def` follows soon enough in each function."""
    lines = MULTILINE_STRING.sub(lambda found: "\n" * found[0].count("\n"), text).splitlines()
    for at, line in enumerate(lines):
        body = lines[at + 1 : at + 1 + MAX_FUNCTION_LINES]
        if line.lstrip().startswith(("def ", "async def ")) and len(body) == MAX_FUNCTION_LINES:
            indent = len(line) - len(line.lstrip())
            if all(one[: indent + 1].isspace() or one[indent : indent + 1] in ("", ")") for one in body):
                return True
    return False


def test_modules_are_within_the_length_limit() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in python_files(*CODE_FOLDERS)}
    too_long = [
        f"{path.relative_to(ROOT)}: {n} lines"
        for path, n in lengths.items()
        if n > (MAX_PROTOCOL_MODULE_LINES if path.is_relative_to(ROOT / "state") else MAX_MODULE_LINES)
    ]
    assert too_long == []


def test_public_class_names_are_unique() -> None:
    names = Counter(
        name
        for path in python_files(*PACKAGES)
        for name in re.findall(r"(?m)^class ([^\W_]\w*)", path.read_text())
    )
    assert len(names) > 500
    assert {name for name, count in names.items() if count > 1} == SHARED_CLASS_NAMES
    assert names.keys() & VAGUE_CLASS_NAMES == set()


def test_every_test_is_run() -> None:
    """Every file of tests is run by `make test` or by another target of `.ci/run`, and whole."""
    parts = re.findall(r"(?m)^ *part \d+ make (.+)$", (ROOT / ".ci" / "run").read_text())
    run: list[str] = []
    for part in parts:
        targets, _, folders = part.partition("TESTS=")
        run += folders.strip('"').split()
        for words in chain.from_iterable(map(pytest_calls, [] if folders else targets.split())):
            if "-m" not in words and "-k" not in words:
                run += [word for word in words if word.startswith("tests/")] or default_paths()
    a_test = re.compile(r"(?m)^(async )?def test_")
    files = [path for path in (ROOT / "tests").rglob("*.py") if a_test.search(path.read_text())]
    assert [str(path) for path in files if not path.name.startswith("test_")] == []
    names = [path.relative_to(ROOT) for path in files]
    assert names
    assert [str(name) for name in names if not any(name.is_relative_to(one) for one in run)] == []


def pytest_calls(target: str) -> list[list[str]]:
    """Return the words of each call of pytest that a target of the Makefile makes."""
    _, _, rule = (ROOT / "Makefile").read_text().partition(f"\n{target}:")
    recipe = rule.split("\n\n")[0].splitlines()[1:]
    return [line.split()[1:] for line in recipe if line.startswith("\t$(PYTEST)")]


def default_paths() -> list[str]:
    """Return what pytest runs where it is given no path."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    paths: list[str] = settings["tool"]["pytest"]["ini_options"]["testpaths"]
    return paths


def test_source_has_no_machine_specific_paths() -> None:
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(listing, cwd=ROOT, capture_output=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout: no list of the project's files")
    files = [ROOT / name.decode() for name in listed.stdout.split(b"\0") if name]
    found = [
        f"{path.relative_to(ROOT)}: {match[0].decode()}"
        for path in files
        if path.is_file() and (match := MACHINE_PATH.search(path.read_bytes()))
    ]
    assert found == []


def calls(folders: Iterable[str], words: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the file and the called function of each call in files that have one of these words."""
    for path in python_files(*folders):
        text = path.read_text()
        if any(word in text for word in words):
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Call):
                    yield str(path.relative_to(ROOT)), ast.unparse(node.func)


def test_kafka_clients_are_created_in_one_module() -> None:
    """What a client needs to reach a cluster is set in one module. The demo has one of its own, and so have
    clients that are measured or make the load.
    """
    made_by = {
        file
        for file, called in calls([*PACKAGES, "bench"], KAFKA_CLIENTS)
        if called.split(".")[-1] in KAFKA_CLIENTS
    }
    rows = {f"bench/rows/{name}.py" for name in ("applications", "browser", "hostile", "passthrough")}
    others = {f"bench/{name}.py" for name in ("load/topics", "observing", "page_story")}
    measured = others | rows
    assert made_by == {"kafka_why/connections/kafka_clients.py", "cli/demo/consumer.py", *measured}


def test_only_one_module_prints() -> None:
    """What clients choose is escaped where it is printed, so commands have one way to print. The others print
    no client's text, or escape it themselves.
    """
    writers = {"print", "echo", "secho", "echo_via_pager", "Console", "EscapingConsole"}
    streams = {"sys.stdout.write", "sys.stderr.write", "sys.stdout.buffer.write", "sys.stderr.buffer.write"}
    printing = {
        f"{file}: {called}"
        for file, called in calls(PACKAGES, writers | {"sys.std"})
        if called in streams | writers or called.startswith("click.echo")
    }
    assert printing == {
        "kafka_why/cli/output.py: click.echo",
        "embedded/jars.py: Console",
        "embedded/jars.py: sys.stdout.write",
        "embedded/parent_watchdog.py: print",
        "cli/live_view.py: EscapingConsole",
        "streaming/replica/__main__.py: sys.stderr.write",
    }


def test_folders_for_data_are_private() -> None:
    """Other users must not read records past the brokers' ACLs. The others make folders of jars and classes,
    in a temporary folder, or below one whose mode the operator chose.
    """
    ways = ".mkdir", ".makedirs"
    makers = {file for file, called in calls(PACKAGES, ways) if called.endswith(ways)}
    assert makers == {
        "kafka_why/local_files.py",
        "embedded/java.py",
        "embedded/jars.py",
        "streaming/observing/output_folder.py",
        "streaming/query/class_archive.py",
        "streaming/query/pipeline.py",
    }
