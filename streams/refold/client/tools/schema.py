"""A function's parameters as a JSON schema for the model, and the model's arguments back as values."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

from refold.core.jsontext import is_valid_json
from refold.errors import UsageError


class BadArguments(Exception):
    """The model's arguments do not fit. The text is for the model."""


class Parameters:
    """Of one function. ``handle``: the parameter that takes the call itself, which the model never sees."""

    def __init__(self, function: Callable[..., Any], handle_type: type[Any]) -> None:
        self.handle: str | None = None
        self._names: dict[str, str] = {}
        name = getattr(function, "__name__", "tool")
        try:
            hints = typing.get_type_hints(function, include_extras=True)
        except (NameError, TypeError, AttributeError) as error:
            raise UsageError(
                f"tool {name}: an annotation cannot be read ({error}): it must name something that exists at "
                "run time at module level, not only for the type checker"
            ) from None
        fields: dict[str, Any] = {}
        for parameter in inspect.signature(function).parameters.values():
            hint = hints.get(parameter.name, Any)
            if hint is handle_type:
                self.handle = parameter.name
                continue
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise UsageError(
                    f"tool {name}: parameter {parameter.name!r} must be an ordinary named parameter: a model "
                    "gives arguments by name"
                )
            default = ... if parameter.default is parameter.empty else parameter.default
            # Named by number: any parameter name is allowed, also those that pydantic keeps for itself.
            field = f"p{len(self._names)}"
            self._names[field] = parameter.name
            fields[field] = (hint, Field(default, alias=parameter.name))
        try:
            self._model: type[BaseModel] = create_model(
                name, __config__=ConfigDict(extra="forbid", arbitrary_types_allowed=False), **fields
            )
            self.json_schema = _tidy(self._model.model_json_schema(by_alias=True))
        except (PydanticSchemaGenerationError, PydanticUserError) as error:
            raise UsageError(
                f"tool {name}: a parameter's type has no JSON schema ({str(error).splitlines()[0]})"
            ) from None

    def read(self, raw: str) -> dict[str, Any]:
        """Keyword arguments from the model's text; an empty text is an empty object. Raises BadArguments."""
        text = raw if raw.strip() else "{}"
        if not is_valid_json(text):
            raise BadArguments("the arguments are not valid JSON")
        try:
            made = self._model.model_validate_json(text)
        except ValidationError as error:
            raise BadArguments(_said(error)) from None
        return {name: getattr(made, field) for field, name in self._names.items()}


def _tidy(schema: Any) -> Any:
    """Without pydantic's titles: they are made from our field numbers and cost the caller tokens."""
    if isinstance(schema, dict):
        properties = schema.get("properties")
        return {
            key: {name: _tidy(value) for name, value in properties.items()}
            if key == "properties" and isinstance(properties, dict)
            else _tidy(value)
            for key, value in schema.items()
            if key != "title" or not isinstance(value, str)
        }
    return [_tidy(item) for item in schema] if isinstance(schema, list) else schema


def _said(error: ValidationError) -> str:
    """Which argument is wrong and why, without its value: the model knows what it said."""
    lines = [
        f"{'.'.join(str(step) for step in item['loc']) or 'arguments'}: {item['msg']}"
        for item in error.errors(include_url=False, include_context=False, include_input=False)
    ]
    return "the arguments do not fit: " + "; ".join(lines)
