"""A queue that is fair between clients: first come first served within a client, clients in turn. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Each client has its own line; `take` serves the lines round-robin.

    The client whose item was taken goes to the back, so one client with a hundred turns delays another with one
    turn by a single turn, not by a hundred.
    """

    def __init__(self) -> None:
        self._lines: dict[int, deque[T]] = {}

    def __len__(self) -> int:
        return sum(len(line) for line in self._lines.values())

    def __iter__(self) -> Iterator[T]:
        for line in self._lines.values():
            yield from line

    def push(self, client: int, item: T) -> None:
        """Put `item` at the end of the line of `client`."""
        self._lines.setdefault(client, deque()).append(item)

    def remove(self, client: int, item: T) -> None:
        """Take `item` out of its line; raises `ValueError` when it is not there."""
        line = self._lines.get(client)
        if line is None:
            raise ValueError("the client has no line")
        line.remove(item)
        if not line:
            del self._lines[client]

    def take(self, fits: Callable[[T], bool]) -> T | None:
        """Take out the first head of a line that `fits`, or None when no head fits.

        Only heads are asked: a client's own order is never changed, and a small item behind a large one of the
        same client waits for it.
        """
        for client, line in self._lines.items():
            if fits(line[0]):
                return self._take_out(client, 0)
        return None

    def take_any(self, fits: Callable[[T], bool]) -> T | None:
        """Take out the first item that `fits`, passing over those of the same client that wait for something else."""
        for client, line in self._lines.items():
            for position, item in enumerate(line):
                if fits(item):
                    return self._take_out(client, position)
        return None

    def _take_out(self, client: int, position: int) -> T:
        """Take an item out of a line; the client goes to the back."""
        line = self._lines.pop(client)
        item = line[position]
        del line[position]
        if line:
            self._lines[client] = line
        return item
