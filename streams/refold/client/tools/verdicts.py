"""What is known after a body ended by an exception: pure, by the tool's declared effect.

========================  ===========  ================================================================
the body                  effect       what is known
========================  ===========  ================================================================
raised ``ToolError``      any          it ran, and its answer is an error: *done*
raised ``NotDone``        any          nothing took effect: *not done*; but from a body that runs again under
                                       the same key (``idempotent``) it says nothing about the first time:
                                       *repeat*
raised anything else, or  none         there is nothing that could have taken effect: *not done*
ran into its time-out     idempotent   not known, but the same key may be sent again: *repeat*
                          external     not known: *ask* the lookup; without one, or if it cannot tell,
                                       *unknown*
========================  ===========  ================================================================

Retries: at most ``attempts_max - 1``, only for exceptions of ``retry_on`` (and ``NotDone(retryable=True)``),
and only where the effect is known not to have happened or may be repeated under the same key.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from refold.client.tools.outcomes import Effect, NotDone, OutcomeNotKnown, ToolError

Verdict: TypeAlias = Literal["done", "not_done", "repeat", "ask"]


def judge(effect: Effect, error: BaseException, *, again: bool = False) -> Verdict:
    """``again``: the body has been run under this key before, here or by a runner that is gone."""
    if isinstance(error, ToolError):
        return "done"
    if isinstance(error, NotDone):
        return "repeat" if again and effect == "idempotent" else "not_done"
    if effect == "none":
        return "not_done"
    if effect == "idempotent" and not isinstance(error, OutcomeNotKnown):
        return "repeat"
    return "ask"


def retryable(error: BaseException, retry_on: tuple[type[BaseException], ...]) -> bool:
    return isinstance(error, retry_on) or (isinstance(error, NotDone) and error.retryable)


def stricter(declared: Effect, recorded: str) -> Effect:
    """The effect a call is reconciled by: what it was started as, or what the tool is now, whichever allows
    less. A call started as external is not run again because a later release calls the tool harmless."""
    order: tuple[Effect, ...] = ("none", "idempotent", "external")
    for effect in reversed(order):
        if effect in (declared, recorded):
            return effect
    return declared


def describe(error: BaseException, timeout_s: float | None) -> tuple[str, str]:
    """(code, words) of a failure."""
    code = getattr(error, "code", None)
    if isinstance(error, ToolError | NotDone):
        return (code if isinstance(code, str) else "tool_error"), str(error)
    if isinstance(error, TimeoutError) and not str(error):
        return "timeout", f"no answer within {timeout_s:g} s" if timeout_s else "timed out"
    said = str(error)
    name = type(error).__name__
    return name, f"{name}: {said}" if said else name
