"""The text of an answer: several messages become one, and it ends where a stop sequence begins."""

from __future__ import annotations

BETWEEN_MESSAGES = "\n\n"
"""A response may hold several messages; a chat's answer is one, in which they must not run together."""


class Content:
    """Takes text piece by piece and gives out what may be shown; pieces may be cut anywhere.

    `stopped` says that a stop sequence has come; nothing is given out any more.
    """

    def __init__(self, stop: tuple[str, ...] = ()) -> None:
        self.stopped = False
        self._stop = stop
        self._held = ""
        self._message: int | None = None
        self._longest = max(map(len, stop), default=0)

    def add(self, message: int, text: str) -> str:
        """What may be shown after `text`, the next piece of the message at this place in the output."""
        if not text or self.stopped:
            return ""
        if self._message not in (None, message):
            text = BETWEEN_MESSAGES + text
        self._message = message
        if not self._stop:
            return text
        return self._cut(self._held + text)

    def rest(self) -> str:
        """What was held back; call it once, when the text has ended."""
        held, self._held = self._held, ""
        return held

    def _cut(self, text: str) -> str:
        """Give out all but what may be the beginning of a stop sequence."""
        # The one that is complete first wins, wherever it begins: else it would matter how the text was cut.
        found = [(start + len(stop), start) for stop in self._stop if (start := text.find(stop)) >= 0]
        if found:
            self.stopped = True
            self._held = ""
            return text[: min(found)[1]]
        start = self._possible_start(text)
        self._held = text[start:]
        return text[:start]

    def _possible_start(self, text: str) -> int:
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            tail = text[start:]
            if any(stop.startswith(tail) for stop in self._stop):
                return start
        return len(text)
