"""Values as canonical JSON: sorted keys, no spaces, so that equal values are equal bytes."""

from __future__ import annotations

import json

from refold.errors import InvalidRecord


def canonical(value: object) -> bytes:
    """Raises InvalidRecord (``not_json``) for what has no JSON: other types, NaN, half of a surrogate pair, a
    cycle."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidRecord("not_json", "a text holds half of a surrogate pair") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRecord("not_json", f"the value has no JSON ({error})") from None
