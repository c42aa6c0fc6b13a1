"""Stands in for the capturing of CUDA graphs, on a CPU."""

from collections.abc import Callable


class Recorder:
    """Does what CUDA does, as far as it can be seen: warm up, record, replay on the same memory."""

    def __init__(self) -> None:
        self.recorded = self.replayed = 0

    def __call__(self, work: Callable[[], None]) -> Callable[[], None]:
        work()
        work()
        self.recorded += 1

        def replay() -> None:
            self.replayed += 1
            work()

        return replay


def addresses_only(work: Callable[[], None]) -> Callable[[], None]:
    """Run the work once and forget it, as a capture does."""
    work()
    return lambda: None
