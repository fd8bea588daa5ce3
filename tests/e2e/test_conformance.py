"""The same scripts at a real broker's own coordinator and at ours: every difference is a kept one."""

import pytest

from tests.conformance.compare import unkept, unused
from tests.conformance.random_scripts import random_case
from tests.conformance.report import RANDOM_SCRIPTS, play_all
from tests.conformance.script import load
from tests.conformance.servers import SETTINGS, running

pytestmark = pytest.mark.e2e

QUICK_RANDOM_SCRIPTS = 8


def test_quick_scripts(tmp_path_factory: pytest.TempPathFactory) -> None:
    cases = [case for case in load() if case.quick and case.servers == "plain"]
    cases += [random_case(RANDOM_SCRIPTS + seed) for seed in range(QUICK_RANDOM_SCRIPTS)]
    with running(tmp_path_factory.mktemp("conformance"), SETTINGS["plain"]) as servers:
        assert not list(map(str, unkept(servers.play(cases))))


@pytest.mark.long
@pytest.mark.timeout(1_200)
def test_all_scripts() -> None:
    played = play_all()
    assert not list(map(str, unkept(played)))
    assert not unused(played)
