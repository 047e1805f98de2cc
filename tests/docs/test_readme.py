"""The README's commands are the ones that are checked, and its pictures and links exist."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

from gateway.management.announce import FIRST_START
from tests.support.processes import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
CI = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))

RUN = "python3 -m venv .venv && .venv/bin/pip install -q -c constraints.txt -e . && .venv/bin/python manage.py serve"
TEST = "python3 -m venv .venv && .venv/bin/pip install -q -c constraints.txt -e '.[dev]' && .venv/bin/pytest"
DEMO = ".venv/bin/python manage.py demo"


@pytest.mark.parametrize("command", [RUN, TEST, DEMO])
def test_the_readme_gives_the_command_on_a_line_of_its_own(command: str) -> None:
    assert command in README.splitlines()


def test_the_build_runs_the_readmes_own_test_command() -> None:
    (line,) = [line for line in CI.splitlines() if line.startswith("python3 -m venv")]
    assert line == f"{TEST} || exit"


def test_the_build_can_be_run_and_is_valid_bash() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    subprocess.run(["bash", "-n", script], check=True)


def test_the_readme_sets_codex_up_as_the_first_start_does() -> None:
    block = README.split("```toml\n")[1].split("```")[0]
    settings = [line.strip() for line in block.splitlines() if line.strip()]
    told = [
        line.strip()
        for line in FIRST_START.format(url="http://127.0.0.1:8045", admin="", password="", key="").splitlines()
    ]
    assert settings == [line for line in told if line in settings]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_file_and_a_heading_that_exist(page: Path) -> None:
    for target, _, anchor in (link.partition("#") for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8"))):
        if "://" in target:
            continue
        linked = page.parent / target if target else page
        assert linked.is_file(), f"{page.name} links to {target}, which does not exist."
        assert not anchor or anchor in anchors(linked), f"{page.name} links to {target}#{anchor}: no such heading."


def anchors(page: Path) -> set[str]:
    """The anchors that a Markdown page's headings get."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_picture_is_well_formed_and_says_in_words_what_it_shows() -> None:
    picture = ElementTree.parse(ROOT / "docs" / "overview.svg").getroot()
    names = {child.tag.rpartition("}")[2] for child in picture}
    assert {"title", "desc"} <= names
