"""A real Chromium, driven by Playwright, and the page as ``stark view`` serves it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stark_process import command, environment

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PATIENCE_MS = 120_000  # a busy machine can be twenty times as slow
NAMES = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def open_browser() -> Iterator[Browser]:
    """A browser without windows. Without one the test is skipped; where CI=true it fails."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        missing = "There is no Chromium. Install the system's package: apt-get install chromium"
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        # The pages are our own, and Chromium's sandbox needs rights that containers rarely have.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        browser.close()


@contextmanager
def serve(folder: Path, *words: object, **extra: object) -> Iterator[str]:
    """The address of ``stark view`` in a process of its own."""
    process = subprocess.Popen(
        command("view", folder, "--port", 0, *words), stdout=subprocess.PIPE, text=True, env=environment(**extra)
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert "http://" in line, line
        yield next(word for word in line.split() if word.startswith("http://"))
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


@contextmanager
def open_page(browser: Browser, address: str, **options: object) -> Iterator[Page]:
    """A page that fails the test if anything in it fails, or if it asks another server."""
    context = browser.new_context(**options)
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    page.on("dialog", lambda dialog: faults.append(f"dialog {dialog.message}") or dialog.dismiss())
    home = "/".join(address.split("/")[:3])
    page.on("request", lambda request: None if request.url.startswith(home) else faults.append(request.url))
    page.goto(address)
    yield page
    context.close()
    assert faults == []
