"""Runs of a script as copies of a process that waits at `make_private`."""

from typing import Any


class ForkedTrain:
    """To be completed."""

    def __init__(self, train: Any) -> None:
        self.train = train
