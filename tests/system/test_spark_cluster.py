"""A cluster of Spark's own: a master, two workers, and a job of `spark-submit`.

Each is a process with a working folder of its own. The job is that of ``docs/how-to/spark-job.md``,
sent as the page says: executors have no Penstock but that of ``--py-files``, no Python but that of
``--archives``, whose libraries are pyarrow and redis-py alone, and no token but that of
``--files``. It follows two queues: one through its gateway, and one whose engine is `redis`,
straight from the server.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import psutil
import pyarrow.parquet as pq
import pyspark
import pytest
import yaml

from benchmarks.loads.redis_server import RedisServer
from penstock.netem.runs.broker_process import reserved_port
from penstock.plugins.queue.client import QueueClient
from penstock.spark_bridge.java import find_java
from penstock.spark_bridge.pipelines.running import WORKER_IS_LATE
from penstock.spark_bridge.session import class_archive_path, java_options
from penstock.spark_bridge.sink_folder import listed_names
from tests.campaigns.spark_kills import DURABLE
from tests.helpers.gateway import gateway_of
from tests.helpers.process import ROOT, Program

SPARK: Final = Path(pyspark.__file__).parent
PAGE: Final = ROOT / "docs" / "how-to" / "spark-job.md"

TOKEN: Final = "of-the-cluster"
MESSAGES: Final = 2_000
PATIENCE_SECONDS: Final = 600.0
LOOK_SECONDS: Final = 0.05
QUEUE: Final = '.option("queue", "telemetry")'
"""The option that names the queue, as the page has it."""

SMALL: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""The options of the Java that makes the command of another one."""

AT_START: Final = """
import os, sys
with open({told!r}, "a") as file:
    file.write(os.getcwd() + "\\n")
sys.path = [path for path in sys.path if not path.endswith("pyspark.zip")]
"""
"""Run at the start of each Python of the archive: tells its folder, and has it take compiled
modules of Spark in place of a zip, which would have to be compiled each time."""


def short_java() -> str:
    """Return the options of a Java that loads Spark's classes and ends soon."""
    archive = class_archive_path(find_java(os.environ), os.environ)
    return java_options(short_run=True, archive=archive)


def job_of_the_page(gateway: str, of_redis: str, server: str) -> str:
    """Return the page's job, for gateways that ask for a token.

    Args:
        gateway: URL; what is read there goes to `telemetry`.
        of_redis: URL of the gateway of the other queue, which goes to `direct`.
        server: address of its Redis server.
    """
    section = PAGE.read_text().partition("## Read\n")[2]
    found = re.search(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert found is not None
    begin, messages, follow = found[1].partition("messages = (")
    end = ".awaitTermination()\n"
    assert follow.endswith(f'query.start("telemetry"){end}')
    text = begin
    for folder, url, options in (
        ("telemetry", gateway, {}),
        ("direct", of_redis, {"redis": server, "retrySeconds": f"{PATIENCE_SECONDS:.0f}"}),
    ):
        one = messages + follow.removesuffix(end) + "\n"
        for name, value in ({"tokenFile": "token"} | options).items():
            one = one.replace(QUEUE, f'{QUEUE}.option("{name}", "{value}")')
        one = one.replace("http://127.0.0.1:8080", url).replace(
            '"checkpoint"', f'"{folder}-checkpoint"'
        )
        text += one.replace('start("telemetry")', f'start("{folder}")')
    return text + "spark.streams.awaitAnyTermination()\n"


def zip_penstock(file: Path) -> None:
    """Write what a wheel has."""
    with zipfile.ZipFile(file, "w") as written:
        for folder, _, names in os.walk(ROOT / "penstock", followlinks=True):
            for name in names:
                if name.endswith(".py"):
                    path = Path(folder) / name
                    written.write(path, path.relative_to(ROOT))


def make_environment(folder: Path, told: Path) -> None:
    """Make a virtual environment that has pyarrow and redis-py alone beside Spark."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = folder / "lib" / version / "site-packages"
    packages.mkdir(parents=True)
    for name in ("hiredis", "py4j", "pyarrow", "pyspark", "redis"):
        (packages / name).symlink_to(Path(sysconfig.get_path("purelib")) / name)
    (packages / "sitecustomize.py").write_text(AT_START.format(told=str(told)))
    base = Path(sys.executable).resolve()
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(base)
    (folder / "pyvenv.cfg").write_text(f"home = {base.parent}\n")


def processes(program: Program) -> list[psutil.Process]:
    """Return a program's process and all that it has started."""
    try:
        own = psutil.Process(program.process.pid)
        return [own, *own.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def kill_all(program: Program) -> None:
    """Kill a program and all that it has started."""
    for one in processes(program):
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    program.wait()


class Cluster:
    """A master, two workers and a job.

    Attributes:
        driver: folder of the job.
        workers: their programs.
    """

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        """Start master and workers.

        Args:
            folder: in which each gets its own.
            stack: ends them.
        """
        self._folder = folder
        self._stack = stack
        self._environment = os.environ | {
            "SPARK_HOME": str(SPARK),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LAUNCHER_OPTS": SMALL,
            "SPARK_DAEMON_JAVA_OPTS": short_java(),
            "SPARK_DAEMON_MEMORY": "128m",
        }
        self._ports = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        master = self._start("master", "spark-class", "Master")
        self._url = master.wait_for_match(r"Starting Spark master at (spark://\S+)")[1]
        size = ("--cores", "1", "--memory", "600m", "--work-dir", "work")
        self.workers = [
            self._start(f"worker-{n}", "spark-class", "Worker", *size, self._url) for n in range(2)
        ]
        self.driver = folder / "driver"
        self.driver.mkdir()

    def _start(self, name: str, program: str, what: str, *more: str) -> Program:
        folder = self._folder / name
        folder.mkdir()
        kind = f"org.apache.spark.deploy.{what.lower()}.{what}"
        command = [str(SPARK / "bin" / program), kind, *self._ports, *more]
        return self._run(command, folder, self._environment)

    def _run(self, command: list[str], folder: Path, environment: dict[str, str]) -> Program:
        started = Program(command, cwd=folder, env=environment)
        self._stack.callback(kill_all, started)
        return started

    def submit(self) -> Program:
        """Start the job, as the page says; it begins when each living worker has an executor."""
        java = short_java()
        n_alive = sum(worker.process.poll() is None for worker in self.workers)
        settings = {
            "spark.driver.extraJavaOptions": java,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "512m",
            "spark.executor.extraJavaOptions": java,
            "spark.executor.memory": "512m",
            "spark.cores.max": str(n_alive),
            "spark.scheduler.minRegisteredResourcesRatio": "1",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{PATIENCE_SECONDS:.0f}s",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.sql.codegen.wholeStage": "false",
            "spark.ui.enabled": "false",
        }
        command = [str(SPARK / "bin" / "spark-submit"), "--master", self._url]
        for name, value in settings.items():
            command += ["--conf", f"{name}={value}"]
        command += ["--py-files", "penstock.zip", "--archives", "environment.tar.gz#environment"]
        pythons = {
            "PYTHONPATH": "penstock.zip",
            "PYSPARK_PYTHON": "./environment/bin/python",
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        }
        command += ["--files", "token", "job.py"]
        return self._run(command, self.driver, self._environment | pythons)

    def run_until(self, job: Program, is_done: Callable[[], bool]) -> Program:
        """Run the job until a condition holds; return it, or the one that took its place.

        Spark ends a job whose Python worker has not started within 10 s, as on a busy machine.
        """
        give_up_at = time.monotonic() + PATIENCE_SECONDS
        while not is_done():
            assert time.monotonic() < give_up_at, job.log
            try:
                job.process.wait(LOOK_SECONDS)
            except subprocess.TimeoutExpired:
                continue
            job.wait()
            assert WORKER_IS_LATE in job.log, job.log
            job = self.submit()
        return job


@contextlib.contextmanager
def running_queue(folder: Path, **engine: Any) -> Iterator[QueueClient]:
    """Run a gateway that asks for a token, with a queue `telemetry`; yield its client."""
    folder.mkdir()
    layout = {"physical_queues": 2, "groups": {"spark": {"kind": "offsets"}}}
    section = {"http": "127.0.0.1:0", "queues": {"telemetry": layout}, "tokens": "tokens.yaml"}
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    caller = {"name": "spark", "token_sha256": digest, "roles": {"*": ["read", "write"]}}
    (folder / "tokens.yaml").write_text(yaml.safe_dump({"tokens": [caller]}))
    policy = folder / "policy.yaml"
    policy.write_text(yaml.safe_dump({"plugins": {"queue": section | engine}}))
    with gateway_of(policy) as client:
        yield QueueClient(client.url, token=TOKEN)


def put(queue: QueueClient, numbers: range) -> None:
    """Store messages whose payloads are numbers."""
    queue.enqueue("telemetry", [(f"telemetry/{n % 7}", b"%d" % n) for n in numbers])


def written(folder: Path) -> Counter[bytes]:
    """Return how often each payload stands in the files that Spark lists."""
    payloads: Counter[bytes] = Counter()
    for name in listed_names(folder):
        table = pq.read_table(folder / name, columns=["payload"])
        payloads.update(table.column("payload").to_pylist())
    return payloads


@pytest.mark.timeout(1_200)
def test_each_message_is_written_once_though_a_worker_and_a_redis_server_are_killed(
    tmp_path: Path,
) -> None:
    """While they work on a micro-batch; the other worker does all from then on."""
    with contextlib.ExitStack() as stack:
        redis = RedisServer(tmp_path / "redis", stack.enter_context(reserved_port()), *DURABLE)
        stack.callback(redis.kill)
        redis.start()
        engine = {"engine": "redis", "redis": {"server": redis.address}}
        queues = [
            stack.enter_context(running_queue(tmp_path / "gateway", path="queue.db")),
            stack.enter_context(running_queue(tmp_path / "gateway-of-redis", **engine)),
        ]
        cluster = Cluster(tmp_path, stack)
        driver, told = cluster.driver, tmp_path / "told"
        make_environment(driver / "environment", told)
        with tarfile.open(driver / "environment.tar.gz", "w:gz") as archive:
            archive.add(driver / "environment", ".")
        zip_penstock(driver / "penstock.zip")
        job_text = job_of_the_page(queues[0].url, queues[1].url, redis.address)
        (driver / "job.py").write_text(job_text)
        (driver / "token").write_text(TOKEN)
        folders = [driver / "telemetry", driver / "direct"]

        def has_each(file: str) -> Callable[[], bool]:
            return lambda: all(
                (driver / f"{one.name}-checkpoint" / file).exists() for one in folders
            )

        for queue in queues:
            put(queue, range(MESSAGES // 2))
        job = cluster.run_until(cluster.submit(), has_each("commits/0"))
        for queue in queues:
            put(queue, range(MESSAGES // 2, MESSAGES))
        job = cluster.run_until(job, has_each("offsets/1"))
        kill_all(cluster.workers[0])
        redis.kill()
        redis.start()
        cluster.run_until(
            job, lambda: all(sum(written(one).values()) >= MESSAGES for one in folders)
        )
    for one in folders:
        assert written(one) == Counter(b"%d" % n for n in range(MESSAGES))
    places = {Path(line) for line in told.read_text().splitlines()}
    assert {each.relative_to(tmp_path).parts[0] for each in places} == {
        "driver",
        "worker-0",
        "worker-1",
    }
