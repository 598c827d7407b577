"""Loads the plugins that a policy file names, and checks what they bring.

A short name is looked up in the entry-point group ``penstock.plugins``, which any installed
distribution may join. Names with a dot are aMQTT's and go to `penstock.broker.amqtt_host`.
"""

from __future__ import annotations

import difflib
import inspect
import logging
import time
import traceback
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Protocol, get_args

from penstock.broker.access_control import AccessControl, Authenticator
from penstock.broker.config.changes import KeyPath, failures, flatten
from penstock.broker.config.checked_yaml import show, suggest, validate_config
from penstock.broker.errors import ConfigError, ConfigProblem, PenstockError
from penstock.broker.events import Callbacks
from penstock.broker.extensions import (
    ALONE,
    ENTRY_POINT_GROUP,
    DeliveryGate,
    LinkSampler,
    MessageSink,
    MessageSource,
    PayloadStore,
    Plugin,
    PluginContext,
    SessionOwner,
    SessionStore,
    Worker,
)
from penstock.broker.message import SizeClass
from penstock.broker.plugin_guard import Guard


class PluginLoadError(PenstockError):
    """A plugin of the policy file cannot be loaded or started; the program ends with status 2."""


class NamesPlugins(Protocol):
    """A checked policy file, or the edge proxy's file, as far as it names plugins."""

    @property
    def file(self) -> str:
        """Its name as the user gave it."""

    @property
    def plugins(self) -> Mapping[str, Mapping[str, Any]]:
        """Short name of a plugin to its keys, in the order of the file."""

    @property
    def sections(self) -> Collection[str]:
        """The plugins whose names stand at the top of the file."""


@dataclass(frozen=True, slots=True)
class LoadedPlugins:
    """The plugins of a policy file and what they bring, all in the order of the file.

    Attributes:
        gate: the one delivery gate, or None.
        payload_store: the one payload store, or None.
        sinks: their message sinks, whose names are unique.
        session_owner: the one session owner, or None.
        session_store: the store of that owner, or None.
        access: their access controls.
        authenticators: their authenticators, whose methods are unique.
        worker: the process that they are in.
        elsewhere: names of the file's plugins that the first process of this machine has.
    """

    plugins: tuple[Plugin, ...] = ()
    names: tuple[str, ...] = ()
    gate: DeliveryGate | None = None
    samplers: tuple[LinkSampler, ...] = ()
    payload_store: PayloadStore | None = None
    sinks: tuple[MessageSink, ...] = ()
    sources: tuple[MessageSource, ...] = ()
    session_owner: SessionOwner | None = None
    session_store: SessionStore | None = None
    access: tuple[AccessControl, ...] = ()
    authenticators: tuple[Authenticator, ...] = ()
    callbacks: tuple[Callbacks, ...] = ()
    worker: Worker = ALONE
    elsewhere: tuple[str, ...] = ()

    @property
    def by_name(self) -> dict[str, Plugin]:
        """The plugins by their short names."""
        return dict(zip(self.names, self.plugins, strict=True))

    @property
    def has_authentication(self) -> bool:
        """Say whether one of them authenticates clients."""
        return bool(self.access or self.authenticators)

    async def start(self) -> None:
        """Start every plugin, in the order of the file.

        Raises:
            PenstockError: a plugin cannot start.
        """
        await self._each("start")

    async def restored(self) -> None:
        """Tell every plugin that the sessions are restored, in the order of the file.

        Raises:
            PenstockError: a plugin cannot work.
        """
        await self._each("restored")

    async def _each(self, step: str) -> None:
        for name, plugin in zip(self.names, self.plugins, strict=True):
            try:
                await getattr(plugin, step)()
            except PenstockError:
                raise
            except Exception as error:
                raise _failed(name, f"{step}: ", error) from error

    async def close(self, guard: Guard) -> None:
        """Close every plugin; one that raises keeps none of the others from closing."""
        for plugin in self.plugins:
            await guard.wait_for(plugin, plugin.close, otherwise=None)

    async def reload(self, wanted: NamesPlugins, listeners: Iterable[str]) -> PluginReload:
        """Have every plugin read its files and its keys again; nothing changes before `apply`."""
        found = PluginReload()
        for name in wanted.plugins:
            if name not in (*self.names, *self.elsewhere):
                found.values[_place(wanted, name)] = "a plugin"
                found.failed |= _problems_of_new(wanted, name)
        found.contexts += [plugin.context for plugin in self.plugins]
        for name, plugin in zip(self.names, self.plugins, strict=True):
            if name not in wanted.plugins:
                continue
            keys = wanted.plugins[name]
            plugin.context = plugin.context._replace(listeners=tuple(listeners))
            await _prepare(found, plugin, _place(wanted, name), keys, wanted.file)
        return found

    def give_up(self, found: PluginReload) -> None:
        """Leave the plugins as they were before `reload`."""
        for plugin, context in zip(self.plugins, found.contexts, strict=True):
            plugin.context = context

    def values(self) -> dict[KeyPath, Any]:
        """Return the keys of the plugins as they were made."""
        flat: dict[KeyPath, Any] = {}
        for name, plugin in zip(self.names, self.plugins, strict=True):
            path = tuple(plugin.key_of(name).split("."))
            flat[path] = "a plugin"
            flat |= flatten(plugin.config, path)
        return flat

    def share_period(self) -> None:
        """Tell the gate how often subscribers are looked at."""
        periods = [sampler.period for sampler in self.samplers if sampler.period is not None]
        if self.gate is not None and periods:
            self.gate.probe_period = min(periods)


@dataclass(slots=True)
class PluginReload:
    """What the plugins of a program have prepared for a reload.

    Attributes:
        failed: plugin, or key, to why it cannot be used.
        applies: what makes it count: the plugin, and `Reload.apply`.
    """

    read: list[str] = field(default_factory=list)
    values: dict[KeyPath, Any] = field(default_factory=dict)
    live: dict[KeyPath, bool] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    applies: list[tuple[str, Plugin, Callable[[], Awaitable[None] | None]]] = field(
        default_factory=list
    )
    contexts: list[PluginContext] = field(default_factory=list)

    def apply(self, guard: Guard) -> Awaitable[None]:
        """Make all of it count; what fails nevertheless is added to `failed`.

        Returns:
            What is left that has to wait, such as for a database.
        """
        waiting: list[tuple[str, Plugin, Awaitable[None]]] = []
        for path, plugin, apply in self.applies:
            try:
                rest = apply()
            except Exception as error:  # noqa: BLE001 (one plugin's fault must not end the program)
                guard.failed(plugin, error)
                self.failed[path] = str(error)
            else:
                if rest is not None:
                    waiting.append((path, plugin, rest))
        return self._finish(waiting, guard)

    async def _finish(
        self, waiting: Sequence[tuple[str, Plugin, Awaitable[None]]], guard: Guard
    ) -> None:
        for path, plugin, rest in waiting:
            try:
                await rest
            except PenstockError as error:
                self.failed[path] = str(error)
            except Exception as error:  # noqa: BLE001 (as above)
                guard.failed(plugin, error)
                self.failed[path] = str(error)


def _place(policy: NamesPlugins, name: str) -> KeyPath:
    """Return where a file has a plugin."""
    return (name,) if name in policy.sections else ("plugins", name)


def _read_config(
    policy: NamesPlugins, name: str, offered: Mapping[str, EntryPoint]
) -> tuple[type[Plugin], Any]:
    """Return the class of a plugin that a file names, and its keys, checked.

    Raises:
        ConfigError: it is unknown, stands in a wrong place, or has a wrong key or value.
        PluginLoadError: it cannot be imported.
    """
    place = ".".join(_place(policy, name))
    if name not in offered:
        problem = ConfigProblem(place, "an unknown plugin", suggest(name, offered))
        raise ConfigError(policy.file, [problem])
    cls = _plugin_class(name, offered[name])
    if place != cls.key_of(name):
        problem = ConfigProblem(place, "a plugin in this place", cls.key_of(name))
        raise ConfigError(policy.file, [problem])
    return cls, validate_config(cls.Config, policy.plugins[name], policy.file, place)


def _read_configs(
    policy: NamesPlugins,
) -> tuple[dict[str, tuple[type[Plugin], Any]], list[ConfigProblem]]:
    """Return class and keys of all plugins that a file names, and what is wrong with others."""
    offered = _offered_plugins()
    found: dict[str, tuple[type[Plugin], Any]] = {}
    problems: list[ConfigProblem] = []
    for name in policy.plugins:
        try:
            found[name] = _read_config(policy, name, offered)
        except ConfigError as error:
            problems.extend(error.problems)
    return found, problems


def processes_per_machine(policy: NamesPlugins) -> int:
    """Return how many processes of the broker a machine is to have, by plugins that are not wrong.

    Raises:
        PluginLoadError: a plugin cannot be imported.
    """
    return _most_processes(_read_configs(policy)[0])


def _most_processes(configs: Mapping[str, tuple[type[Plugin], Any]]) -> int:
    asked = (cls.processes_per_machine(config) for cls, config in configs.values())
    return max(asked, default=1)


def _problems_of_new(policy: NamesPlugins, name: str) -> dict[str, str]:
    """Return why a plugin that is to come with the next start could not."""
    try:
        _read_config(policy, name, _offered_plugins())
    except PenstockError as error:
        return failures(error, policy.file, ".".join(_place(policy, name)))
    return {}


async def _prepare(
    found: PluginReload, plugin: Plugin, path: KeyPath, keys: Mapping[str, Any], file: str
) -> None:
    """Have one plugin read and check its part of a reload."""
    shown = ".".join(path)
    try:
        config: Any = validate_config(plugin.Config, keys, file, shown)
        answer = await plugin.reload(config)
    except PenstockError as error:
        found.failed |= failures(error, file, shown)
        return
    except Exception as error:  # noqa: BLE001 (one plugin's fault must not end the program)
        found.failed[shown] = _with_place(error)
        return
    found.read += [f"{shown}.{read}" for read in answer.read]
    found.values[path] = "a plugin"
    found.values |= flatten(config, path)
    found.live |= {(*path, key): True for key in answer.takes}
    found.live |= {(*path, *left): False for left in answer.leaves}
    found.applies.append((shown, plugin, answer.apply))


def load_plugins(
    policy: NamesPlugins,
    *,
    clock: Callable[[], float] = time.monotonic,
    listeners: Iterable[str] = (),
    worker: Worker | None = None,
    **given: Any,
) -> LoadedPlugins:
    """Make the plugins that the policy names by a short name.

    A plugin shows its extension points as soon as it is made. It is not started.

    Args:
        policy: the checked file.
        clock: returns monotonic seconds.
        listeners: names of the listeners.
        worker: this process; None for the first of as many as the plugins ask for.
        given: further fields of `PluginContext`.

    Raises:
        ConfigError: an unknown name, a wrong key or value, or two plugins for one place.
        PluginLoadError: a plugin cannot be imported or made.
    """
    configs, problems = _read_configs(policy)
    worker = worker or Worker(total=_most_processes(configs))
    made: dict[str, Plugin] = {}
    given |= {"plugins": MappingProxyType(made), "worker": worker}
    elsewhere: list[str] = []
    for name, (cls, config) in configs.items():
        if cls.is_one_per_machine and worker.number > 1:
            elsewhere.append(name)
            continue
        logger = logging.getLogger(f"penstock.{name}")
        context = PluginContext(logger, policy.file, clock, tuple(listeners), **given)
        made[name] = _make(name, cls, config, context)
        _check_contracts(name, made[name])
    problems.extend(_conflicts(made))
    if problems:
        raise ConfigError(policy.file, problems)
    _warn_of_blind_gate(made, policy.file)
    plugins = tuple(made.values())
    gate = next((one.gate for one in plugins if one.gate is not None), None)
    samplers = tuple(one.sampler for one in plugins if one.sampler is not None)
    loaded = LoadedPlugins(
        plugins=plugins,
        names=tuple(made),
        gate=gate,
        samplers=samplers,
        payload_store=next(
            (one.payload_store for one in plugins if one.payload_store is not None), None
        ),
        sinks=tuple(sink for one in plugins for sink in one.sinks),
        sources=tuple(source for one in plugins for source in one.sources),
        session_owner=next(
            (one.session_owner for one in plugins if one.session_owner is not None), None
        ),
        session_store=next(
            (one.session_store for one in plugins if one.session_store is not None), None
        ),
        access=tuple(one.access for one in plugins if one.access is not None),
        authenticators=tuple(which for one in plugins for which in one.authenticators),
        callbacks=tuple(one.callbacks for one in plugins if one.callbacks is not None),
        worker=worker,
        elsewhere=tuple(elsewhere),
    )
    loaded.share_period()
    return loaded


def _offered_plugins() -> dict[str, EntryPoint]:
    """Return the installed plugins by short name.

    Raises:
        PluginLoadError: two distributions offer different plugins under one name.
    """
    offered: dict[str, EntryPoint] = {}
    for point in entry_points(group=ENTRY_POINT_GROUP):
        other = offered.setdefault(point.name, point)
        if other.value != point.value:
            raise PluginLoadError(
                f"plugin {point.name}: installed twice, as {other.value} and as {point.value}; "
                "uninstall one of them"
            )
    return offered


def _plugin_class(name: str, point: EntryPoint) -> type[Plugin]:
    try:
        cls = point.load()
    except (ImportError, AttributeError) as error:
        raise PluginLoadError(
            f"plugin {name}: {point.value} cannot be imported: {error}"
        ) from error
    except Exception as error:
        raise _failed(name, f"{point.value} cannot be imported: ", error) from error
    if not (isinstance(cls, type) and issubclass(cls, Plugin) and hasattr(cls, "Config")):
        raise PluginLoadError(
            f"plugin {name}: {point.value} is {cls!r}; allowed: a subclass of "
            "penstock.broker.extensions.Plugin with a Config"
        )
    return cls


def _make(name: str, cls: type[Plugin], config: Any, context: PluginContext) -> Plugin:
    try:
        plugin = cls(config, context)
    except PenstockError:
        raise
    except Exception as error:
        raise _failed(name, "", error) from error
    # A constructor need not call that of `Plugin`.
    for attribute, value in (("config", config), ("context", context)):
        if not hasattr(plugin, attribute):
            setattr(plugin, attribute, value)
    return plugin


def _failed(name: str, step: str, error: Exception) -> PluginLoadError:
    """Return the error of a plugin that raised one of its own; its traceback is logged at DEBUG."""
    logging.getLogger(f"penstock.{name}").debug("traceback:", exc_info=error)
    return PluginLoadError(f"plugin {name}: {step}{_with_place(error)}")


def _with_place(error: Exception) -> str:
    """Return an error with the line of a plugin that raised it, if one did."""
    told = f"{type(error).__name__}: {error}"
    raised_at = traceback.extract_tb(error.__traceback__)[-1]
    # A SyntaxError has its place in its text, and what calls a plugin wrongly is here.
    if isinstance(error, SyntaxError) or raised_at.filename == __file__:
        return told
    return f"{told} ({Path(raised_at.filename).name}, line {raised_at.lineno})"


_MAY_WAIT: Final[dict[type, frozenset[str]]] = {
    AccessControl: frozenset({"authenticate", "check_password", "authorize"}),
    SessionOwner: frozenset({"claim", "routed"}),
    SessionStore: frozenset({"write"}),
}
"""Methods of an extension point that may be asynchronous, by its base class."""

_SAME_NAME_RATIO: Final = 0.8
"""Similarity, as `difflib` has it, from which a name counts as a misspelt one of the base class:
one wrong letter in six, a plural, a leading `on_` and camel case are all above it."""


def _check_contracts(name: str, plugin: Plugin) -> None:
    """Check what a plugin brings against the extension points' base classes.

    Raises:
        PluginLoadError: it names the method or attribute, what was read and what is allowed.
    """
    brought: list[tuple[object, type]] = [
        (plugin, Plugin),
        (plugin.gate, DeliveryGate),
        (plugin.sampler, LinkSampler),
        (plugin.payload_store, PayloadStore),
        (plugin.session_owner, SessionOwner),
        (plugin.session_store, SessionStore),
        (plugin.access, AccessControl),
        (plugin.callbacks, Callbacks),
    ]
    owner = type(plugin).__qualname__
    _check_list(name, f"{owner}.sinks", plugin.sinks, MessageSink.__name__)
    _check_list(name, f"{owner}.sources", plugin.sources, MessageSource.__name__)
    _check_list(name, f"{owner}.authenticators", plugin.authenticators, Authenticator.__name__)
    brought += [(sink, MessageSink) for sink in plugin.sinks]
    brought += [(source, MessageSource) for source in plugin.sources]
    brought += [(authenticator, Authenticator) for authenticator in plugin.authenticators]
    for extension, base in brought:
        if extension is None:
            continue
        for what, read, allowed in breaches(extension, base):
            raise PluginLoadError(f"plugin {name}: {what}: read {read}; allowed: {allowed}")
    for sink in plugin.sinks:
        what = f"{type(sink).__qualname__}.topic_filters"
        _check_list(name, what, sink.topic_filters, "topic filters")
        if sink.sizes not in (None, *get_args(SizeClass)):
            what = f"{type(sink).__qualname__}.sizes"
            raise PluginLoadError(
                f"plugin {name}: {what}: read {show(sink.sizes)}; allowed: 'small', 'large' or None"
            )
    for event in fields(Callbacks) if plugin.callbacks is not None else ():
        callbacks = getattr(plugin.callbacks, event.name)
        _check_list(name, f"Callbacks.{event.name}", callbacks, "functions")
        for callback in callbacks:
            for read, allowed in _method_breaches(callback, _callback, can_wait=False):
                what = getattr(callback, "__qualname__", repr(callback))
                raise PluginLoadError(
                    f"plugin {name}: {what}, a callback of {event.name}: read {read}; "
                    f"allowed: {allowed}"
                )


def breaches(extension: object, base: type) -> Iterator[tuple[str, str, str]]:
    """Find what an extension does not have as the base class of its extension point asks.

    Without this check, a method with a misspelt name, with other arguments, or that is asynchronous
    would be noticed late or never.

    Yields:
        (the method or attribute, what was read, what is allowed).
    """
    kind, contract = type(extension), base.__name__
    may_wait = _MAY_WAIT.get(base, frozenset())
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
        similar = difflib.get_close_matches(name, known, 1, _SAME_NAME_RATIO)
        if similar:
            yield (
                f"{kind.__qualname__}.{name}",
                f"a name that {base.__name__} does not have (perhaps {similar[0]})",
                f"one of {', '.join(contract)}, or for its own use a name that begins with _",
            )


def _callback(event: object) -> None:
    """Have the form of a callback of an event."""


def _method_breaches(
    method: Any, default: Callable[..., Any], *, can_wait: bool
) -> Iterator[tuple[str, str]]:
    """Yield (what was read, what is allowed) where a method cannot be called as its default."""
    parameters = inspect.signature(default).parameters
    wanted = [name for name in parameters if name != "self"]
    by_name = [name for name in wanted if parameters[name].kind == inspect.Parameter.KEYWORD_ONLY]
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
        signature.bind(*wanted[: len(wanted) - len(by_name)], **dict.fromkeys(by_name))
    except TypeError:
        yield f"a method that takes {signature}", form


def _public(cls: type) -> dict[str, Any]:
    return {name: value for name, value in vars(cls).items() if not name.startswith("_")}


def _check_list(name: str, what: str, value: object, of: str) -> None:
    """Check that there are several where several may be; a text is not several topic filters.

    Raises:
        PluginLoadError: it names the attribute, what was read and what is allowed.
    """
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise PluginLoadError(
            f"plugin {name}: {what}: read {show(value)}; allowed: a tuple or list of {of}"
        )


def _conflicts(made: Mapping[str, Plugin]) -> Iterator[ConfigProblem]:
    """Find places that more than one plugin would fill."""
    taken: dict[str, str] = {}
    for name, plugin in made.items():
        places = [f"sink named {sink.name}" for sink in plugin.sinks]
        places += [f"source of {source.prefix}/" for source in plugin.sources]
        places += [f"authentication method {one.method}" for one in plugin.authenticators]
        if plugin.gate is not None:
            places.append("delivery gate")
        if plugin.payload_store is not None:
            places.append("payload store")
        if plugin.session_owner is not None:
            places.append("session owner")
        if plugin.session_store is not None:
            places.append("session store")
        for what in places:
            if what in taken:
                read = f"a second {what} beside that of {taken[what]}"
                yield ConfigProblem(plugin.key_of(name), read, f"one {what}")
            else:
                taken[what] = name


def _warn_of_blind_gate(made: Mapping[str, Plugin], file: str) -> None:
    """Warn of a gate that will know nothing of any path: it may let every message go, unnoticed."""
    gates = [name for name, plugin in made.items() if plugin.gate is not None]
    looking = (
        plugin.sampler is not None and (plugin.gate is None or plugin.sampler.period is not None)
        for plugin in made.values()
    )
    if gates and not any(looking):
        logging.getLogger(f"penstock.{gates[0]}").warning(
            "%s: no plugin under plugins finds out RTTs: where %s decides by them, it lets every "
            "message go; name one, such as probing",
            file,
            gates[0],
        )
