"""The locks of Python packages: they have version and hash of every package that the set-up installs."""

import re
import tomllib
from importlib import metadata
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]
PROJECT, EXPLAINER = (
    tomllib.loads((ROOT / folder / "pyproject.toml").read_text()) for folder in (".", "kafka_why")
)
LOCKS = ("requirements.lock", "requirements-dev.lock")
ENTRY = re.compile(r"^(\S+==[^\\]+?) \\$((?:\n +--hash=sha256:[0-9a-f]{64}(?: \\)?$)+)", re.MULTILINE)


def locked(name: str) -> dict[str, Requirement]:
    """Return the requirements of a lock by name. Asserts that each has a hash."""
    text = (ROOT / name).read_text()
    found = [Requirement(match[1]) for match in ENTRY.finditer(text)]
    assert found
    assert len(found) == len(re.findall(r"^[^\s#]", text, re.MULTILINE)), (
        "each line is a package with its hashes"
    )
    return {canonicalize_name(requirement.name): requirement for requirement in found}


def wanted(name: str) -> list[Requirement]:
    """Return the direct requirements of both distributions and of their build."""
    extras = EXPLAINER["project"]["optional-dependencies"].values()
    texts = [*EXPLAINER["project"]["dependencies"], *chain(*extras), *PROJECT["build-system"]["requires"]]
    texts += [text for text in PROJECT["project"]["dependencies"] if not text.startswith("kafka-why")]
    if name == "requirements-dev.lock":
        texts += PROJECT["project"]["optional-dependencies"]["dev"]
    return [Requirement(text) for text in texts]


@pytest.mark.parametrize("name", LOCKS)
def test_lock_satisfies_the_projects_requirements(name: str) -> None:
    pins = locked(name)
    for requirement in wanted(name):
        (pin,) = pins[canonicalize_name(requirement.name)].specifier
        assert requirement.specifier.contains(pin.version), f"{requirement}: run `make lock`"


def test_installed_packages_match_the_lock() -> None:
    for name, pin in locked("requirements-dev.lock").items():
        if pin.marker is None or pin.marker.evaluate():
            assert pin.specifier.contains(metadata.version(name)), pin


def test_the_set_up_takes_no_package_without_its_hash() -> None:
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    setup = re.search(r"^\$\(PACKAGES\):.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    assert setup is not None
    hashes, no_packages = (line.split() for line in setup[1].splitlines() if "pip install" in line)
    assert {"--require-hashes", "--requirement", "requirements-dev.lock"} <= {*hashes}
    assert "--no-deps --no-build-isolation --editable kafka_why --editable ." in " ".join(no_packages)
