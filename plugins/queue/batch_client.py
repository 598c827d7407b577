"""The client for batches of rows that the broker publishes; executors of Spark import it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from penstock.plugins.queue.client import QueueClient, QueueError


class Published(NamedTuple):
    """How far a batch was published.

    Attributes:
        is_repeat: the batch was committed before this request; the stages of then count.
        n_rows: the rows of the batch; 0 where it is an older one of its query, of which no more is
            known.
        obstacle: what the next row waits for, or "".
    """

    is_finished: bool
    is_repeat: bool
    n_rows: int
    n_done: int
    unpublished: Mapping[str, int]
    obstacle: str


class BatchClient(QueueClient):
    """A client of the queue's HTTP API that has batches published; see `QueueClient`."""

    def stage(self, writer: str, stage: str, place: int, rows: Sequence[Mapping[str, Any]]) -> int:
        """Store rows that are to be published, until a commit names their stage; may be repeated.

        Args:
            writer: the writer of the batch.
            stage: the name of one attempt of one part of the batch.
            place: the place of these rows among the requests of the stage, from 0.
            rows: the rows of one request, as the API has them: topic, payload in base64 or text,
                and maybe qos, retain, properties.

        Returns:
            The rows of the stage.

        Raises:
            QueueError: with `index` in its answer, the first row that cannot be published.
        """
        path = f"/stages/{_quoted(writer)}/{_quoted(stage)}/{place}"
        staged: int = self._requests.ask_json("PUT", path, {"messages": list(rows)})["rows"]
        return staged

    def give_up(self, writer: str) -> int:
        """Delete the stages of a writer that are not committed; return how many."""
        deleted: int = self._requests.ask_json("DELETE", f"/stages/{_quoted(writer)}")["stages"]
        return deleted

    def publish(
        self,
        query: str,
        batch: int,
        writer: str,
        stages: Sequence[tuple[str, int]],
        *,
        wait_seconds: float = 0,
    ) -> Published:
        """Have the broker publish stages as one batch, once; may be repeated.

        Args:
            query: what makes the batches.
            batch: its number; of two batches of a query the later one has the higher number.
            writer: the writer of the stages; its other stages are deleted.
            stages: the name and number of rows of each, in the order of publishing.
            wait_seconds: how long the server may hold the request until the batch is finished.

        Returns:
            How far it was published.

        Raises:
            ConflictError: a stage is not there.
        """
        body = {
            "writer": writer,
            "stages": [{"name": name, "rows": n_rows} for name, n_rows in stages],
            "wait_seconds": wait_seconds,
        }
        path = f"/batches/{_quoted(query)}/{batch}"
        answer = self._requests.ask_json("PUT", path, body, more_seconds=wait_seconds)
        try:
            return Published(
                bool(answer["finished"]),
                bool(answer["repeated"]),
                int(answer["rows"]),
                int(answer["done"]),
                dict(answer["unpublished"]),
                str(answer["obstacle"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise QueueError(200, f"answer of {path} tells of no batch") from error


def _quoted(name: str) -> str:
    return quote(name, safe="")
