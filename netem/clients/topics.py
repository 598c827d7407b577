"""Topic Names and Topic Filters, section 4.7 of MQTT: what a scenario may say, and what matches."""

from __future__ import annotations

MAX_BYTES = 65_535
"""Of either one [MQTT-4.7.3-3]."""


def fault_of_topic(topic: str) -> str | None:
    """Return what a Topic Name must be, where it is something else; None where it is right."""
    if "+" in topic or "#" in topic:
        return "no wildcards"  # [MQTT-4.7.1-1]
    return _fault_of_text(topic)


def fault_of_filter(topic_filter: str) -> str | None:
    """Return what a Topic Filter must be, where it is something else; None where it is right."""
    levels = topic_filter.split("/")
    for depth, level in enumerate(levels, start=1):
        if "#" in level and (level != "#" or depth < len(levels)):
            return "# as the whole last level"  # [MQTT-4.7.1-2]
        if "+" in level and level != "+":
            return "+ as a whole level"  # [MQTT-4.7.1-3]
    return _fault_of_text(topic_filter)


def matches(topic_filter: str, topic: str) -> bool:
    """Say whether a Topic Filter matches a Topic Name, both without a fault."""
    if topic.startswith("$") and topic_filter[0] in "+#":
        return False  # [MQTT-4.7.2-1]
    levels = topic.split("/")
    wanted = topic_filter.split("/")
    if wanted[-1] == "#":
        del wanted[-1]  # which stands for any number of levels, none included
        levels = levels[: len(wanted)]
    return len(levels) == len(wanted) and all(
        want in {"+", level} for want, level in zip(wanted, levels, strict=True)
    )


def _fault_of_text(text: str) -> str | None:
    if not text:
        return "at least one character"  # [MQTT-4.7.3-1]
    if "\0" in text:
        return "no U+0000"  # [MQTT-4.7.3-2]
    if len(text.encode(errors="surrogatepass")) > MAX_BYTES:
        return f"at most {MAX_BYTES} bytes"
    return None
