from __future__ import annotations

from pathlib import Path

import pytest

from tests.architecture import table
from tests.architecture.source import Import, Module, read_imports, read_modules

MODULES = read_modules()
PRODUCT_INITS = [m for m in MODULES if m.is_package]


def is_within(name: str, allowed: tuple[str, ...]) -> bool:
    """Say whether a dotted name is one of `allowed` or below one of them."""
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in allowed)


def broker_layer(name: str) -> int | None:
    """Return the layer of a module of broker/, 0 for the package itself, None for none."""
    parts = name.split(".")
    if len(parts) == 1:
        return 0
    for layer, members in enumerate(table.LAYERS):
        if parts[1] in members:
            return layer
    return None


def is_pure(module: Module) -> bool:
    """Say whether a module has to leave time, chance and I/O to its caller."""
    if module.package == "broker":
        layer = broker_layer(module.name)
        return layer is not None and layer < table.CORE_LAYERS
    if module.package == "plugins":
        return module.name not in table.PLUGIN_IO
    return module.name in table.EDGE_PROXY_PURE


def breaches(module: Module, found: list[Import], allowed: tuple[str, ...]) -> list[str]:
    """Return the imports that are not within `allowed`, as text."""
    return [
        f"{module.path}:{imported.line}: imports {imported.module}; allowed: {allowed}"
        for imported in found
        if not is_within(imported.module, allowed)
    ]


def ids(module: Module) -> str:
    """Name a parametrized case after its module."""
    return module.name


def of_package(*packages: str) -> list[Module]:
    """Return the modules of some packages."""
    return [module for module in MODULES if module.package in packages]


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
    assert read_imports(text, tmp_path) == [
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
        read_imports("from . import room")


@pytest.mark.parametrize("module", MODULES, ids=ids)
def test_package_arrows(module: Module) -> None:
    """A module imports what its package's arrows, or its own, allow and nothing else of ours."""
    allowed = table.MODULE_ARROWS.get(module.name, table.PACKAGE_ARROWS[module.package])
    assert not breaches(module, module.our_imports(), allowed)


@pytest.mark.parametrize("module", of_package("broker"), ids=ids)
def test_broker_layers(module: Module) -> None:
    """A module of broker/ has a layer and imports its own or lower ones."""
    layer = broker_layer(module.name)
    assert layer is not None, f"{module.path} has no layer in tests/architecture/table.py"
    higher = [
        f"{module.path}:{imported.line}: L{layer} imports {imported.module}"
        for imported in module.our_imports()
        if (broker_layer(imported.module) or 0) > layer
    ]
    assert not higher


def test_broker_has_no_import_cycle() -> None:
    """Within a layer the imports that happen at run time form no cycle."""
    arrows = {
        module.name: {found.module for found in module.our_imports() if not found.is_for_typing}
        for module in of_package("broker")
    }
    while leaves := {name for name, imported in arrows.items() if not imported & arrows.keys()}:
        arrows = {name: imported for name, imported in arrows.items() if name not in leaves}
    assert not arrows, "these import each other, or are imported by such"


@pytest.mark.parametrize("module", [module for module in MODULES if is_pure(module)], ids=ids)
def test_pure_modules_do_no_io(module: Module) -> None:
    """The core and the pure modules import no clock, no chance and no I/O."""
    found = [
        f"{module.path}:{imported.line}: imports {imported.module}"
        for imported in module.imports
        if (name := imported.module.partition(".")[0]) in table.DO_IO
        and not (imported.is_for_typing and name in table.FOR_TYPING)
    ]
    assert not found


@pytest.mark.parametrize("module", of_package("plugins"), ids=ids)
def test_plugins_meet_the_broker_at_its_contract(module: Module) -> None:
    """Adapters alone import the extension points; pure modules see messages and links."""
    of_broker = [found for found in module.our_imports() if is_within(found.module, ("broker",))]
    if module.name in table.PLUGIN_IO:
        too_high = [f for f in of_broker if (broker_layer(f.module) or 0) >= table.CONTRACT_LAYERS]
        assert not breaches(module, too_high, table.ABOVE_THE_CONTRACT.get(module.name, ()))
    elif module.name.endswith(".config"):
        assert not breaches(module, of_broker, table.CONFIG_IMPORTS)
    else:
        assert not breaches(module, of_broker, table.PURE_PLUGIN_IMPORTS)
    if module.name not in table.PLUGIN_ADAPTERS:
        points = {"broker.access_control", "broker.extensions"}
        assert not [found for found in of_broker if found.module in points]


@pytest.mark.parametrize("module", of_package("plugins"), ids=ids)
def test_plugin_folders_do_not_import_each_other(module: Module) -> None:
    """Plugins meet in links and events, never in each other's code; pure ones in pure ones."""
    folder = ".".join(module.name.split(".")[:2])
    ours = [found for found in module.our_imports() if is_within(found.module, ("plugins",))]
    assert not breaches(module, ours, (folder, *table.SHARED_BY_PLUGINS))
    if is_pure(module):
        assert not [found for found in ours if found.module in table.PLUGIN_IO]


def test_queue_client_stands_alone() -> None:
    """What Spark's executors import loads nothing else of ours."""
    client = [module for module in MODULES if module.name == "plugins.queue.client"]
    assert [module.our_imports() for module in client] in ([], [[]])


@pytest.mark.parametrize("module", of_package("models"), ids=ids)
def test_models_use_the_pure_parts_of_plugins(module: Module) -> None:
    """A model drives a production policy, never what does I/O."""
    assert not [found for found in module.our_imports() if found.module in table.PLUGIN_IO]


@pytest.mark.parametrize("module", of_package("edge_proxy"), ids=ids)
def test_only_the_aggregator_holds_a_broker(module: Module) -> None:
    """The sidecar stands on codec, outbox and gate without the server."""
    if module.name not in table.EDGE_PROXY_ASSEMBLIES:
        of_broker = [f for f in module.our_imports() if is_within(f.module, ("broker",))]
        high = [f for f in of_broker if (broker_layer(f.module) or 0) >= table.CORE_LAYERS]
        assert not breaches(module, high, table.ABOVE_THE_CONTRACT.get(module.name, ()))


@pytest.mark.parametrize(("package", "importers"), table.ONLY_IMPORTERS.items())
def test_third_party_packages_stay_in_their_place(package: str, importers: tuple[str, ...]) -> None:
    """The packages of others that have one place in the house are imported only there."""
    found = [
        f"{module.path}:{imported.line}"
        for module in MODULES
        if not is_within(module.name, importers)
        for imported in module.imports
        if is_within(imported.module, (package,))
    ]
    assert not found


@pytest.mark.parametrize("module", PRODUCT_INITS, ids=ids)
def test_package_inits_import_nothing_of_ours(module: Module) -> None:
    """Importing a package loads nothing else: the models and executors take only what they need."""
    assert not module.our_imports()
