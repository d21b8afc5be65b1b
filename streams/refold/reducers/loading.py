"""Make this process fold the reducers it has: once, before anything is folded."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from pathlib import Path

from refold.core import reducers as pure
from refold.errors import ConfigError, RefoldError
from refold.reducers.declaring import Declared, declared
from refold.reducers.event import Schemas, viewer


def words(setting: str | None) -> tuple[str, ...]:
    """The names in a comma separated setting."""
    return tuple(word.strip() for word in (setting or "").split(",") if word.strip())


def load(modules: Iterable[str]) -> pure.Registry | None:
    """Import the modules and fold what they declare; ``None`` where there is no reducer.

    Modules of the working directory are found too. Raises ConfigError for one that cannot be imported and for
    one that leaves the process without any reducer.
    """
    names = list(modules)
    here = str(Path.cwd())
    for name in names:
        added = here not in sys.path
        if added:
            sys.path.append(here)
        try:
            importlib.import_module(name)
        except RefoldError as error:
            raise ConfigError(f"worker.reducers: module {name}: {error}") from None
        except Exception as error:
            raise ConfigError(
                f"worker.reducers: module {name} cannot be imported ({type(error).__name__}: {error}). Is it"
                f" in the working directory {here} or in PYTHONPATH?"
            ) from error
        finally:
            if added:
                sys.path.remove(here)
    if names and not declared():
        raise ConfigError(f"worker.reducers: {', '.join(names)}: no @refold.reducer is declared there")
    return install()


def install() -> pure.Registry | None:
    """Fold every reducer declared so far in this process. Raises ConfigError: two name other schemas for one
    type."""
    found = declared().values()
    schemas = _schemas(found)
    known = pure.active
    mine = {made.pure.name: made.pure for made in found}
    if known is not None and known.by_name == mine:
        return known
    pure.install(pure.Registry(mine.values(), viewer(schemas)))
    return pure.active


def _schemas(found: Iterable[Declared]) -> dict[str, Schemas]:
    """By type, for all reducers of it: the payload is what it is, whoever reads it."""
    schemas: dict[str, Schemas] = {}
    for made in found:
        for kind, versions in made.schemas.items():
            if schemas.setdefault(kind, versions) != versions:
                raise ConfigError(
                    f"reducer {made.pure.name}: another reducer names another schema for {kind}"
                )
    return schemas
