"""Find and read ``topology/*.yaml``: the copy inside the installed package, else the repository's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from refold.errors import ConfigError
from refold.topology.spec import EnvironmentSpec, ParticipantsSpec, TopicKind, TopicSpec

#: A wheel carries the data as package data; an editable install does not (hatchling's force-include).
_PACKAGED = Path(__file__).resolve().parent.parent / "_data" / "topology"
_REPOSITORY = Path(__file__).resolve().parents[3] / "topology"
LOCK_FILE = "topology.lock.json"

_M = TypeVar("_M", bound=BaseModel)


def data_root() -> Path:
    """Directory of the specification. Raises :class:`ConfigError` when neither copy is there."""
    for root in (_PACKAGED, _REPOSITORY):
        if (root / "groups.yaml").is_file():
            return root
    raise ConfigError(
        f"the topology data is missing (looked in {_PACKAGED} and {_REPOSITORY}): install refold again."
    )


def read_topics(root: Path) -> tuple[TopicSpec, ...]:
    files = sorted((root / "topics").glob("*.yaml"))
    if not files:
        raise ConfigError(f"no topic is described in {root / 'topics'}.")
    topics = tuple(_read(file, TopicSpec) for file in files)
    for file, topic in zip(files, topics, strict=True):
        if file.stem != topic.name:
            raise ConfigError(f"{file} describes {topic.name!r}: a file is named after its topic.")
    order = get_args(TopicKind)  # the way of a record, which is how people read it
    return tuple(sorted(topics, key=lambda topic: order.index(topic.name)))


def read_participants(root: Path) -> ParticipantsSpec:
    return _read(root / "groups.yaml", ParticipantsSpec)


def read_environment(root: Path, name: str) -> EnvironmentSpec:
    file = root / "environments" / f"{name}.yaml"
    if not file.is_file():
        known = ", ".join(sorted(path.stem for path in (root / "environments").glob("*.yaml")))
        raise ConfigError(f"there is no environment {name!r}; known: {known}.")
    return _read(file, EnvironmentSpec)


def read_lock(root: Path) -> dict[str, Any]:
    file = root / LOCK_FILE
    try:
        lock: dict[str, Any] = json.loads(file.read_text("utf-8"))
    except (OSError, json.JSONDecodeError) as err:
        raise ConfigError(
            f"{file} cannot be read ({err}): write it with `refold topology render lock`."
        ) from None
    return lock


def _read(file: Path, model: type[_M]) -> _M:
    try:
        return model.model_validate(yaml.safe_load(file.read_text("utf-8")))
    except OSError as err:
        raise ConfigError(f"{file} cannot be read: {err.strerror}.") from None
    except yaml.YAMLError as err:
        raise ConfigError(f"{file} is not valid YAML: {err}") from None
    except ValidationError as err:
        problems = "; ".join(
            f"{'.'.join(str(p) for p in e['loc']) or 'file'}: {e['msg']}" for e in err.errors()
        )
        raise ConfigError(f"{file}: {problems}") from None
