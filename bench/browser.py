"""A real browser: the system's Chromium, headless."""

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
    """Start a browser with its profile in a folder. It contacts no host on its own."""
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
    """Set the window's size and its colour scheme. A width below 600 pixels emulates a phone."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})


def errors_of(driver: webdriver.Chrome) -> list[str]:
    """Return the errors that the browser has logged: failed scripts, and violations of the page's policy."""
    logged: list[dict[str, str]] = driver.get_log("browser")  # type: ignore[no-untyped-call]
    return [entry["message"] for entry in logged if entry["level"] == "SEVERE"]
