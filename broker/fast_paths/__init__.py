"""Shorter ways of a PUBLISH and its acknowledgements, where many messages are alike.

Theory of operation. The plain way of a message (`docs/code.md` begins with it) handles packet by
packet: it makes a `Message`, asks everybody who may have a say, and builds a packet for each
subscriber. Most packets of a busy broker need none of that. Each fast path handles some packets
whole, or leaves them to the plain way before it has changed anything:

* `single_packet`: a chunk that is one small PUBLISH of QoS 0 or 1, or one PUBACK. The search for
  further packets, and for packets like this one, is left out.
* `copied_runs`: QoS 0 packets in one chunk that go to the same subscribers. No `Message` is made;
  one slice of the received bytes is given to each subscriber.
* `acknowledged_runs`: PUBLISH packets of QoS 1 and 2 in one chunk that go to the same subscribers,
  and the acknowledgements of what was sent in such a run. One `MessageRun` (`message_run`) stands
  for all of them in the inflight window (`run_window`) of each subscriber; only the Packet
  Identifiers in the copied bytes differ.
* `shared_runs`: packets of either kind of run for the members of a shared subscription. Each is
  sent its part of the run as a run.
* `sink_runs`: packets of either kind of run for sinks that take runs, beside sessions or alone.
* `mail_runs`: messages that waited for a kept session elsewhere, and leave as a run.
* `unchecked_publish`: any other PUBLISH of a broker in which no plugin has to be asked about
  single messages. The coroutine, and where possible the receipt, of the plain way are left out.

What they have in common is in `fast_core` (which topics' messages may be copied as they came) and
`fast_connection` (which chunks are tried on them). Access control whose answers last is asked once,
when a plan is made. No fast path is taken where other access control or a callback looks at single
messages, where a message is large for its subscribers' gate, retained or a repeat, and where a
sink takes no runs. The journal is told of a run as a
whole (`penstock.broker.durable.session_journal`).

What a client can observe does not depend on the way: the same bytes in the same order, the same
counters, the same state. `tests/broker/fast_paths` plays random packets on twins, one broker with
fast paths and one without, and compares all of this. ``PENSTOCK_FAST_PATHS=off`` in the environment
turns the fast paths off; it is read once, by `door`, when a broker's core is made.
"""
