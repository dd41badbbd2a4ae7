"""Clock: a clock that a test sets."""


class Clock:
    """Returns the seconds that it was set to; to sleep sets it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
