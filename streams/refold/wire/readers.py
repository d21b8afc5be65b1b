"""Strict Avro readers, compiled from a pair of schemas (what bytes were written with → what we want).

Why not fastavro's reader: it takes a union or enum index of -1, a boolean of 2 and a 40-bit ``int``, none of
which any other Avro program reads. A payload's bytes are spliced into the public state record, so bytes that
only Python reads would poison it for everybody else. It also shares one default list between all records.
The compiled code is about as fast; a test compares the two on every schema.

Invariants: whatever is accepted has valid UTF-8, minimal numbers, indexes in range; ``int`` fits 32 bits;
every default is a fresh object; a symbol the reader does not know becomes the enum's declared default and is
counted in :data:`unknown_symbols`.

The compiled functions raise ValueError or IndexError only; :mod:`refold.wire.codec` turns them into
InvalidRecord.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from refold.wire.avrotypes import default_value, named_types
from refold.wire.schemafiles import PRIMITIVES, Schema, full_name
from refold.wire.varint import read_length, read_more

Reader = Callable[[bytes, int], tuple[dict[str, Any], int]]

#: (enum, symbol) → how often a symbol of a newer writer was read as the default. Bounded by the symbols
#: that occur in schema files.
unknown_symbols: Final[Counter[tuple[str, str]]] = Counter()


class Unresolvable(ValueError):
    """Records of the writer's schema cannot be read as the reader's. The text names the place."""


def compile_reader(writer: Schema, reader: Schema) -> Reader:
    """A function ``(data, at) -> (record, next position)``. Raises Unresolvable when the two do not fit."""
    source = _Source()
    name = source.record(writer, reader)
    scope: dict[str, Any] = {
        "more": read_more,
        "length": read_length,
        "fail": _fail,
        "unknown": _unknown,
        "unpack_float": struct.Struct("<f").unpack_from,
        "unpack_double": struct.Struct("<d").unpack_from,
        **source.constants,
    }
    # A schema may come from a foreign registry: in the text every name of it is quoted by repr, every number
    # passed the check of _size, and nothing else of it gets there.
    try:
        code = compile("\n".join(source.functions), f"<reader of {name}>", "exec")
    except (SyntaxError, RecursionError, MemoryError):
        # Python's compiler takes 20 loops within each other, and 100 indentations.
        raise Unresolvable("its lists, maps or nulls are nested too deep") from None
    exec(code, scope)  # noqa: S102
    compiled: Reader = scope[name]
    return compiled


def _fail(text: str) -> None:
    raise ValueError(text)


def _unknown(enum: str, symbol: str, default: str | None) -> str:
    if default is None:
        raise ValueError(f"symbol {symbol} of {enum} is not known here and has no default")
    unknown_symbols[enum, symbol] += 1
    return default


def _size(fixed: Schema, place: str) -> int:
    size = fixed["size"]
    if type(size) is not int or size < 0:
        raise Unresolvable(f"{place} has no valid size")
    return size


class _Source:
    """Collects one function per pair of records; nested records become calls."""

    def __init__(self) -> None:
        self.functions: list[str] = []
        self.constants: dict[str, Any] = {}
        self._writers: dict[str, Schema] = {}
        self._readers: dict[str, Schema] = {}
        self._names: dict[tuple[str, str | None], str] = {}
        self._count = 0

    def record(self, writer: Schema, reader: Schema) -> str:
        self._writers = named_types(writer)
        self._readers = named_types(reader)
        return self._record(full_name(writer, ""), full_name(reader, ""))

    def _fresh(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def _record(self, writer_name: str, reader_name: str | None) -> str:
        key = (writer_name, reader_name)
        if key in self._names:
            return self._names[key]
        name = self._names[key] = self._fresh("record_")
        writer = self._writers[writer_name]
        wanted: dict[str, Any] = {}
        if reader_name is not None:
            fields = self._readers[reader_name]["fields"]
            # A name goes before an alias: what is written under a field's own name is that field.
            written = {field["name"] for field in writer["fields"]}
            free = written - {field["name"] for field in fields}
            for field in fields:
                if field["name"] in written:
                    wanted[field["name"]] = field
                elif (alias := next((a for a in field.get("aliases", ()) if a in free), None)) is not None:
                    wanted.setdefault(alias, field)
        lines = [f"def {name}(b, i):", "    r = {}"]
        seen = set()
        for field in writer["fields"]:
            target = wanted.get(field["name"])
            into = f"r[{target['name']!r}]" if target is not None else "_"
            place = f"{writer_name}.{field['name']}"
            self._value(
                lines,
                "    ",
                field["type"],
                target and target["type"],
                into,
                place,
                (writer_name, reader_name),
            )
            if target is not None:
                seen.add(target["name"])
        if reader_name is not None:
            for field in self._readers[reader_name]["fields"]:
                if field["name"] in seen:
                    continue
                if "default" not in field:
                    raise Unresolvable(f"{reader_name}.{field['name']} was not written and has no default")
                value = default_value(field["type"], field["default"], self._readers)
                # A literal, so that every record gets its own list or dict.
                lines.append(f"    r[{field['name']!r}] = {value!r}")
        lines.append("    return r, i")
        self.functions.append("\n".join(lines))
        return name

    def _named(self, node: Any, types: dict[str, Schema], owner: str | None) -> tuple[Any, str]:
        """(schema, full name) of a reference or an inline definition; the name is empty for others."""
        space = (owner or "").rpartition(".")[0]
        if isinstance(node, str):
            if node in PRIMITIVES:
                return node, ""
            name = node if "." in node or not space else f"{space}.{node}"
            return types[name], name
        if isinstance(node, dict) and node["type"] in ("record", "enum", "fixed"):
            return node, full_name(node, space)
        if isinstance(node, dict) and node["type"] not in ("array", "map"):
            return self._named(node["type"], types, owner)
        return node, ""

    def _value(
        self,
        lines: list[str],
        pad: str,
        writer: Any,
        reader: Any,
        into: str,
        place: str,
        owners: tuple[str, str | None],
    ) -> None:
        """Code that reads one ``writer`` value and puts it, as ``reader``, into ``into``. None = skip it."""
        writer, writer_name = self._named(writer, self._writers, owners[0])
        if isinstance(writer, list):
            self._nullable(lines, pad, writer, reader, into, place, owners)
            return
        if isinstance(reader, list):
            reader = reader[1]
        reader_name = ""
        if reader is not None:
            reader, reader_name = self._named(reader, self._readers, owners[1])
        kind = writer if isinstance(writer, str) else writer["type"]
        want = kind if reader is None else reader if isinstance(reader, str) else reader["type"]
        if kind in ("int", "long", "boolean", "null", "float", "double", "string", "bytes"):
            self._primitive(lines, pad, kind, want, into, place)
            return
        if kind != want:
            raise Unresolvable(f"{place} was written as {kind}, wanted is {want}")
        if kind == "record":
            function = self._record(writer_name, reader_name or None)
            lines.append(f"{pad}{into}, i = {function}(b, i)")
        elif kind == "enum":
            self._enum(lines, pad, writer, reader, writer_name, into, place)
        elif kind == "fixed":
            size = _size(writer, place)
            if reader is not None and reader["size"] != size:
                raise Unresolvable(f"{place} was written with {size} bytes, wanted are {reader['size']}")
            lines += [f"{pad}j = i + {size}", f"{pad}{into} = b[i:j]", f"{pad}i = j"]
        else:
            self._block(lines, pad, kind, writer, reader, into, place, owners)

    def _nullable(
        self,
        lines: list[str],
        pad: str,
        writer: list[Any],
        reader: Any,
        into: str,
        place: str,
        owners: tuple[str, str | None],
    ) -> None:
        if (
            len(writer) != 2
            or writer[0] != "null"
            or (isinstance(reader, list) and (len(reader) != 2 or reader[0] != "null"))
        ):
            raise Unresolvable(f"{place} has a union other than [null, X]")
        null = (
            f"{into} = None"
            if reader is None or isinstance(reader, list)
            else f"fail({place + ' is null'!r})"
        )
        lines += [
            f"{pad}n = b[i]",
            f"{pad}i += 1",
            f"{pad}if n == 0:",
            f"{pad}    {null}",
            f"{pad}elif n == 2:",
        ]
        self._value(lines, pad + "    ", writer[1], reader, into, place, owners)
        lines += [f"{pad}else:", f"{pad}    fail({place + ': no such branch'!r})"]

    def _has_no_bytes(self, node: Any, owner: str, within: tuple[str, ...] = ()) -> bool:
        """Whether values of the writer's type are encoded as nothing."""
        node, name = self._named(node, self._writers, owner)
        if isinstance(node, (str, list)):
            return node == "null"
        if node["type"] == "record":
            fields = [] if name in within else node["fields"]
            return all(self._has_no_bytes(field["type"], name, (*within, name)) for field in fields)
        return bool(node["type"] == "fixed" and node["size"] == 0)

    def _number(self, lines: list[str], pad: str) -> None:
        lines += [f"{pad}n = b[i]", f"{pad}i += 1", f"{pad}if n > 127:", f"{pad}    n, i = more(b, i, n)"]

    def _primitive(self, lines: list[str], pad: str, kind: str, want: str, into: str, place: str) -> None:
        promotions = {
            "int": ("int", "long", "float", "double"),
            "long": ("long", "float", "double"),
            "float": ("float", "double"),
            "string": ("string", "bytes"),
            "bytes": ("bytes", "string"),
        }
        if want not in promotions.get(kind, (kind,)):
            raise Unresolvable(f"{place} was written as {kind}, wanted is {want}")
        if kind in ("int", "long"):
            self._number(lines, pad)
            if kind == "int":
                lines.append(f"{pad}if n > 4294967295: fail({place + ' is no 32-bit int'!r})")
            value = "(n >> 1) ^ -(n & 1)"
            lines.append(f"{pad}{into} = {f'float({value})' if want in ('float', 'double') else value}")
        elif kind == "boolean":
            lines += [f"{pad}n = b[i]", f"{pad}i += 1", f"{pad}if n > 1: fail({place + ' is no boolean'!r})"]
            lines.append(f"{pad}{into} = n == 1")
        elif kind == "null":
            lines.append(f"{pad}{into} = None")
        elif kind in ("float", "double"):
            size = 4 if kind == "float" else 8
            lines += [
                f"{pad}if i + {size} > len(b): fail('ends early')",
                f"{pad}{into} = unpack_{kind}(b, i)[0]",
            ]
            lines.append(f"{pad}i += {size}")
        else:
            lines += [
                f"{pad}n = b[i]",
                f"{pad}i += 1",
                f"{pad}if n & 129:",
                f"{pad}    n, i = length(b, i, n)",
            ]
            lines += [f"{pad}else:", f"{pad}    n >>= 1", f"{pad}j = i + n"]
            lines.append(f"{pad}{into} = b[i:j]{'.decode()' if want == 'string' else ''}")
            lines.append(f"{pad}i = j")

    def _enum(
        self, lines: list[str], pad: str, writer: Schema, reader: Any, name: str, into: str, place: str
    ) -> None:
        if not all(type(symbol) is str for symbol in writer["symbols"]):
            raise Unresolvable(f"{place} has a symbol that is no text")
        known = writer["symbols"] if reader is None else reader["symbols"]
        symbols = self._fresh("symbols_")
        self.constants[symbols] = tuple(writer["symbols"])
        self._number(lines, pad)
        lines.append(
            f"{pad}if n & 1 or n >= {2 * len(writer['symbols'])}: fail({place + ': no such symbol'!r})"
        )
        lines.append(f"{pad}s = {symbols}[n >> 1]")
        if any(symbol not in known for symbol in writer["symbols"]):
            known_name = self._fresh("known_")
            self.constants[known_name] = frozenset(known)
            lines.append(
                f"{pad}if s not in {known_name}: s = unknown({name!r}, s, {reader.get('default')!r})"
            )
        lines.append(f"{pad}{into} = s")

    def _block(
        self,
        lines: list[str],
        pad: str,
        kind: str,
        writer: Schema,
        reader: Any,
        into: str,
        place: str,
        owners: tuple[str, str | None],
    ) -> None:
        """Arrays and maps: blocks of items; a negative count is followed by the block's size in bytes."""
        if kind == "array" and self._has_no_bytes(writer["items"], owners[0]):
            raise Unresolvable(f"{place} is a list of what has no bytes: a short record would be a huge one")
        v, c, e, k = (self._fresh(p) for p in ("v", "c", "e", "k"))
        inner = pad + "        "
        lines.append(f"{pad}{v} = {'[]' if kind == 'array' else '{}'}")
        self._number(lines, pad)
        lines += [
            f"{pad}while n:",
            f"{pad}    {e} = -1",
            f"{pad}    {c} = n >> 1",
            f"{pad}    if n & 1:",
            f"{inner}{c} += 1",
        ]
        lines += [
            f"{inner}n = b[i]",
            f"{inner}i += 1",
            f"{inner}n, i = length(b, i, n)",
            f"{inner}{e} = i + n",
        ]
        # Every item takes at least a byte: a count above what is left cannot be true.
        lines += [f"{pad}    if {c} > len(b) - i: fail('ends early')", f"{pad}    for _ in range({c}):"]
        if kind == "map":
            self._primitive(lines, inner, "string", "string", k, place)
        item = self._fresh("x")
        target = None if reader is None else reader["items" if kind == "array" else "values"]
        self._value(
            lines, inner, writer["items" if kind == "array" else "values"], target, item, place, owners
        )
        lines.append(f"{inner}{v}.append({item})" if kind == "array" else f"{inner}{v}[{k}] = {item}")
        lines.append(f"{pad}    if {e} >= 0 and {e} != i: fail({place + ': wrong block size'!r})")
        self._number(lines, pad + "    ")
        lines.append(f"{pad}{into} = {v}")
