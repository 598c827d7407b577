"""A recording of a small fleet: cameras and sensors, operators on a bad link, and a display."""

from __future__ import annotations

from pathlib import Path

from penstock.models.recording.rows import FigureRow, MessageRow, RttRow, SubscriptionRow, Writer

FIGURES = {
    "clients/connected": "10",
    "heap/size": "80000000",
    "penstock/ledger/dropped/queue_full": "7",
    "penstock/limits/queued_bytes": "100000000",
    "penstock/limits/queued_messages": "3",
    "penstock/machine/cores": "2",
    "penstock/machine/memory_bytes": "4294967296",
    "penstock/withholding/policy": "none",
    "penstock/withholding/probe_period": "5",
    "penstock/withholding/sojourn_seconds/none/count": "4",
    "penstock/withholding/sojourn_seconds/none/sum": "6.0",
}


def small_recording(folder: Path) -> Path:
    """Write 200 s of it; return the folder."""
    writer = Writer(folder / "recording", 10_000_000)
    for name, value in FIGURES.items():
        writer.take(FigureRow(0.0, name, value))
    for at in range(0, 201, 10):
        value = f"{0.02 * at:.2f}"
        writer.take(FigureRow(float(at), "penstock/process/processor_seconds", value))
    for number in (1, 2):
        for topic_filter in ("sensors/#", "cameras/+"):
            writer.take(SubscriptionRow(0.0, f"operator{number}", topic_filter))
    writer.take(SubscriptionRow(0.0, "display", "sensors/1/temp"))
    writer.take(SubscriptionRow(0.0, "lamp", "lamps/1"))
    writer.take(SubscriptionRow(0.0, "sensor1", None))
    for second in range(200):
        begin = float(second)
        is_bad, is_on = 100 <= second < 140, not 150 <= second < 180
        for number in (1, 2):
            row = RttRow(
                begin, f"operator{number}", True, 0.05, 0, None, 0, 0.1, 1_000_000, False, 0
            )
            if is_bad:
                row = row._replace(rtt_seconds=0.3, bytes_per_second=50_000, retransmit_ratio=0.05)
            if not is_on:
                row = row._replace(is_connected=False, rtt_seconds=None)
            writer.take(row)
        writer.take(RttRow(begin, "display", True, 0.01, 0, None, 0, 0.1, 70_000, True, 0))
        if second % 10 == 0:
            writer.take(MessageRow(begin, f"cameras/{second // 10 % 2}", 200_000, None))
            for number in range(4):
                writer.take(MessageRow(begin, f"sensors/{number}/temp", 200, 60))
    writer.close()
    return folder / "recording"
