"""Prints the result of each test at once: a run on a borrowed machine can be cut off."""

from __future__ import annotations

import pytest

SHOWN = 1_500


class AtOnce:
    """Prints failures, and what was measured, after each test."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.when == "call" or report.failed:
            for text in (report.capstderr, report.longreprtext if report.failed else ""):
                if text.strip():
                    terminal.write_line(f"\n{text.strip()[-SHOWN:]}")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(AtOnce(config))
