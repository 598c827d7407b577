from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.architecture import table
from tests.architecture.source import Import, Module, read_imports, read_modules


def modules_of(package: str) -> list[Module]:
    """Return the modules of one package."""
    return [module for module in read_modules() if module.package == package]


def is_within(name: str, allowed: tuple[str, ...]) -> bool:
    """Say whether a dotted name is one of `allowed` or below one of them."""
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in allowed)


def folder_of(name: str) -> str:
    """Return the folder of broker/ that a module is in; its own name at the root."""
    return [*name.split("."), ""][1]


def is_assembly(name: str) -> bool:
    """Say whether a module of broker/ stands above the contract and the core."""
    inner = name.removeprefix("broker.")
    return folder_of(name) in table.ASSEMBLY or is_within(inner, table.DOES_IO)


def is_contract(name: str) -> bool:
    """Say whether a module of broker/ is what plugins may see."""
    return name == "broker" or folder_of(name) in {*table.CONTRACT, *table.CONTRACT_FOLDERS}


def is_pure(module: Module) -> bool:
    """Say whether a module has to leave time, chance and I/O to its caller."""
    if module.package == "broker":
        return not is_assembly(module.name)
    if module.package == "plugins":
        return not is_within(module.name, tuple(table.PLUGIN_IO))
    return module.name in table.EDGE_PROXY_PURE


def breaches(module: Module, found: list[Import], allowed: tuple[str, ...]) -> list[str]:
    """Return the imports that are not within `allowed`, as text."""
    return [
        f"{module.path}:{imported.line}: imports {imported.module}; allowed: {allowed}"
        for imported in found
        if not is_within(imported.module, allowed)
    ]


def of_broker(module: Module) -> list[Import]:
    """Return the imports of modules of broker/."""
    return [found for found in module.our_imports() if is_within(found.module, ("broker",))]


def upward(module: Module) -> list[Import]:
    """Return a broker module's imports of a later folder."""
    order = {name: place for place, name in enumerate(table.FOLDERS)}
    own = order.get(folder_of(module.name), len(order))
    return [found for found in of_broker(module) if order.get(folder_of(found.module), 0) > own]


def circles(arrows: dict[str, set[str]]) -> list[set[str]]:
    """Return the sets of names that reach each other, of two and more (Tarjan)."""
    found: list[set[str]] = []
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in arrows[name]:
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            members = set(stack[stack.index(name) :])
            del stack[stack.index(name) :]
            if len(members) > 1:
                found.append(members)

    for name in arrows:
        if name not in index:
            visit(name)
    return found


def broker_arrows(*, with_typing: bool) -> dict[str, set[str]]:
    """Return which modules of broker/ each imports."""
    names = {module.name for module in modules_of("broker")}
    return {
        module.name: {
            found.module
            for found in of_broker(module)
            if found.module in names and (with_typing or not found.is_for_typing)
        }
        for module in modules_of("broker")
    }


def test_imports_are_found_wherever_they_stand(tmp_path: Path) -> None:
    """Imports in functions and under TYPE_CHECKING count, submodules under their own name."""
    (tmp_path / "house").mkdir()
    (tmp_path / "house" / "room.py").touch()
    text = (
        "import socket, os.path\n"
        "from house import room, door\n"
        "if TYPE_CHECKING:\n    import random\n"
        "def f():\n    try:\n        from time import sleep\n    except E:\n        import ssl\n"
    )
    assert read_imports(ast.parse(text), tmp_path) == [
        Import("socket", 1, is_for_typing=False),
        Import("os.path", 1, is_for_typing=False),
        Import("house.room", 2, is_for_typing=False),
        Import("house", 2, is_for_typing=False),
        Import("random", 4, is_for_typing=True),
        Import("time", 7, is_for_typing=False),
        Import("ssl", 9, is_for_typing=False),
    ]


def test_relative_imports_are_refused() -> None:
    """Imports are absolute, so that the arrows can be read from them."""
    with pytest.raises(ValueError, match="relative"):
        read_imports(ast.parse("from . import room"))


def test_circles_are_found() -> None:
    """What reaches each other is one circle, whatever else hangs on it."""
    arrows = {"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": set(), "e": {"a"}}
    assert circles(arrows) == [{"a", "b", "c"}]


def test_package_arrows() -> None:
    """A module imports what its package's arrows, or its own, allow and nothing else of ours."""
    assert not [
        line
        for module in read_modules()
        for line in breaches(
            module,
            module.our_imports(),
            table.MODULE_ARROWS.get(module.name, table.PACKAGE_ARROWS[module.package]),
        )
    ]


def test_every_name_of_the_table_is_there() -> None:
    """An entry goes when what it names has gone."""
    names = {module.name for module in read_modules()}
    folders = {name.rpartition(".")[0] for name in names}
    of_broker = (*table.FOLDERS, *table.CONTRACT, *table.ASSEMBLY, *table.DOES_IO)
    listed = {
        *(f"broker.{name}" for name in of_broker),
        *table.MODULE_ARROWS,
        *table.CHECKOUT_ONLY,
        *(name for importers in table.CHECKOUT_ONLY.values() for name in importers),
        *table.PLUGIN_IO,
        *table.DRIVEN_BY_MODELS,
        *table.EDGE_PROXY_PURE,
        *table.ABOVE_THE_CONTRACT,
        *(name for allowed in table.ABOVE_THE_CONTRACT.values() for name in allowed),
        *table.PURE_PLUGIN_IMPORTS,
        *table.CONFIG_IMPORTS,
        *table.SHARED_BY_PLUGINS,
        *(name for importers in table.ONLY_IMPORTERS.values() for name in importers),
    }
    assert not listed - names - folders


def test_every_module_of_the_broker_has_a_place() -> None:
    """A file at its root is named; any other stands in a folder of the table."""
    places = {"", *table.FOLDERS, *table.CONTRACT, *table.ASSEMBLY}
    assert not [
        module.name for module in modules_of("broker") if folder_of(module.name) not in places
    ]


def test_folders_of_the_broker_import_earlier_ones() -> None:
    """No import goes up, at run time or for typing."""
    assert not [
        f"{module.path}:{imported.line}: imports {imported.module}"
        for module in modules_of("broker")
        for imported in upward(module)
    ]


def test_the_broker_is_seen_at_a_glance() -> None:
    """Its folders, and the modules at its root, are few."""
    assert (
        len({folder_of(module.name) for module in modules_of("broker")} - {""}) <= table.MOST_NODES
    )


def test_the_contract_imports_the_protocol_alone() -> None:
    """What a plugin's author reads first needs nothing of the rest of the broker."""
    allowed = ("broker.mqtt", *(f"broker.{name}" for name in table.CONTRACT))
    assert not [
        line
        for module in modules_of("broker")
        if folder_of(module.name) in table.CONTRACT
        for line in breaches(module, of_broker(module), allowed)
    ]


def test_the_broker_has_no_import_cycle() -> None:
    """Imports that happen at run time form no circle."""
    assert not circles(broker_arrows(with_typing=False))


def test_circles_of_the_broker_are_small() -> None:
    """Imports for typing counted, few modules name each other, and all of them in one folder."""
    found = circles(broker_arrows(with_typing=True))
    assert not [names for names in found if len({folder_of(name) for name in names}) > 1]
    assert max(map(len, found), default=0) <= table.MOST_IN_A_CIRCLE


def test_pure_modules_do_no_io() -> None:
    """The core and the pure modules import no clock, no chance and no I/O."""
    assert not [
        f"{module.path}:{imported.line}: imports {imported.module}"
        for module in read_modules()
        if is_pure(module)
        for imported in module.imports
        if (name := imported.module.partition(".")[0]) in table.DO_IO
        and not (imported.is_for_typing and name in table.FOR_TYPING)
    ]


def test_plugins_meet_the_broker_at_its_contract() -> None:
    """Adapters alone import the extension points; pure modules see messages and links."""
    found = []
    for module in modules_of("plugins"):
        imports = of_broker(module)
        if not is_pure(module):
            too_high = [each for each in imports if not is_contract(each.module)]
            allowed = table.ABOVE_THE_CONTRACT.get(module.name, ())
            found += breaches(module, too_high, allowed)
        elif module.name.endswith((".config", ".limits")):
            found += breaches(module, imports, table.CONFIG_IMPORTS)
        else:
            found += breaches(module, imports, table.PURE_PLUGIN_IMPORTS)
        if module.name not in table.PLUGIN_ADAPTERS:
            found += [
                f"{module.path}:{each.line}: {each.module}"
                for each in imports
                if each.module in ("broker.access_control", "broker.extensions")
            ]
    assert not found


def test_plugin_folders_do_not_import_each_other() -> None:
    """Plugins meet in links and events, never in each other's code; pure ones in pure ones."""
    found = []
    for module in modules_of("plugins"):
        folder = ".".join(module.name.split(".")[:2])
        ours = [each for each in module.our_imports() if is_within(each.module, ("plugins",))]
        found += breaches(module, ours, (folder, *table.SHARED_BY_PLUGINS))
        if is_pure(module):
            found += [
                f"{module.path}: {each.module}"
                for each in ours
                if is_within(each.module, tuple(table.PLUGIN_IO))
            ]
    assert not found


def test_queue_client_stands_alone() -> None:
    """What Spark's executors import loads nothing else of ours."""
    loaded = ("plugins.queue.client", "plugins.queue.wire")
    modules = [module for module in read_modules() if is_within(module.name, loaded)]
    assert len(modules) > len(loaded)
    imports = [found.module for module in modules for found in module.our_imports()]
    assert all(is_within(module, loaded[1:]) for module in imports)


def test_models_use_the_pure_parts_of_plugins() -> None:
    """A model drives a production policy, never what does I/O."""
    assert not [
        f"{module.path}: {found.module}"
        for module in read_modules()
        if module.package == "models"
        for found in module.our_imports()
        if is_within(found.module, tuple(table.PLUGIN_IO))
        and not is_within(found.module, tuple(table.DRIVEN_BY_MODELS))
    ]


def test_what_is_installed_needs_nothing_that_is_not() -> None:
    """Kernels, planner and recorder work without the papers' evaluations, which no wheel has."""
    assert not [
        f"{module.path}:{found.line}: imports {found.module}"
        for folder, importers in table.CHECKOUT_ONLY.items()
        for module in read_modules()
        if module.package != "benchmarks" and not is_within(module.name, importers)
        for found in module.our_imports()
        if is_within(found.module, (folder,))
    ]


def test_the_edge_proxy_holds_no_broker() -> None:
    """The sidecar stands on codec, outbox and gate without the server."""
    assert not [
        line
        for module in read_modules()
        if module.package == "edge_proxy"
        for line in breaches(
            module,
            [each for each in of_broker(module) if is_assembly(each.module)],
            table.ABOVE_THE_CONTRACT.get(module.name, ()),
        )
    ]


def test_third_party_packages_stay_in_their_place() -> None:
    """The packages of others that have one place in the house are imported only there."""
    assert not [
        f"{module.path}:{imported.line}: {package}"
        for package, importers in table.ONLY_IMPORTERS.items()
        for module in read_modules()
        if not is_within(module.name, importers)
        for imported in module.imports
        if is_within(imported.module, (package,))
    ]


def test_package_inits_import_nothing_of_ours() -> None:
    """Importing a package loads nothing else: the models and executors take only what they need."""
    assert not [
        module.path for module in read_modules() if module.is_package and module.our_imports()
    ]
