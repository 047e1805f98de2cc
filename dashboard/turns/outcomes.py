"""The colours of outcomes."""

from __future__ import annotations

from dashboard.columns import Tone
from gateway.models import Turn
from gateway.turns.turn import Outcome

OUTCOME_TONES: dict[str, Tone] = {
    Outcome.COMPLETED: Tone.GOOD,
    Outcome.INCOMPLETE: Tone.WARNING,
    Outcome.FAILED: Tone.BAD,
    Outcome.CANCELLED: Tone.OFF,
    Outcome.REFUSED: Tone.WARNING,
    Outcome.CLIENT_GONE: Tone.OFF,
    Outcome.UPSTREAM_LOST: Tone.BAD,
    Outcome.INTERRUPTED: Tone.BAD,
}


def tone_of(turn: Turn) -> Tone:
    """The colour of a turn's outcome; one that runs has a colour of its own."""
    return OUTCOME_TONES.get(turn.outcome, Tone.OFF) if turn.outcome else Tone.BUSY
