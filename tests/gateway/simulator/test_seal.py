from gateway.simulator.seal import owner, seal


def test_a_seal_names_its_account() -> None:
    assert owner(seal("ada", "reasoning 1")) == "ada"


def test_labels_make_seals_of_one_account_differ() -> None:
    assert seal("ada", "1") != seal("ada", "2")


def test_what_was_not_sealed_or_was_changed_has_no_owner() -> None:
    sealed = seal("ada", "1")
    changed = sealed[:-6] + ("A" if sealed[-6] != "A" else "B") + sealed[-5:]

    assert [owner(text) for text in ("", "plain", "gAAAAA%%%", changed)] == [None] * 4
