"""What clients have not taken yet is bounded, for each and for all."""

from __future__ import annotations

from gateway.errors import ClientLost
from gateway.turns.backlog import STEP, Backlogs

SHARE, TOTAL = 10 * STEP, 25 * STEP


class Client:
    """A turn whose client takes nothing."""

    def __init__(self, size: int = 0) -> None:
        self.size = size
        self.looked_at = 0
        self.looks = 0
        self.error: ClientLost | None = None

    def backlog(self) -> int:
        self.looks += 1
        return self.size

    def abort(self, error: ClientLost) -> None:
        self.error = error

    def grow(self, backlogs: Backlogs, size: int) -> None:
        self.size += size
        self.looked_at = backlogs.grew(self, self.size, self.looked_at)


def test_a_client_that_outgrows_its_share_is_cut_and_told_which_limit() -> None:
    client, other = Client(), Client()
    backlogs = Backlogs(SHARE, TOTAL, [client, other])
    client.grow(backlogs, SHARE)
    assert client.error is None
    client.grow(backlogs, 1)
    assert client.error is not None
    assert client.error.code == "client_too_slow"
    assert "GATEWAY_CLIENT_BUFFER_BYTES" in client.error.message
    assert other.error is None


def test_when_all_together_outgrow_the_total_the_one_furthest_behind_is_cut() -> None:
    clients = [Client(9 * STEP), Client(9 * STEP + 1), Client()]
    backlogs = Backlogs(SHARE, TOTAL, clients)
    clients[2].grow(backlogs, 8 * STEP)
    furthest = clients[1]
    assert furthest.error is not None
    assert "GATEWAY_CLIENT_BUFFER_TOTAL" in furthest.error.message
    assert [client.error for client in clients if client is not furthest] == [None, None]


def test_the_sum_of_all_is_not_taken_for_every_frame() -> None:
    clients = [Client() for _ in range(3)]
    backlogs = Backlogs(SHARE, TOTAL, clients)
    for _ in range(1024):
        clients[0].grow(backlogs, STEP // 256)
    assert clients[0].looks == 4


def test_a_client_that_caught_up_is_looked_at_again_after_the_next_step() -> None:
    client = Client()
    backlogs = Backlogs(SHARE, TOTAL, [client])
    client.grow(backlogs, 3 * STEP)
    client.size = 0
    client.grow(backlogs, 1)
    assert client.looked_at == 1
    client.grow(backlogs, STEP)
    assert client.looked_at == STEP + 1
