"""What axe-core finds on a page: faults by the rules of WCAG, and by its own good practices."""

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
    """Return the faults of the shown page that keep people from reading it, [] if there are none."""
    driver.execute_script(_axe())
    found: list[tuple[str, str, list[str]]] = driver.execute_async_script(_RUN)
    return [f"{impact}: {rule} at {places}" for impact, rule, places in found if impact in SERIOUS]


@cache
def _axe() -> str:
    (jar,) = jar_paths("axe")
    with zipfile.ZipFile(jar) as archive:
        return archive.read("axe.min.js").decode()
