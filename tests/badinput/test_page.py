"""docs/concepts/bad-input.md names the cases of this suite, with the same outcomes, and no others."""

from __future__ import annotations

import re
from pathlib import Path

from badinput.cases import OTHER, REJECTED
from badinput.test_accepted import COVERED

PAGE = Path(__file__).resolve().parents[2] / "docs/concepts/bad-input.md"


def rows(heading: str) -> dict[str, str]:
    """First and second column of the table under a heading."""
    section = PAGE.read_text("utf-8").split(f"## {heading}\n")[1].split("\n## ")[0]
    found = re.findall(r"^\| ([^|]+) \| ([^|]+) \|", section, re.MULTILINE)
    return {case: outcome.strip("`") for case, outcome in found if case not in ("case", "---")}


def test_the_rejected_cases_are_those_of_the_page() -> None:
    assert rows("What is rejected") == {case.name: case.code for case in REJECTED}


def test_the_other_cases_are_those_of_the_page_and_each_has_a_test() -> None:
    assert rows("What looks bad and is not") == OTHER
    # The last one is in test_surroundings.py: it needs a worker of its own.
    assert set(OTHER) == COVERED | {"registry does not answer"}
