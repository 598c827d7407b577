"""The keys under `log`, in a policy file and in a proxy's file."""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic.dataclasses import dataclass as checked_dataclass

from penstock.broker.config.key_types import STRICT

LogLevelName: TypeAlias = Literal["debug", "info", "warning", "error"]
LogFormat: TypeAlias = Literal["text", "keyvalue", "json"]


@checked_dataclass(frozen=True, slots=True, config=STRICT)
class LogOptions:
    """The program's log; the keys under `log`.

    Attributes:
        level: the least level. None: that of ``--log-level``, which has precedence at the start.
        format: ``text`` for people; ``keyvalue`` (``key=value``) or ``json`` for programs.
    """

    level: LogLevelName | None = None
    format: LogFormat = "text"
