from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

from tests.architecture.source import (
    INSTALLED_PACKAGES,
    ROOT,
    Module,
    n_code_lines,
    read_modules,
    read_source,
)

MAX_CODE_LINES: Final = 600

COVERED_ELSEWHERE: Final = {
    "models/recording/options.py": (
        "tests/models/recording/test_main.py",
        "declarations of options, which the commands show",
    ),
    "models/recording/recorder.py": (
        "tests/models/recording/test_main.py",
        "what it records of a real broker shows in the files that the command writes",
    ),
    "broker/access_control.py": (
        "tests/broker/sessions/test_access.py",
        "the contract's types; what several answers come to shows them",
    ),
    "broker/routing/subscriber.py": (
        "tests/broker/routing/test_topic_tree.py",
        "what routing sees of a session, declared",
    ),
    "broker/sending/shared.py": (
        "tests/broker/sessions/test_core.py",
        "what the core and all below it refer to",
    ),
    "broker/sessions/journal.py": (
        "tests/broker/durable/test_journal.py",
        "what the core says to the journal, declared",
    ),
    "broker/sessions/pump.py": (
        "tests/broker/sending/test_sender.py",
        "what leaves an outbox shows in the packets that come of it",
    ),
    "broker/events.py": (
        "tests/broker/sessions/test_core.py",
        "declarations without behaviour; the core that raises them shows each",
    ),
    "broker/extensions.py": (
        "tests/broker/test_plugin_loader.py",
        "the contract's types; whoever brings and whoever calls an extension shows them",
    ),
    "edge_proxy/aggregator/connecting.py": (
        "tests/edge_proxy/aggregator/test_joint.py",
        "what the connections of a joint say first",
    ),
    "edge_proxy/aggregator/counts.py": (
        "tests/edge_proxy/aggregator/test_joint.py",
        "counters without behaviour; the joint shows what each counts",
    ),
    "edge_proxy/aggregator/plugin.py": (
        "tests/edge_proxy/aggregator/test_uplink.py",
        "what starts and stops the uplinks shows in those that run",
    ),
    "edge_proxy/aggregator/receivers.py": (
        "tests/edge_proxy/aggregator/test_joint.py",
        "what comes on the connections of a joint, and what the joint does with it",
    ),
    "edge_proxy/aggregator/preparation.py": (
        "tests/edge_proxy/aggregator/test_uplink.py",
        "what comes before an uplink stands shows in those that do",
    ),
    "edge_proxy/parts/counts.py": (
        "tests/edge_proxy/parts/test_assembler.py",
        "counters without behaviour; both ends show what each counts",
    ),
    "edge_proxy/parts/local_client.py": (
        "tests/edge_proxy/parts/test_assembler.py",
        "what the clients of both ends publish and acknowledge shows it",
    ),
    "edge_proxy/parts/surroundings.py": (
        "tests/edge_proxy/parts/test_assembler.py",
        "names without behaviour; both ends run with what they are given",
    ),
    "plugins/queue/batch_client.py": (
        "tests/system/test_publishing.py",
        "its requests show in what a broker publishes for them",
    ),
    "plugins/queue/cluster/creating.py": (
        "tests/plugins/queue/cluster/test_trial.py",
        "a cluster that is made shows in the trial that makes it",
    ),
    "plugins/queue/cluster/servers.py": (
        "tests/plugins/queue/cluster/test_trial.py",
        "what real servers are asked and answer shows in the trial",
    ),
    "plugins/queue/wire/connection.py": (
        "tests/plugins/queue/test_client.py",
        "each request of the client goes through it, as scripted and real servers show",
    ),
    "plugins/queue/wire/frames.py": (
        "tests/plugins/queue/test_batch_format.py",
        "the decoder; what the encoder writes comes back, and broken frames are told",
    ),
    "plugins/queue/cluster/status.py": (
        "tests/plugins/queue/cluster/test_view.py",
        "tables of what is seen of a cluster, with what is seen",
    ),
    "plugins/queue/http/openapi_schemas.py": (
        "tests/plugins/queue/http/test_openapi.py",
        "the schemas of the document, which is held against the server's answers",
    ),
    "plugins/queue/publishing/counts.py": (
        "tests/plugins/queue/publishing/test_batches.py",
        "counters without behaviour; the batches show what each counts",
    ),
    "plugins/queue/publishing/relay.py": (
        "tests/plugins/queue/publishing/test_batches.py",
        "what a relay publishes shows in the batches that it publishes",
    ),
    "edge_proxy/aggregator/outlet.py": (
        "tests/edge_proxy/aggregator/test_joint.py",
        "what the joint writes shows it",
    ),
    "broker/link.py": (
        "tests/plugins/probing/test_sampler.py",
        "fields without behaviour; samplers write them, gates judge them",
    ),
    "broker/durable/records.py": (
        "tests/broker/durable/test_database.py",
        "rows without behaviour; the database shows that each is read as it was written",
    ),
    "broker/payload.py": (
        "tests/broker/test_message.py",
        "the default store hands back what it is given; a message shows that it is the same",
    ),
    "plugins/queue/engines/catalogue.py": (
        "tests/plugins/queue/engines/contract/test_groups.py",
        "the contract of queues and groups shows each of its calls",
    ),
    "plugins/queue/engines/queues.py": (
        "tests/plugins/queue/engines/contract/test_queues.py",
        "settings and groups of a queue, as the contract shows them",
    ),
    "plugins/queue/engines/reading.py": (
        "tests/plugins/queue/engines/contract/test_reading.py",
        "ranges and places, as the contract shows them",
    ),
    "plugins/queue/engines/receiving.py": (
        "tests/plugins/queue/engines/contract/test_leases.py",
        "leases, as the contract shows them",
    ),
    "plugins/queue/engines/taking.py": (
        "tests/plugins/queue/engines/contract/test_leases.py",
        "what one receive wants and gets, as the contract shows it",
    ),
    "plugins/queue/engines/leases.py": (
        "tests/plugins/queue/engines/contract/test_leases.py",
        "groups in memory; the contract shows every rule of theirs, and a machine their ledger",
    ),
    "plugins/queue/engines/requests.py": (
        "tests/plugins/queue/engines/test_group_commit.py",
        "what is asked of the thread that writes",
    ),
    "plugins/queue/engines/snapshots.py": (
        "tests/plugins/queue/engines/contract/test_ledger.py",
        "figures; the ledger holds them against what happened",
    ),
    "plugins/queue/engines/state.py": (
        "tests/plugins/queue/engines/test_local.py",
        "what the parts of the engine share",
    ),
    "plugins/queue/engines/store.py": (
        "tests/plugins/queue/engines/test_sqlite.py",
        "rows; the stores show that each is read as it was written",
    ),
    "plugins/queue/engines/transaction.py": (
        "tests/plugins/queue/engines/contract/test_machine.py",
        "what a commit changes; the machine holds it against a model",
    ),
    "plugins/queue/engines/upkeep.py": (
        "tests/plugins/queue/engines/contract/test_upkeep.py",
        "maintenance, as the contract shows it",
    ),
    "plugins/queue/engines/logical.py": (
        "tests/plugins/queue/engines/contract/test_queues.py",
        "names, room and refusals, as the contract shows them",
    ),
    "plugins/queue/engines/waited.py": (
        "tests/plugins/queue/engines/contract/test_arrivals.py",
        "what is waited for, as the contract shows it",
    ),
    "plugins/queue/engines/waiting.py": (
        "tests/plugins/queue/engines/contract/test_arrivals.py",
        "arrivals, as the contract shows them",
    ),
    "plugins/queue/engines/redis/burying.py": (
        "tests/plugins/queue/engines/contract/test_leases.py",
        "dead letters, as the contract shows them",
    ),
    "plugins/queue/engines/redis/receiving.py": (
        "tests/plugins/queue/engines/contract/test_leases.py",
        "leases, as the contract shows them",
    ),
    "plugins/queue/engines/redis/storing.py": (
        "tests/plugins/queue/engines/contract/test_storing.py",
        "outcomes and room, as the contract shows them",
    ),
    "plugins/queue/engines/redis/functions.py": (
        "tests/plugins/queue/engines/contract/test_reading.py",
        "calls of the library, as the contract shows them",
    ),
    "plugins/queue/engines/redis/checks.py": (
        "tests/plugins/queue/engines/redis/test_server.py",
        "what a server is refused for, as real servers show it",
    ),
    "plugins/queue/engines/redis/login.py": (
        "tests/plugins/queue/engines/redis/test_server.py",
        "users, passwords and certificates, as real servers take them",
    ),
    "plugins/queue/engines/redis/settings.py": (
        "tests/plugins/queue/test_gateway.py",
        "the keys of a policy file, with the program that reads them",
    ),
    "plugins/queue/engines/redis/mirror.py": (
        "tests/plugins/queue/engines/contract/test_ledger.py",
        "figures; the ledger holds them against what happened",
    ),
    "spark_bridge/ranges/contract.py": (
        "tests/spark_bridge/test_queue_reader.py",
        "declarations; the reader reads ranges by them",
    ),
    "spark_bridge/ranges/gateway.py": (
        "tests/spark_bridge/test_queue_reader.py",
        "one answer at a time; the reader puts them together, and waits for them",
    ),
    "plugins/queue/engines/contract.py": (
        "tests/plugins/queue/engines/contract/test_storing.py",
        "declarations; the suite beside it holds each engine against them",
    ),
    "netem/clients/client_plan.py": (
        "tests/netem/clients/test_roster.py",
        "fields; who fills them in shows that they are read as they were written",
    ),
    "netem/clients/connection.py": (
        "tests/netem/clients/test_client.py",
        "what publisher and subscriber have in common; both show it",
    ),
    "netem/runs/site.py": (
        "tests/netem/runs/test_runner.py",
        "a broker and its clients in a run; the runner shows each in its place, and each failure",
    ),
    "netem/figures/records.py": (
        "tests/netem/figures/test_tables.py",
        "rows; the tables show that each is read as it was written, and parts of a run joined",
    ),
    "netem/errors.py": (
        "tests/netem/links/test_network.py",
        "a name; the network shows when it is raised and what it says",
    ),
}
"""Module to the test file that covers it, and why it has none of its own."""


def modules() -> list[Module]:
    """Return the modules of the installed packages, without the packages' own."""
    return [
        module
        for module in read_modules()
        if module.package in INSTALLED_PACKAGES and not module.is_package
    ]


def own_test(module: Module) -> Path:
    """Return where the test file of a module stands in the mirror."""
    name = module.path.stem.strip("_")
    return Path("tests") / module.path.parent / f"test_{name}.py"


def test_each_module_has_its_test_file() -> None:
    """tests/ mirrors the packages; what is covered elsewhere is named with a reason."""
    expected = {
        module.path: Path(elsewhere[0])
        if (elsewhere := COVERED_ELSEWHERE.get(module.path.as_posix()))
        else own_test(module)
        for module in modules()
    }
    assert not {path: test for path, test in expected.items() if not (ROOT / test).is_file()}


def test_the_map_names_modules_that_need_it() -> None:
    """An entry goes when its module has gone or has a test file of its own."""
    named = {module.path.as_posix(): module for module in modules()}
    stale = [
        path
        for path in COVERED_ELSEWHERE
        if path not in named or (ROOT / own_test(named[path])).is_file()
    ]
    assert not stale


def test_each_test_file_mirrors_a_module() -> None:
    """A test file whose module has gone is found.

    `test_<name>_<aspect>.py` belongs to the module <name>, as do the files of a folder <name>.
    """
    covering = {Path(test) for test, _ in COVERED_ELSEWHERE.values()}
    stems = {own_test(module).with_suffix("") for module in modules()}
    files = [
        file.relative_to(ROOT)
        for package in INSTALLED_PACKAGES
        for file in (ROOT / "tests" / package).rglob("test_*.py")
    ]
    strays = [
        file
        for file in files
        if file not in covering
        and not any(
            (file.parent == stem.parent and f"{file.stem}_".startswith(f"{stem.name}_"))
            or file.parent == stem.with_name(stem.name.removeprefix("test_"))
            for stem in stems
        )
    ]
    assert not strays


def source_files() -> list[Path]:
    """Return every Python file that is written by hand."""
    folders = (*INSTALLED_PACKAGES, "benchmarks", "script", "tests")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*.py")]
    return sorted(file.relative_to(ROOT) for file in [*files, *(ROOT / "penstock").glob("*.py")])


def test_prose_is_no_code() -> None:
    """No docstring is shortened, and no class halved, for a ruler."""
    text = '"""Says\nmuch."""\n\n# Why.\nA = 1\n"""Of A."""\n\n\ndef f():\n    return """a\nb"""\n'
    assert n_code_lines(text, ast.parse(text)) == 4


def test_no_module_is_too_long() -> None:
    """A module that has grown past the limit is split."""
    found = {path: read_source(path).n_code_lines for path in source_files()}
    assert not {path: lines for path, lines in found.items() if lines > MAX_CODE_LINES}
