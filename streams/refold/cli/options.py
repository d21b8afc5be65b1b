"""Options that mean the same in every command, and the settings a command runs with.

A command declares what it takes (``bootstrap: BootstrapOption = None``) and calls :func:`settings_for`; flags
rank above the environment and the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

if TYPE_CHECKING:
    from refold.core.reducers import Registry
    from refold.settings import Settings

BootstrapOption = Annotated[
    str | None,
    typer.Option(
        "--bootstrap", metavar="HOST:PORT", help="Brokers. Default: REFOLD_BOOTSTRAP or the settings file."
    ),
]
PrefixOption = Annotated[
    str | None, typer.Option("--prefix", help="Topic prefix. Default: REFOLD_TOPIC_PREFIX or 'refold'.")
]
EnvironmentOption = Annotated[
    str | None, typer.Option("--environment", help="dev, test or prod. Default: REFOLD_ENVIRONMENT or dev.")
]
PartitionsOption = Annotated[
    int | None,
    typer.Option("--partitions", min=1, help="Partition count at creation. Default: what the topology says."),
]
TenantOption = Annotated[str | None, typer.Option("--tenant", help="Default: REFOLD_TENANT or 'default'.")]
OnlyTenantOption = Annotated[str | None, typer.Option("--tenant", help="Only of this tenant. Default: all.")]
SessionArgument = Annotated[str, typer.Argument(metavar="SESSION", help="Session id, without the tenant.")]

#: Rows of a list: more than anyone reads; the counts beside it cover everything that was found.
LIST_LIMIT_DEFAULT: Final = 100
LIST_LIMIT_MAX: Final = 10_000
OldestOption = Annotated[
    int, typer.Option("--limit", min=1, max=LIST_LIMIT_MAX, help="Rows shown, oldest first.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="One object on one line, the last of stdout.")]
YesOption = Annotated[bool, typer.Option("--yes", help="Do it without asking.")]


ReducersOption = Annotated[
    str | None,
    typer.Option(
        "--reducers", metavar="MODULES", help="Modules with reducers. Default: REFOLD_WORKER__REDUCERS."
    ),
]


@dataclass(slots=True)
class RootOptions:
    """What stands before the noun: ``refold --config X --debug topology plan``."""

    config: Path | None = None
    debug: bool = False


#: Set once by the root callback, before any command runs.
ROOT = RootOptions()


def load_reducers(modules: str | None) -> Registry | None:
    """Fold the reducers of the modules given, or of the settings, in this process. Raises ConfigError."""
    from refold.reducers import load, words

    return load(words(modules if modules is not None else settings_for().worker.reducers))


def settings_for(
    *,
    bootstrap: str | None = None,
    prefix: str | None = None,
    environment: str | None = None,
    partitions: int | None = None,
    **flags: Any,
) -> Settings:
    """Settings with the given flags on top; further ``flags`` by path, ``worker__http_port=0``.

    Raises :class:`refold.errors.ConfigError`.
    """
    from refold.settings import load_settings

    return load_settings(
        ROOT.config,
        {
            "kafka.bootstrap": bootstrap,
            "topic_prefix": prefix,
            "environment": environment,
            "partitions": partitions,
            **{name.replace("__", "."): value for name, value in flags.items()},
        },
    )
