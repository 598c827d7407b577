"""aMQTT's plugins, run unchanged by aMQTT's own `PluginManager` on Penstock's events.

Only this package imports amqtt, and it is imported only where a policy names an aMQTT plugin.
aMQTT's terms stay inside it: there, `retained_messages` are the messages that wait for an offline
session, and `parent` is Session Present.

Theory of operation. aMQTT makes a task for each handler of each event: six for each packet of its
stock plugins. The host finds out once, at the start, which events a plugin handles, and which of
its coroutines can suspend at all. A coroutine that cannot runs at once; one that can gets a task
that is owned, named and watched. What the stock plugins only count comes from the broker's own
counters. The stock loggers do not get events that they would not log; their level is read once, so
it must be set before the start. So the stock plugins cost nothing for each packet.

Where the host departs from aMQTT: a handler that cannot suspend has run before the broker goes on;
the event of a retained message does not cover messages that wait for an offline session; and a
client that was let in anonymously keeps its session as MQTT requires.
"""
