"""Reading values of a librdkafka table as librdkafka reads them. Pure.

Values are held in ``SecretStr`` whatever they are, so that no frame of ours shows a secret of the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar

from pydantic import SecretStr

_T = TypeVar("_T")

#: What C's isspace takes for blank.
_BLANKS: Final = " \t\n\v\f\r"
#: librdkafka takes no larger number for what is read here than 100 000 000 (bytes).
_NUMBER_CHARS_MAX: Final = 9


class Unsupported(Exception):
    """``names``: settings that are not known here, or have a value that is not."""

    def __init__(self, *names: str) -> None:
        super().__init__(f"not known to refold's own producer: {', '.join(names)}")
        self.names = names


class Table:
    """The settings of ``names`` that are given. Everything raises Unsupported for a value it cannot take."""

    def __init__(self, table: Mapping[str, Any], names: Iterable[str]) -> None:
        self._given = {name: value for name in names if (value := _text(name, table[name])) is not None}

    @property
    def names(self) -> set[str]:
        return set(self._given)

    def secret(self, name: str) -> SecretStr | None:
        return self._given.get(name)

    def text(self, name: str) -> str | None:
        return None if (value := self._given.get(name)) is None else value.get_secret_value()

    def choice(self, name: str, known: Mapping[str, _T], default: str) -> _T:
        value = (self.text(name) or default).lower()
        if value not in known:
            raise Unsupported(name)
        return known[value]

    def number(self, name: str) -> int:
        """0 where it is not given."""
        value = self.text(name) or "0"
        if not (value.isascii() and value.isdigit() and len(value) <= _NUMBER_CHARS_MAX):
            raise Unsupported(name)
        return int(value)

    def at_most_one(self, *names: str) -> bool:
        """Whether one of ``names`` is given. Of two, librdkafka uses both, which nobody means."""
        given = [name for name in names if name in self._given]
        if len(given) > 1:
            raise Unsupported(*given)
        return bool(given)


def _text(name: str, value: object) -> SecretStr | None:
    """Without the blanks before it (in passwords too; measured with 2.16), and an empty one as none."""
    text = "" if value is None else str(value).lstrip(_BLANKS)
    try:
        text.encode()
    except UnicodeEncodeError:  # from an environment variable that was no UTF-8
        raise Unsupported(name) from None
    if "\0" in text:  # the end of a string for librdkafka
        raise Unsupported(name)
    return SecretStr(text) if text else None
