"""Check that Python imports the coordinator's packages, because packages on PyPI have the same names."""

import sys
from importlib.util import find_spec
from pathlib import Path

import click

OWN_PACKAGES = (
    "assignors",
    "state",
    "checkpoints",
    "records",
    "embedded",
    "streaming",
    "clients",
    "operations",
    "gateway",
    "cli",
)
"""The coordinator's top-level packages. Each imports only packages before it in this list."""

ROOT = Path(__file__).resolve().parents[1]


class ForeignPackage(click.ClickException):
    """The error when another package has the name of one of the project's packages."""

    exit_code = 78  # EX_CONFIG of sysexits.h


def check_own_packages() -> None:
    """Raise ForeignPackage if a name of OWN_PACKAGES leads to another package or to none. Import nothing."""
    foreign = {
        name: file for name in OWN_PACKAGES if (file := _imported_file(name)) != ROOT / name / "__init__.py"
    }
    if foreign:
        which = ", ".join(f"'{name}' is {file or 'not found'}" for name, file in foreign.items())
        raise ForeignPackage(
            f"the project needs its own packages, which are in {ROOT}, but {which}: install it in a virtual "
            "environment that has nothing else, and take folders with such names off PYTHONPATH"
        )


def _imported_file(name: str) -> Path | None:
    """Return the file that an import of `name` would run, or None."""
    module = sys.modules.get(name)
    spec = module.__spec__ if module is not None else find_spec(name)
    return Path(spec.origin).resolve() if spec is not None and spec.origin is not None else None
