"""Checks a page with axe-core, by the rules of WCAG and axe-core's own good practices."""

import zipfile
from functools import cache

from selenium.webdriver import Chrome

from embedded.jars import jar_paths

SERIOUS = ("serious", "critical")
_RUN = """
const done = arguments[arguments.length - 1];
const places = (one) => one.nodes.map((node) => node.html).slice(0, 5);
axe.run(document, {resultTypes: ["violations"]}).then(
  (found) => done(found.violations.map((one) => [one.impact, one.id, places(one)])),
  (error) => done([["critical", String(error), []]]));
"""


def serious_faults(driver: Chrome) -> list[str]:
    """Return the violations on the current page that prevent people from reading it."""
    driver.execute_script(_axe())
    violations: list[tuple[str, str, list[str]]] = driver.execute_async_script(_RUN)
    return [f"{impact}: {rule} at {places}" for impact, rule, places in violations if impact in SERIOUS]


@cache
def _axe() -> str:
    (jar,) = jar_paths("axe")
    with zipfile.ZipFile(jar) as archive:
        return archive.read("axe.min.js").decode()
