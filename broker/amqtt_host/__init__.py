"""aMQTT's plugins, run unchanged by aMQTT's own `PluginManager` on our events.

This package alone imports amqtt, and is imported only where a policy names an aMQTT plugin.
aMQTT's words stay inside it: `retained_messages` is what waits for an offline session there,
`parent` is Session Present.

Theory of operation. aMQTT makes a task for each handler of each event, six for a packet that
its stock plugins see come and go. The host looks once, at start, which events any plugin
handles and which of its coroutines can wait at all. One that cannot runs at once, one that can
gets a task that is owned, named and watched. What the stock plugins only count is taken from
the broker's own counters, and what the stock loggers would not log is not told them; their
level is looked at once, so to log packets set it before the start. So the stock plugin list
costs nothing for each packet.

Where the host departs from aMQTT: a handler that cannot wait has run before the broker goes
on, the event of a retained message is not told of messages that wait for an offline session,
and a client that was let in anonymously keeps its session as MQTT has it.
"""
