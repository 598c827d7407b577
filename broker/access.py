"""Access control where the policy file names no plugin for it."""

from __future__ import annotations

from broker.extensions import Action, ConnectAttempt, SessionView


class NobodyConnects:
    """Refuses every CONNECT, as aMQTT does when no authentication plugin answers."""

    checks_publish = False
    checks_subscribe = False
    checks_receive = False

    def authenticate(self, attempt: ConnectAttempt) -> bool:  # noqa: ARG002 (AccessControl's)
        """Refuse."""
        return False

    def authorize(
        self,
        session: SessionView,  # noqa: ARG002 (AccessControl's signature)
        topic: str,  # noqa: ARG002
        action: Action,  # noqa: ARG002
    ) -> bool:
        """Refuse."""
        return False
