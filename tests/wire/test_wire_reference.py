from __future__ import annotations

from wire.reference import PAGE, filled


def test_the_reference_page_is_up_to_date() -> None:
    """Run ``PYTHONPATH=tests python -m wire.reference`` after a change of schemas, rules or codes."""
    page = PAGE.read_text(encoding="utf-8")
    assert filled(page) == page
