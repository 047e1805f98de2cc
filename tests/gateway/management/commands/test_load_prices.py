"""`manage.py load_prices`."""

from __future__ import annotations

import io
from decimal import Decimal
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from gateway.models import TokenPrice

pytestmark = pytest.mark.django_db

HEADING = "model,since,input,cached,output\n"


def load(folder: Path, text: str) -> str:
    file = folder / "prices.csv"
    file.write_text(text, encoding="utf-8")
    return str(call_command("load_prices", str(file)))


def test_prices_are_stored_and_the_same_day_again_takes_their_place(tmp_path: Path) -> None:
    assert "Took 2 prices, 2 of them new" in load(tmp_path, f"{HEADING}a,2026-01-31,1,,2\na,2026-02-28,3,,4\n")
    assert "Took 2 prices, 1 of them new" in load(tmp_path, f"{HEADING}a,2026-01-31,1,0.5,2\nb,2026-01-31,1,,2\n")
    assert TokenPrice.objects.count() == 3
    assert TokenPrice.objects.get(model="a", since="2026-01-31").cached == Decimal("0.5")
    assert TokenPrice.objects.get(model="b").cached is None


def test_one_that_cannot_be_used_keeps_all_of_them_out(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"prices\.csv: Line 3: input must be dollars"):
        load(tmp_path, f"{HEADING}a,2026-01-31,1,,2\nb,2026-01-31,free,,2\n")
    assert not TokenPrice.objects.exists()


def test_a_table_program_s_own_mark_is_no_part_of_the_heading(tmp_path: Path) -> None:
    assert "Took 1 prices" in load(tmp_path, f"\ufeff{HEADING}a,2026-01-31,1,,2\n")


def test_standard_input_is_read_for_a_minus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO('[{"model":"a","since":"2026-01-31","input":1,"output":2}]'))
    call_command("load_prices", "-")
    assert TokenPrice.objects.get().output == 2


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="cannot be read"):
        call_command("load_prices", str(tmp_path / "none"))
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(CommandError, match="not text"):
        call_command("load_prices", str(tmp_path / "bytes"))
