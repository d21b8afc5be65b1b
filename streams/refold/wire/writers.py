"""Strict Avro writers, compiled from a schema.

fastavro drops keys it does not know without a word, takes 2147483648 for a top-level ``int`` and raises
deep inside for half a surrogate pair. Here every one of them is refused naming the field, and the bytes are
the canonical ones: minimal numbers, one block per array. A missing field is written as its default.

Raises UsageError (the caller's value is wrong) or InvalidRecord("lone_surrogate").
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

from refold.errors import InvalidRecord, UsageError
from refold.wire.avrotypes import default_value, named_types
from refold.wire.schemafiles import PRIMITIVES, Schema, full_name
from refold.wire.varint import INT_MAX, INT_MIN, LENGTHS, LONG_MAX, LONG_MIN, zlong

Put = Callable[[bytes], object]
Writer = Callable[[Put, Mapping[str, Any]], None]

_RANGES: Final = {32: (INT_MIN, INT_MAX), 64: (LONG_MIN, LONG_MAX)}


def compile_writer(schema: Schema) -> Writer:
    """A function ``(put, record)`` that calls ``put`` with the pieces of the record's encoding in order."""
    source = _Source(schema)
    name = source.record(full_name(schema, ""))
    scope: dict[str, Any] = {
        "L": LENGTHS,
        "Z": zlong,
        "as_str": _as_str,
        "as_int": _as_int,
        "as_bytes": _as_bytes,
        "bad": _bad,
        "mapping": _mapping,
        "surrogate": _surrogate,
        "float_bytes": _float_bytes,
        **source.constants,
    }
    # The text is made from our own schema files; names in it are quoted by repr.
    exec(compile("\n".join(source.functions), f"<writer of {name}>", "exec"), scope)  # noqa: S102
    compiled: Writer = scope[name]
    return compiled


def _bad(place: str, value: object, wanted: str) -> None:
    raise UsageError(f"{place} must be {wanted}, not {type(value).__name__}")


def _surrogate(place: str) -> InvalidRecord:
    return InvalidRecord(
        "lone_surrogate",
        f"{place} holds half of a surrogate pair, which is no text: replace it before sending",
    )


def _as_str(place: str, value: object) -> str:
    if not isinstance(value, str):
        _bad(place, value, "a string")
    return str.__str__(value)


def _as_bytes(place: str, value: object) -> bytes:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        _bad(place, value, "bytes")
        raise AssertionError  # unreachable; _bad raises
    return bytes(value)


def _as_int(place: str, value: object, bits: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        _bad(place, value, f"a {bits}-bit integer")
        raise AssertionError  # unreachable; _bad raises
    low, high = _RANGES[bits]
    if not low <= value <= high:
        raise UsageError(f"{place} is {value}, outside a {bits}-bit integer ({low} … {high})")
    return int(value)


def _float_bytes(place: str, value: object, fmt: str) -> bytes:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        _bad(place, value, "a number")
        raise AssertionError  # unreachable; _bad raises
    try:
        number = float(value)
        if isinstance(value, int) and int(number) != value:
            raise OverflowError
        return struct.pack(fmt, number)
    except OverflowError:
        if isinstance(value, float) and math.isinf(value):
            return struct.pack(fmt, value)
        raise UsageError(
            f"{place} is a number that a {'float' if fmt == '<f' else 'double'} cannot hold"
        ) from None


def _mapping(place: str, value: object, fields: frozenset[str]) -> None:
    if not isinstance(value, Mapping):
        _bad(place, value, "a mapping")
        return
    unknown = sorted(str(key) for key in value if key not in fields)
    if unknown:
        raise UsageError(
            f"{place} has no field {unknown[0]!r}: it would be lost; known are {', '.join(sorted(fields))}"
        )


class _Source:
    """Collects one function per record type."""

    def __init__(self, schema: Schema) -> None:
        self.functions: list[str] = []
        self.constants: dict[str, Any] = {}
        self._types = named_types(schema)
        self._names: dict[str, str] = {}
        self._count = 0

    def _fresh(self, prefix: str, value: Any = None) -> str:
        self._count += 1
        name = f"{prefix}{self._count}"
        if value is not None:
            self.constants[name] = value
        return name

    def record(self, full: str) -> str:
        if full in self._names:
            return self._names[full]
        name = self._names[full] = self._fresh("record_")
        fields = self._types[full]["fields"]
        known = self._fresh("fields_", frozenset(field["name"] for field in fields))
        lines = [f"def {name}(w, r):", f"    if r.__class__ is not dict or not {known}.issuperset(r):"]
        lines.append(f"        mapping({full!r}, r, {known})")
        for field in fields:
            key, place = field["name"], f"{full}.{field['name']}"
            if "default" in field:
                value = default_value(field["type"], field["default"], self._types)
                default = (
                    repr(value)
                    if value is None or isinstance(value, (int, str))
                    else self._fresh("d_", value)
                )
                lines.append(f"    v = r.get({key!r}, {default})")
            else:
                lines.append(f"    if {key!r} not in r: raise_missing({place!r})")
                lines.append(f"    v = r[{key!r}]")
            self._value(lines, "    ", field["type"], "v", place, full)
        self.constants["raise_missing"] = _missing
        self.functions.append("\n".join(lines) + ("\n    pass" if not fields else ""))
        return name

    def _resolve(self, node: Any, owner: str) -> tuple[Any, str]:
        space = owner.rpartition(".")[0]
        if isinstance(node, str):
            if node in PRIMITIVES:
                return node, ""
            name = node if "." in node or not space else f"{space}.{node}"
            return self._types[name], name
        if isinstance(node, dict) and node["type"] in ("record", "enum", "fixed"):
            return node, full_name(node, space)
        if isinstance(node, dict) and node["type"] not in ("array", "map"):
            return self._resolve(node["type"], owner)
        return node, ""

    def _value(self, lines: list[str], pad: str, node: Any, v: str, place: str, owner: str) -> None:
        node, name = self._resolve(node, owner)
        if isinstance(node, list):
            lines += [f"{pad}if {v} is None:", f"{pad}    w(b'\\0')", f"{pad}else:", f"{pad}    w(b'\\2')"]
            self._value(lines, pad + "    ", node[1], v, place, owner)
            return
        kind = node if isinstance(node, str) else node["type"]
        if kind == "record":
            lines.append(f"{pad}{self.record(name)}(w, {v})")
        elif kind == "enum":
            table = self._fresh("symbols_", {s: zlong(n) for n, s in enumerate(node["symbols"])})
            wanted = "one of " + ", ".join(node["symbols"])
            lines.append(f"{pad}if {v}.__class__ is not str: {v} = as_str({place!r}, {v})")
            lines.append(f"{pad}if {v} not in {table}: bad({place!r}, {v}, {wanted!r})")
            lines.append(f"{pad}w({table}[{v}])")
        elif kind == "array":
            item = self._fresh("x")
            lines.append(f"{pad}if not isinstance({v}, (list, tuple)): bad({place!r}, {v}, 'a list')")
            lines += [f"{pad}if {v}:", f"{pad}    w(Z(len({v})))", f"{pad}    for {item} in {v}:"]
            self._value(lines, pad + "        ", node["items"], item, place + "[]", owner)
            lines.append(f"{pad}w(b'\\0')")
        elif kind == "map":
            key, item = self._fresh("k"), self._fresh("x")
            lines.append(f"{pad}if {v}.__class__ is not dict: bad({place!r}, {v}, 'a dict')")
            lines += [
                f"{pad}if {v}:",
                f"{pad}    w(Z(len({v})))",
                f"{pad}    for {key}, {item} in {v}.items():",
            ]
            self._primitive(lines, pad + "        ", "string", key, place + " key")
            self._value(lines, pad + "        ", node["values"], item, place + "{}", owner)
            lines.append(f"{pad}w(b'\\0')")
        elif kind == "fixed":
            lines.append(f"{pad}{v} = as_bytes({place!r}, {v})")
            lines.append(f"{pad}if len({v}) != {node['size']}: bad({place!r}, {v}, '{node['size']} bytes')")
            lines.append(f"{pad}w({v})")
        else:
            self._primitive(lines, pad, kind, v, place)

    def _primitive(self, lines: list[str], pad: str, kind: str, v: str, place: str) -> None:
        if kind in ("string", "bytes"):
            if kind == "string":
                lines.append(f"{pad}if {v}.__class__ is not str: {v} = as_str({place!r}, {v})")
                lines += [
                    f"{pad}try: e = {v}.encode()",
                    f"{pad}except UnicodeEncodeError: raise surrogate({place!r}) from None",
                ]
            else:
                lines.append(f"{pad}e = {v} if {v}.__class__ is bytes else as_bytes({place!r}, {v})")
            lines += [f"{pad}n = len(e)", f"{pad}w(L[n] if n < {len(LENGTHS)} else Z(n))", f"{pad}w(e)"]
        elif kind in ("int", "long"):
            bits = 32 if kind == "int" else 64
            low, high = _RANGES[bits]
            lines.append(
                f"{pad}if {v}.__class__ is not int or not {low} <= {v} <= {high}:"
                f" {v} = as_int({place!r}, {v}, {bits})"
            )
            lines.append(f"{pad}w(Z({v}))")
        elif kind == "boolean":
            lines.append(f"{pad}if {v} is True: w(b'\\1')")
            lines.append(f"{pad}elif {v} is False: w(b'\\0')")
            lines.append(f"{pad}else: bad({place!r}, {v}, 'true or false')")
        elif kind in ("float", "double"):
            lines.append(f"{pad}w(float_bytes({place!r}, {v}, {'<f' if kind == 'float' else '<d'!r}))")
        else:
            lines.append(f"{pad}if {v} is not None: bad({place!r}, {v}, 'null')")


def _missing(place: str) -> None:
    raise UsageError(f"{place} is missing and has no default")
