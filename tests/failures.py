"""A plugin of pytest that prints a failure when it happens, not only when the whole suite has run."""

import pytest


@pytest.hookimpl(trylast=True)  # behind the terminal reporter
def pytest_configure(config: pytest.Config) -> None:
    """Begin to print failures, in the one process that writes to the terminal (workers of pytest-xdist do not)."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None:
        config.pluginmanager.register(_FailuresAtOnce(terminal))


class _FailuresAtOnce:
    """What is printed when a test fails: its name and its traceback."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self.terminal = terminal

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Print a failed report."""
        if report.failed:
            self.terminal.ensure_newline()
            self.terminal.write_sep("_", f"{report.when} of {report.nodeid} failed", red=True)
            self.terminal.write_line(report.longreprtext)
