"""Trying accounts with a question that costs nothing: whether an ejected one works again, or what an operator asks.

The question is for the account's models. An answer shows that network, proxy and credentials are well, but not that
responses are. So it counts as one of the good probes that close a circuit, and the last one is always a turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from accounts.asking import BUDGET, Asked, Asker, as_asked, ask, counted, each
from accounts.base_url import models_url
from accounts.circuit import Circuit, CircuitSettings, CircuitState, admit, failed, released, succeeded
from accounts.circuit_store import save_circuit
from accounts.circuits import CircuitChange, SharedCircuit, restored, shared
from accounts.control import Happened, stored_circuit
from accounts.issuer import Answer
from accounts.models import Account
from accounts.registry import MARKABLE
from accounts.states import What
from accounts.store import UPKEEP, note_event

# What the kind of a failed probe is called.
PROBE = "probe"


@dataclass(frozen=True, slots=True)
class _Probe:
    """An account under probe: what is stored of its circuit, and what became of that when the probe began."""

    asked: Asked
    stored: SharedCircuit
    circuit: Circuit
    began: float


async def probe_circuits(asker: Asker, wall: Callable[[], float], *, budget: float = BUDGET) -> str:
    """Probe the accounts whose ejection is over and that have not shown anything good since; `wall` is unix time."""
    accounts = await asker.run(_ejected, wall())
    if not accounts:
        return "No circuit is to be probed."

    async def probe(account: Account) -> bool | None:
        begun = await asker.run(_begin, account, asker.keys, wall())
        if begun is None:
            return None
        answer = await ask(begun.asked, models_url(begun.asked.base_url, begun.asked.kind), asker)
        return await asker.run(_end, begun, answer, wall())

    results = await each(probe, accounts, budget)
    names: dict[bool | None, list[str]] = {}
    for account, well in zip(accounts, results, strict=True):
        names.setdefault(well, []).append(account.name)
    words = {True: "answered", False: "failed", None: "told nothing"}
    return f"Probed: {'; '.join(f'{word}: {counted(names[well])}' for well, word in words.items() if well in names)}."


def _ejected(now: float) -> list[Account]:
    shut = Account.objects.filter(state__in=MARKABLE, circuit__isnull=False).select_related("circuit")
    shut = shut.exclude(circuit__state=CircuitState.CLOSED)
    return [
        account
        for account in shut
        if (circuit := restored(stored_circuit(account))).admits(now) and not circuit.good_probes
    ]


def _begin(account: Account, keys: Sequence[str], now: float) -> _Probe | None:
    """Make this the one probe that is under way; None when another one was first, or nobody can be asked."""
    asked = as_asked(account, keys)
    if asked is None:
        return None
    stored = stored_circuit(account)
    circuit = admit(restored(stored), now)
    following = shared(circuit, stored.version + 1, "")
    if not save_circuit(CircuitChange(account.id, following, UPKEEP)):
        return None
    return _Probe(asked, following, circuit, now)


def _end(probe: _Probe, answer: Answer | str, now: float) -> bool | None:
    well = shows(answer)
    if well is None:
        circuit = released(probe.circuit, probe.began)
    elif well:
        circuit = succeeded(probe.circuit, probe.began, now, CircuitSettings())
    else:
        circuit = failed(probe.circuit, PROBE, probe.began, now, CircuitSettings())
    # When somebody else has changed it meanwhile, they know better.
    save_circuit(CircuitChange(probe.asked.id, shared(circuit, probe.stored.version + 1, ""), UPKEEP))
    return well


def shows(answer: Answer | str) -> bool | None:
    """Whether an answer shows that the account works, that it does not, or neither.

    That nobody was reached may be this machine's own trouble, and a limit or a token is not what circuits are about.
    """
    if isinstance(answer, str) or answer.status in (401, 429):
        return None
    return answer.status < 500 and answer.status != 403


async def probe_account(asker: Asker, account_id: int, by: str) -> Happened:
    """Ask the account now, whatever its state, for the operator `by`; its event says what came of it."""
    account = await asker.run(Account.objects.filter(id=account_id).first)
    if account is None:
        return Happened(False, f"There is no account {account_id} any more.")
    asked = as_asked(account, asker.keys)
    if asked is None:
        return Happened(False, f"{account.name} has no credentials that can be opened, so it cannot be asked.")
    answer = await ask(asked, models_url(asked.base_url, asked.kind), asker)
    told = answer.rstrip(".") if isinstance(answer, str) else f"answered with status {answer.status}"
    await asker.run(note_event, account_id, What.PROBED, told, by)
    return Happened(shows(answer) is True, f"Probed {account.name}: {told}.")
