"""The contract between the broker and an extension: what is overridden, and whether rightly.

An extension point is a base class whose methods have defaults. `overridden` finds out what need not
be called, once, when the broker starts. `breaches` finds what would otherwise be noticed late or
never: a method with a misspelt name, with other arguments, or that is asynchronous.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

Method = TypeVar("Method", bound=Callable[..., Any])

SAME_NAME_RATIO: Final = 0.8
"""Similarity, as `difflib` has it, from which a name is taken for a misspelt one of the contract:
above it are one wrong letter in six, a plural, `on_` before, and camel case."""


def overridden(method: Method, default: Callable[..., Any]) -> Method | None:
    """Return a method of an extension; None where it is the base class's and need not be called.

    Args:
        method: of the extension, bound to it.
        default: the base class's function.
    """
    return None if getattr(method, "__func__", None) is default else method


def breaches(
    extension: object, base: type, *, may_wait: frozenset[str] = frozenset()
) -> Iterator[tuple[str, str, str]]:
    """Find what an extension does not have as its base class asks.

    Args:
        extension: an object that a plugin brings.
        base: of its extension point.
        may_wait: names of methods that may be asynchronous.

    Yields:
        (what it is about, what was read, what is allowed).
    """
    kind, contract = type(extension), base.__name__
    if not isinstance(extension, base):
        allowed = f"a subclass of {base.__module__}.{contract}"
        yield kind.__qualname__, f"an object that is no {contract}", allowed
        return
    for name, declared in base.__annotations__.items():
        if not hasattr(extension, name):
            yield f"{kind.__qualname__}.{name}", "nothing", str(declared)
    for name, default in _public(base).items():
        if inspect.isfunction(default):
            method = getattr(extension, name)
            if getattr(method, "__func__", None) is not default:
                for read, allowed in _method_breaches(method, default, can_wait=name in may_wait):
                    yield f"{kind.__qualname__}.{name}", read, allowed
    yield from _misspelt(extension, base)


def _misspelt(extension: object, base: type) -> Iterator[tuple[str, str, str]]:
    kind, contract = type(extension), sorted(_public(base).keys() | base.__annotations__)
    classes = kind.__mro__[: kind.__mro__.index(base)]
    names = {name for cls in classes for name in _public(cls)}
    names |= {name for name in getattr(extension, "__dict__", {}) if not name.startswith("_")}
    for name in sorted(names.difference(contract)):
        # `closed = False` is no misspelt `close`: what cannot be called is no method.
        is_method = callable(inspect.getattr_static(extension, name))
        known = contract if is_method else sorted(base.__annotations__)
        similar = difflib.get_close_matches(name, known, 1, SAME_NAME_RATIO)
        if similar:
            yield (
                f"{kind.__qualname__}.{name}",
                f"a name that {base.__name__} does not have (perhaps {similar[0]})",
                f"one of {', '.join(contract)}, or for its own use a name that begins with _",
            )


def callback_breaches(callback: object) -> Iterator[tuple[str, str]]:
    """Yield what was read instead of a callback of an event, and what is allowed."""
    return _method_breaches(callback, _callback, can_wait=False)


def _callback(event: object) -> None:
    """Have the form of a callback of an event."""


def _method_breaches(
    method: Any, default: Callable[..., Any], *, can_wait: bool
) -> Iterator[tuple[str, str]]:
    wanted = [name for name in inspect.signature(default).parameters if name != "self"]
    form = f"a method that takes ({', '.join(wanted)})"
    if not callable(method):
        yield f"{method!r:.100}", form
        return
    is_async = inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)
    if inspect.iscoroutinefunction(default) and not is_async:
        yield "a plain function", "async def"
    elif is_async and not (can_wait or inspect.iscoroutinefunction(default)):
        yield "an asynchronous function", "a plain one: the broker does not wait for it"
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):  # of one that is written in C
        return
    try:
        signature.bind(*wanted)
    except TypeError:
        yield f"a method that takes {signature}", form


def _public(cls: type) -> dict[str, Any]:
    return {name: value for name, value in vars(cls).items() if not name.startswith("_")}
