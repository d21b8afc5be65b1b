"""Where settings come from: flags, environment, secret files, ``refold.toml``; and what to say
when one is wrong.

Invariants: an unknown key in any layer is an error; a value from a secret field never appears in a message.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_args

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsError

from refold.errors import ConfigError

ENV_PREFIX: Final = "REFOLD_"
ENV_DELIMITER: Final = "__"
CONFIG_FILE: Final = "refold.toml"
MASK: Final = "********"
_WAY_OUT: Final = "see docs/reference/settings.md or run `refold settings --reference`"
#: A secret file is a token or a password, not a document; a wrong path must not load a log file into memory.
SECRET_FILE_BYTES_MAX: Final = 64 * 1024
#: Values in messages are cut here: enough to recognise, too little to flood a terminal.
SHOWN_CHARS_MAX: Final = 120
#: Patterns of settings in words.
PATTERNS: Final[Mapping[str, str]] = {
    r"^[A-Za-z0-9][A-Za-z0-9._-]*$": "it has letters, digits and . _ - only, a letter or digit first",
    r"^[A-Za-z0-9._-]+$": "it has letters, digits and . _ - only",
    r"^[^/]+$": "it has no slash",
}

#: Short forms of settings that everybody types.
ALIASES: Final[Mapping[str, str]] = {"REFOLD_BOOTSTRAP": "kafka.bootstrap"}

#: Variables under our prefix that are not settings, closed list. They change a process, not the deployment.
OTHER_VARIABLES: Final[frozenset[str]] = frozenset(
    {
        # Path of the settings file; the tree cannot hold where it is read from.
        "REFOLD_CONFIG",
        # Directory of the embedded broker (refold.cli.broker).
        "REFOLD_BROKER_DIR",
        # Download cache of the embedded broker.
        "REFOLD_CACHE",
        # Arms a named point of the commit (engine/points.py); tests and `verify` only.
        "REFOLD_POINT",
        # The same while the process runs: a file that names the point.
        "REFOLD_POINT_FILE",
        # Set by a supervisor for its children (engine/config.py): signals reach them through it.
        "REFOLD_SUPERVISED",
        # Arms a named point of a run (client/agents/points.py); tests and `verify runs` only.
        "REFOLD_AGENT_POINT",
        # Where it writes that the point was reached.
        "REFOLD_AGENT_POINT_FILE",
        # Arms a named point of a tool call (client/tools/points.py); tests and `verify effects` only.
        "REFOLD_TOOL_POINT",
        # Where it writes that the point was reached.
        "REFOLD_TOOL_POINT_FILE",
        # Maven repository of the embedded broker's jars (refold.broker.fetch).
        "REFOLD_MAVEN_REPO",
        # Recorded data sets the repository's tests read.
        "REFOLD_SHARED_DATA",
    }
)
#: Name spaces of the repository's own tools: tests, benchmarks, the demo.
OTHER_PREFIXES: Final = ("REFOLD_TEST_", "REFOLD_BENCH_", "REFOLD_DEMO_")
#: Kubernetes injects these for every Service in the namespace ("enableServiceLinks"); a Service called
#: refold-registry must not stop the worker.
_SERVICE_LINK: Final = re.compile(
    r"_SERVICE_HOST$|_SERVICE_PORT(_[A-Z0-9_]+)?$|_PORT_\d+_(TCP|UDP|SCTP)(_[A-Z]+)?$"
)
_SERVICE_URL: Final = re.compile(r"^(tcp|udp|sctp)://")


@dataclass(frozen=True, slots=True)
class Layer:
    """One source of values: nested ``values``, and per dotted path a name to show."""

    values: dict[str, Any]
    names: dict[str, str]


def leaves(model: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every settable value as ``(dotted path, field)``, in the order of declaration."""
    for name, field in model.model_fields.items():
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from leaves(annotation, (*path, name))
        else:
            yield ".".join((*path, name)), field


def env_name(path: str) -> str:
    return ENV_PREFIX + path.replace(".", ENV_DELIMITER).upper()


def is_secret(field: Any) -> bool:
    return field.annotation is SecretStr or SecretStr in get_args(field.annotation)


def secret_paths(model: type[BaseModel]) -> frozenset[str]:
    return frozenset(path for path, field in leaves(model) if is_secret(field))


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """``{"a.b": 1}`` → ``{"a": {"b": 1}}``."""
    out: dict[str, Any] = {}
    for path, value in flat.items():
        *parents, last = path.split(".")
        node = out
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = value
    return out


def collect(model: type[BaseSettings], config: Path | None, flags: Mapping[str, Any]) -> list[Layer]:
    """All layers, highest rank first. Raises :class:`ConfigError`."""
    values = {name: _plain(value) for name, value in flags.items() if value is not None}
    flag_layer = Layer(values, dict.fromkeys(_paths(values), "flag"))
    return [flag_layer, _environment(model), _secret_files(model), _file(config)]


def merge(stack: list[dict[str, Any]]) -> dict[str, Any]:
    """Highest rank first; tables merge key by key, everything else is replaced."""
    out: dict[str, Any] = {}
    for values in reversed(stack):
        _overlay(out, values)
    return out


def sources(stack: list[Layer]) -> dict[str, str]:
    out: dict[str, str] = {}
    for layer in reversed(stack):
        out.update(layer.names)
    return out


def explain(model: type[BaseSettings], err: ValidationError, stack: list[Layer]) -> str:
    """One line per problem: which setting, from where, what was given, what would be right."""
    secrets = secret_paths(model)
    known = {path for path, _ in leaves(model)}
    origin = sources(stack)
    lines = []
    for problem in err.errors(include_url=False, include_input=True):
        path = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            lines.append(f"{origin.get(path, 'flag')}: unknown setting {path!r}{_closest(path, known)}")
            continue
        text = PATTERNS.get(problem.get("ctx", {}).get("pattern", ""), problem["msg"])
        text = text.removeprefix("Value error, ")
        text = text[:1].lower() + text[1:]
        leaf = next((p for p in known if path == p or path.startswith(p + ".")), None)
        if leaf is None:
            lines.append(f"{path}: {text}" if path else text)
            continue
        shown = MASK if leaf in secrets else _shown(problem.get("input"))
        lines.append(
            f"{env_name(leaf)}={shown} (from {origin.get(path) or origin.get(leaf, 'default')}): {text}"
        )
    head = "a setting is wrong" if len(lines) == 1 else f"{len(lines)} settings are wrong"
    return f"{head}:\n  " + "\n  ".join(lines) + f"\n{_WAY_OUT}"


def _environment(model: type[BaseSettings]) -> Layer:
    names = {path: env_name(path) for path, _ in leaves(model)}
    tops = {env_name(name): name for name in model.model_fields}
    secret_files = {env_name(path) + "_FILE" for path in secret_paths(model)}
    given = {
        key.upper(): value
        for key, value in os.environ.items()
        if key.upper().startswith(ENV_PREFIX) and value
    }
    legal = set(names.values()) | tops.keys() | secret_files | ALIASES.keys() | OTHER_VARIABLES
    # Keys of the pass-through table may be given one by one: REFOLD_KAFKA__LIBRDKAFKA__<key>.
    tables = tuple(env_name(path) + ENV_DELIMITER for path, field in leaves(model) if _is_table(field))
    for key in sorted(given):
        if key in legal or key.startswith((*OTHER_PREFIXES, *tables)):
            continue
        injected = _SERVICE_LINK.search(key) or (key.endswith("_PORT") and _SERVICE_URL.match(given[key]))
        if not injected:
            raise ConfigError(
                f"unknown setting {key} in the environment{_closest(key, legal)}; "
                "unset it, or see docs/reference/settings.md for the names"
            )
    try:
        values = _plain(EnvSettingsSource(model)())
    except SettingsError as err:
        raise ConfigError(
            f"the environment cannot be read: {err}; tables are given as a JSON object"
        ) from None
    for path in secret_paths(model):  # _secret_files reads these; to the source they look like unknown keys
        section, _, name = path.rpartition(".")
        values.get(section, {}).pop(f"{name}_file", None)
    for alias, path in ALIASES.items():
        if alias not in given:
            continue
        exact = given.get(names[path])
        if exact is not None and exact != given[alias]:
            raise ConfigError(f"{alias}={given[alias]} and {names[path]}={exact} differ; set one of them")
        _overlay(values, nest({path: given[alias]}))
        names[path] = alias
    shown = {}
    for path in _paths(values):
        leaf = path if path in names else path.rpartition(".")[0]
        shown[path] = f"env {names.get(leaf, env_name(path))}"
    return Layer(values, shown)


def _secret_files(model: type[BaseSettings]) -> Layer:
    flat: dict[str, Any] = {}
    names: dict[str, str] = {}
    for path in sorted(secret_paths(model)):
        variable = env_name(path) + "_FILE"
        location = os.environ.get(variable)
        if not location:
            continue
        if os.environ.get(env_name(path)):
            raise ConfigError(f"{env_name(path)} and {variable} are both set; keep one of them")
        try:
            with Path(location).open("rb") as handle:
                raw = handle.read(SECRET_FILE_BYTES_MAX + 1)
            text = raw.decode().strip()
        except (OSError, UnicodeDecodeError) as err:
            reason = err.strerror if isinstance(err, OSError) else "it is not UTF-8 text"
            raise ConfigError(
                f"{variable}={location} cannot be read: {reason}; mount the secret there"
            ) from None
        if len(raw) > SECRET_FILE_BYTES_MAX or not text:
            what = "is empty" if not text else f"is larger than {SECRET_FILE_BYTES_MAX} bytes"
            raise ConfigError(f"{variable}={location} {what}; it must hold the secret and nothing else")
        flat[path] = text
        names[path] = f"env {variable}"
    return Layer(nest(flat), names)


def _file(config: Path | None) -> Layer:
    named = config or (Path(os.environ["REFOLD_CONFIG"]) if os.environ.get("REFOLD_CONFIG") else None)
    path = named or Path(CONFIG_FILE)
    if named is None and not path.is_file():
        return Layer({}, {})
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except OSError as err:
        raise ConfigError(
            f"settings file {path} cannot be read: {err.strerror}; check --config or REFOLD_CONFIG"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as err:
        raise ConfigError(f"settings file {path} is not valid TOML: {err}") from None
    return Layer(values, dict.fromkeys(_paths(values), f"file {path}"))


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return {name: _plain(getattr(value, name)) for name in value.model_fields_set}
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return value


def _overlay(base: dict[str, Any], over: Mapping[str, Any]) -> None:
    for key, value in over.items():
        if isinstance(value, Mapping) and isinstance(base.get(key), dict):
            _overlay(base[key], value)
        else:
            base[key] = _plain(value)


def _paths(values: Mapping[str, Any], parent: str = "") -> Iterator[str]:
    for key, value in values.items():
        path = f"{parent}{key}"
        yield path
        if isinstance(value, Mapping):
            yield from _paths(value, path + ".")


def _is_table(field: Any) -> bool:
    return str(field.annotation).startswith("dict[")


def _closest(name: str, known: set[str]) -> str:
    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6)
    return f" (did you mean {close[0]}?)" if close else ""


def _shown(value: Any) -> str:
    if isinstance(value, SecretStr):
        return MASK
    text = "{…}" if isinstance(value, (BaseModel, Mapping)) else str(value)
    return text if len(text) <= SHOWN_CHARS_MAX else text[:SHOWN_CHARS_MAX] + "…"
