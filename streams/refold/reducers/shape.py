"""A reducer's ``schema``: what pydantic understands, between JSON and the values that the function sees."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pydantic import PydanticUserError, TypeAdapter
from pydantic.errors import PydanticSchemaGenerationError

from refold.core.reducers import Unfit
from refold.errors import UsageError


class Shape:
    """Of one reducer. Without a schema values pass as they are."""

    def __init__(self, name: str, schema: Any) -> None:
        self.schema = schema
        self._adapter: TypeAdapter[Any] | None = None
        if schema is None:
            return
        try:
            self._adapter = TypeAdapter(schema)
            described = self._adapter.json_schema()
        except (PydanticUserError, PydanticSchemaGenerationError) as error:
            raise UsageError(
                f"reducer {name}: its schema is nothing pydantic can check ({str(error).splitlines()[0]})"
            ) from None
        if '"uniqueItems": true' in json.dumps(described):
            raise UsageError(
                f"reducer {name}: a set in its schema has another order in every process, so its state would"
                " not be a function of the journal. Use a sorted list, or a dict"
            )

    def value(self, state: Any) -> Any:
        """JSON -> what the function gets. Raises what pydantic raises."""
        return state if self._adapter is None else self._adapter.validate_python(state)

    def plain(self, made: Any) -> Any:
        """What the function returned -> JSON, checked against the schema. Raises Unfit."""
        adapter = self._adapter
        if adapter is None or made is None:
            return made
        try:
            valid = adapter.validate_python(made)
            # Looked for before (pydantic makes a list of one) and behind (where the schema says Any).
            if _has_set(made) or _has_set(adapter.dump_python(valid, warnings=False)):
                raise TypeError("a set has another order in every process")
            dumped = adapter.dump_python(valid, mode="json", warnings="error")
            adapter.validate_python(dumped)  # a model that was changed in place was not checked
        except Exception as error:  # pydantic's, or of a validator of the user's
            raise Unfit("schema", error) from error
        return dumped

    def applied(self, function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        if self._adapter is None:
            return function
        return lambda state, event: self.plain(function(self.value(state), event))


def _has_set(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_set, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_has_set, value))
    return isinstance(value, set | frozenset)
