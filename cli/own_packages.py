"""Check that Python finds the coordinator's packages under their names, which packages on PyPI have, too."""

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
"""The coordinator's top-level packages. An import goes from one of them to those before it only."""

ROOT = Path(__file__).resolve().parents[1]


class ForeignPackage(click.ClickException):
    """The error when another package has the name of one of the project's packages."""

    exit_code = 78  # EX_CONFIG of sysexits.h


def check_own_packages() -> None:
    """Raise ForeignPackage if one of these names leads to another package, or to none. Imports nothing."""
    wrong = {name: found for name in OWN_PACKAGES if (found := _found(name)) != ROOT / name / "__init__.py"}
    if wrong:
        which = ", ".join(f"'{name}' is {found or 'not found'}" for name, found in wrong.items())
        raise ForeignPackage(
            f"the project needs its own packages, which are in {ROOT}, but {which}: install it in a virtual "
            "environment that has nothing else, and take folders with such names off PYTHONPATH"
        )


def _found(name: str) -> Path | None:
    """Return the file that an import of `name` would run, or None."""
    module = sys.modules.get(name)
    spec = module.__spec__ if module is not None else find_spec(name)
    return Path(spec.origin).resolve() if spec is not None and spec.origin is not None else None
