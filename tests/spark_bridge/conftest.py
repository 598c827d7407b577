from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.plugins.queue.client import QueueClient
from penstock.spark_bridge.java import find_java
from penstock.spark_bridge.session import (
    build_session,
    class_archive_path,
    java_options,
    write_checkpoints_by_rename,
)
from tests.helpers.gateway import running_gateway

FOR_FEW_ROWS = {
    # Compiling a plan takes longer than a handful of rows takes without.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # One task and one store of state for each window aggregation.
    "spark.sql.shuffle.partitions": "1",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Return one Spark for all tests; its start is what costs."""
    archive = class_archive_path(find_java(os.environ), os.environ)
    folder = tmp_path_factory.mktemp("spark")
    session = build_session(
        java_settings=java_options(short_run=True, archive=archive),
        settings=FOR_FEW_ROWS | {"spark.sql.warehouse.dir": str(folder / "warehouse")},
        log_file=folder / "spark.log",
    )
    write_checkpoints_by_rename(session)
    yield session
    session.stop()


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[QueueClient]:
    """Return a client of a gateway whose queue "telemetry" has two physical queues."""
    with running_gateway(tmp_path) as client:
        yield client
