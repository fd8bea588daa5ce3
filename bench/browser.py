"""A real browser: Chromium without a window, of the system's packages."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
MISSING = "no chromium and chromedriver on this machine: Debian has packages chromium and chromium-driver"

_OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


@contextmanager
def browser(folder: Path, width: int = 1280, height: int = 900) -> Iterator[webdriver.Chrome]:
    """Start a browser with its own profile in a folder, and a window of this size. It contacts no host by
    itself.
    """
    assert CHROMIUM is not None and DRIVER is not None, MISSING
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for option in (*_OPTIONS, f"--user-data-dir={folder}"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    try:
        set_screen(driver, width, height)
        yield driver
    finally:
        driver.quit()


def set_screen(driver: webdriver.Chrome, width: int, height: int = 900, *, dark: bool = False) -> None:
    """Set the size of the window, below 600 pixels that of a phone, and light or dark colours."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})


def errors_of(driver: webdriver.Chrome) -> list[str]:
    """Return the errors that the browser has logged: scripts that failed, and what the page's own policy
    refused.
    """
    logged: list[dict[str, str]] = driver.get_log("browser")  # type: ignore[no-untyped-call]
    return [entry["message"] for entry in logged if entry["level"] == "SEVERE"]
