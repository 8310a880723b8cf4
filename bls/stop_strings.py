"""Stop strings, matched on text: token and round boundaries do not matter."""

from __future__ import annotations


class StopStrings:
    """Holds back text that may be the beginning of a stop string.

    >>> stops = StopStrings(("END",))
    >>> stops.feed("the E"), stops.feed("N"), stops.feed("D!")
    ('the ', '', '')
    >>> stops.found
    True
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held = ""
        self.found = False

    def feed(self, text: str) -> str:
        """Return what of the text so far may be shown; nothing after a stop string ever is."""
        text = self._held + text
        starts = [at for at in map(text.find, self._stops) if at >= 0]
        if starts:
            self.found, self._held = True, ""
            return text[: min(starts)]
        shown = len(text) - self._longest_beginning_at_end_of(text)
        self._held = text[shown:]
        return text[:shown]

    def flush(self) -> str:
        """Return what was held back, at the end of an answer that met no stop string."""
        text, self._held = self._held, ""
        return text

    def would_find(self, text: str) -> bool:
        """Whether a stop string would be complete after ``text``; nothing is taken over."""
        return any(stop in self._held + text for stop in self._stops)

    def _longest_beginning_at_end_of(self, text: str) -> int:
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0
