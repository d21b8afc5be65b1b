"""What a wrong word in the place of a command most likely was meant to be: the noun comes first, then the
verb, then the id; words that are nearly right are named."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from typing import Any

from typer.core import TyperGroup

from refold.errors import UsageError


def meant(path: str, args: Sequence[str], known: Collection[str]) -> UsageError:
    """For ``args`` behind ``path`` (``refold``, ``refold session``), whose first is none of ``known``."""
    wrong = args[0]
    later = next((word for word in args[1:] if word in known), None)
    if later is not None:
        return UsageError(
            f"there is no `{path} {wrong}`: the word {later!r} comes first, `{path} {later} {wrong}`."
        )
    close = difflib.get_close_matches(wrong, list(known), n=1)
    if close:
        return UsageError(f"there is no `{path} {wrong}`; did you mean `{path} {close[0]}`?")
    return UsageError(f"there is no `{path} {wrong}`: there are {', '.join(known)}. Try `{path} --help`.")


class Verbs(TyperGroup):
    """The verbs of a noun."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            raise meant(ctx.command_path, args, self.commands)
        return super().resolve_command(ctx, args)
